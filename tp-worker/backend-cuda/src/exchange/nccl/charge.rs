//! Prediction of the device memory that NCCL takes, before NCCL is started.
//!
//! NCCL connects a rank with a peer at the first operation between them, and takes room for
//! each channel of a connection. It derives the number of channels from the machine. So
//! communicators are told the largest number that they may have ([`channels`]), which bounds
//! the rest. The sizes here hold for NCCL 2.22 to 2.30 between GPUs of one node. The memory
//! that a communicator has taken is measured once it has connected ([`crate::exchange`]).

use lockstep_backend::RankLayout;

/// Largest number of channels of a communicator: as many as reach the speed of NVLink with
/// large sums. Connections of letters have a power of two of them.
const CHANNELS: usize = 16;
/// Largest number of channels that NCCL has, whatever users set (`MAXCHANNELS`).
const MOST: usize = 64;
/// Environment variable for another number, which NCCL prefers to the program's.
pub(crate) const MOST_CHANNELS: &str = "NCCL_MAX_CTAS";

const MIB: u64 = 1 << 20;
/// Memory that does not grow with channels, mostly code of kernels. Measured with NCCL 2.30:
/// each of two ranks took 742 MiB of the H200 that they shared, 286 MiB more than 64 MiB and
/// all rooms of 16 channels.
const CODE: u64 = 352 * MIB;
/// State of a communicator, and the room where arguments of its kernels wait.
const STATE: u64 = 8 * MIB;
/// A channel's room to receive from a peer: 4 MiB, 4.7 MiB and half a MiB for the three
/// protocols, in units of 2 MiB.
const RECEIVES: u64 = 10 * MIB;
/// A channel's room to send to a peer. Where the peer reads it in place, the sender has the
/// room for the largest protocol.
const SENDS: u64 = 6 * MIB;
/// A channel's rooms to send to a peer and to receive from it. They are less than the sum of
/// both, since some rooms are on one side or the other.
const BOTH: u64 = 12 * MIB;
/// Peers of a rank in a channel: two in its ring, and others in its chain.
const NEIGHBOURS: usize = 3;
/// Rooms of a channel for sums in the switch, for each rank, in both directions.
const SWITCHED: u64 = 2 * MIB;

/// Largest number of channels of a communicator.
pub(crate) fn channels() -> usize {
    let said = std::env::var(MOST_CHANNELS).ok();
    let said = said.and_then(|said| said.trim().parse().ok());
    let said = said.filter(|number| *number > 0).unwrap_or(CHANNELS);
    said.min(MOST)
}

/// Bytes of the communicators of a rank at `place`.
pub(crate) fn bytes(place: RankLayout) -> u64 {
    of_channels(place, channels().next_power_of_two())
}

fn of_channels(place: RankLayout, channels: usize) -> u64 {
    let RankLayout {
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
    // Columns of logits go to the leads.
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
            let place = RankLayout {
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
        // Each rank leads.
        assert_eq!(bytes(1, 2, 2), pair + 4 * (10 + 6));
        // The ranks of a DP rank have a group of their own.
        let four = 352 + 8 + 4 * (36 + 8) + 8 + 4 * (12 + 4);
        assert_eq!(bytes(2, 4, 2), four + 4 * (30 + 6));
        assert_eq!(bytes(3, 4, 2), four + 4 * 12);
    }
}
