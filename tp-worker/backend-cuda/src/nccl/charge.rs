//! What NCCL takes of the device, before there is any of it.
//!
//! NCCL connects a rank with its peers when something first goes that way, and takes room
//! for each channel of a connection: how many channels there are it finds in the machine.
//! So communicators are told how many there may be at the most ([`channels`]), which bounds
//! the rest. Rooms are those of NCCL 2.22 to 2.30 between GPUs of one node; what a
//! communicator has taken is measured when it has connected ([`crate::planes`]).

use lockstep_backend::Place;

/// Channels of a communicator, at the most: as many as reach the speed of NVLink with
/// large sums. Connections of letters have a power of two of them.
const CHANNELS: usize = 16;
/// Channels that NCCL has at the most, whatever people say (`MAXCHANNELS`).
const MOST: usize = 64;
/// The variable with which people say another number, which NCCL prefers to the program's.
pub(crate) const MOST_CHANNELS: &str = "NCCL_MAX_CTAS";

const MIB: u64 = 1 << 20;
/// What does not grow with channels, code of kernels above all: with NCCL 2.30 each of two
/// ranks took 742 MiB of the H200 that they shared, 286 more than 64 and all rooms of 16
/// channels are.
const CODE: u64 = 352 * MIB;
/// State of a communicator, and what its kernels' arguments wait in.
const STATE: u64 = 8 * MIB;
/// A channel's room to receive from a peer: 4 MiB, 4.7 MiB and half a MiB for the three
/// protocols, in units of 2 MiB.
const RECEIVES: u64 = 10 * MIB;
/// Its room to send to one: where the peer reads it there, that for the largest protocol is
/// the sender's.
const SENDS: u64 = 6 * MIB;
/// Both, of which the rooms are one's or the other's.
const BOTH: u64 = 12 * MIB;
/// Peers of a rank in a channel: two in its ring, and others in its chain.
const NEIGHBOURS: usize = 3;
/// Of sums in the switch, a channel's for each rank, there and back.
const SWITCHED: u64 = 2 * MIB;

/// Channels that a communicator may have.
pub(crate) fn channels() -> usize {
    let said = std::env::var(MOST_CHANNELS).ok();
    let said = said.and_then(|said| said.trim().parse().ok());
    let said = said.filter(|number| *number > 0).unwrap_or(CHANNELS);
    said.min(MOST)
}

/// Bytes of the communicators of a rank in that place.
pub(crate) fn bytes(place: Place) -> u64 {
    of_channels(place, channels().next_power_of_two())
}

fn of_channels(place: Place, channels: usize) -> u64 {
    let Place {
        ranks, dp_ranks, ..
    } = place;
    if ranks == 1 {
        return 0;
    }
    let near = place.near();
    let own = (1 < near && near < ranks).then_some(near);
    let groups = [Some(ranks), own].into_iter().flatten();
    let collectives: u64 = groups
        .map(|ranks| {
            let connected = NEIGHBOURS.min(ranks - 1) as u64 * BOTH;
            STATE + channels as u64 * (connected + ranks as u64 * SWITCHED)
        })
        .sum();
    // Columns of logits go to those that lead.
    let leads = dp_ranks - usize::from(place.leads());
    let comes = if place.leads() { ranks - 1 } else { 0 };
    let letters = leads as u64 * SENDS + comes as u64 * RECEIVES;
    CODE + collectives + channels as u64 * letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leads_receives_from_all_and_others_send() {
        let bytes = |rank, ranks, dp_ranks| {
            let place = Place {
                rank,
                ranks,
                dp_ranks,
            };
            of_channels(place, 4) / MIB
        };
        assert_eq!(bytes(0, 1, 1), 0);
        let pair = 352 + 8 + 4 * (12 + 4);
        assert_eq!(bytes(0, 2, 1), pair + 4 * 10);
        assert_eq!(bytes(1, 2, 1), pair + 4 * 6);
        // Each leads.
        assert_eq!(bytes(1, 2, 2), pair + 4 * (10 + 6));
        // Those of a DP rank have a group of their own.
        let four = 352 + 8 + 4 * (36 + 8) + 8 + 4 * (12 + 4);
        assert_eq!(bytes(2, 4, 2), four + 4 * (30 + 6));
        assert_eq!(bytes(3, 4, 2), four + 4 * 12);
    }
}
