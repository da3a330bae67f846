//! Finding that two ranks wait for each other in different groups.
//!
//! Ranks of one group compare what they run when all have arrived. Ranks that
//! are in different groups never arrive, and would wait for the deadline. But a
//! region also shows how far each rank of its group has come, and a rank is in
//! the regions of all its groups. So who goes to sleep looks there for a peer
//! that has run ahead of it:
//!
//! * this rank has published phase `p` of a group, and not `q` of another one;
//! * a peer in both has published `q` of the other one, and not `p` of this one.
//!
//! That is no matter of patience, it is a proof. Ranks that share groups run
//! what they share in one order, so of the phases that two such ranks have
//! published at any moment, those of the one are the first of the other's:
//! neither has any that the other lacks while it lacks one of the other's. The
//! two can't go on either: a phase ends with the last who publishes it, and a
//! rank publishes none before its last one has ended. So it does not matter
//! whether the peer waits still, fails or has left for another reason. Both
//! ranks find the same, also the one that the other's leaving wakes, because
//! what is published stays.
//!
//! Each look is made while others move, so its order counts:
//!
//! * What this rank published stands still, as it is here. No other thread of it
//!   runs what it shares with this peer: that would be no order.
//! * `q` is looked at before `p`. Phases only grow, so at the second look the
//!   peer has `q` and lacks `p`: both are true at one moment. And the first look
//!   is an acquire, so a peer that published `p` first is seen to have done so.
//! * The peer describes `q` before it publishes it, and can't describe another
//!   phase in its place before this rank has published `q`.
//! * A look may come too early to see what the peer just published. Then the
//!   peer's look, which follows that, finds the divergence, and its leaving
//!   wakes this rank; or else this rank looks again when its sleep ends.
//!
//! Circles of more ranks, no two of which wait for each other so, end by the
//! deadline. There are none among all ranks and parts that don't overlap, as DP
//! ranks are: somebody in the circle waits in all ranks' group, and is waited
//! for in its part by one that has not come there.

use std::sync::atomic::Ordering;

use super::region::Region;
use super::seats::Seats;
use super::wait::reached;
use crate::Operation;

/// The name of a peer that keeps another order than this rank, and what it runs.
/// This rank waits in `phase` of `region`, whose ranks have these `names`, and
/// has `seats`.
pub(crate) fn find(
    seats: &Seats,
    region: &Region,
    names: &[usize],
    phase: u32,
) -> Option<(usize, Operation)> {
    seats.find(|seat| {
        let own = seat.region.control(seat.rank);
        let next = own.arrived.load(Ordering::Relaxed).wrapping_add(1);
        seat.names.iter().enumerate().find_map(|(peer, &name)| {
            let control = seat.region.control(peer);
            let here = names.iter().position(|&other| other == name)?;
            let ahead =
                reached(&control.arrived, next) && !reached(&region.control(here).arrived, phase);
            ahead.then(|| (name, control.operation(next as usize % 2)))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::Kind;
    use crate::shared::seats::Seat;

    /// Where counts begin: they wrap within a test.
    const START: u32 = u32::MAX - 2;

    /// What rank 5 finds, which waits in the last of the groups, 0 or 1, that
    /// `own` lists in the order of their phases, while rank 9 has published
    /// `other`.
    fn found(own: &[usize], other: &[usize]) -> Option<(usize, Operation)> {
        let names: Arc<[usize]> = [5, 9].into();
        let regions = [(); 2].map(|()| Arc::new(Region::allocate(2, 1)));
        let seats = Seats::default();
        for (group, region) in regions.iter().enumerate() {
            for (rank, run) in [own, other].into_iter().enumerate() {
                let phases = run.iter().filter(|&&at| at == group).count() as u32;
                let phase = START.wrapping_add(phases);
                let control = region.control(rank);
                control.arrived.store(phase, Ordering::Relaxed);
                let words = &control.operations[phase as usize % 2];
                let numbers = [group as u64, phases.into(), Kind::Barrier as u64];
                let write = |(word, number)| AtomicU64::store(word, number, Ordering::Relaxed);
                words.iter().zip(numbers).for_each(write);
            }
            let region = region.clone();
            let (rank, names) = (0, names.clone());
            seats.take(Seat {
                region,
                rank,
                names,
            });
        }
        let here = &regions[*own.last().expect("it waits")];
        let phase = here.control(0).arrived.load(Ordering::Relaxed);
        find(&seats, here, &names, phase)
    }

    #[test]
    fn parts_of_one_order_are_right() {
        for order in 0_usize..64 {
            let order: [usize; 6] = std::array::from_fn(|at| order >> at & 1);
            for own in 1..=6 {
                // A rank publishes one more than another one at most.
                for other in own - 1..=6.min(own + 1) {
                    let found = found(&order[..own], &order[..other]);
                    assert_eq!(found, None, "{order:?}: {own}, {other}");
                }
            }
        }
    }

    #[test]
    fn different_orders_are_found_on_both_sides() {
        for order in 0_usize..32 {
            let common: [usize; 5] = std::array::from_fn(|at| order >> at & 1);
            let run = |last: usize| [&common[..], &[last]].concat();
            for last in [0, 1] {
                let theirs = run(1 - last);
                let (name, operation) = found(&run(last), &theirs).expect("they differ");
                assert_eq!((name, operation.group), (9, 1 - last as u64));
                let phases = theirs.iter().filter(|&&at| at == 1 - last).count();
                assert_eq!(operation.sequence, phases as u64);
            }
        }
    }
}
