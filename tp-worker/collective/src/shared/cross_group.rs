//! Finding that two ranks wait for each other in different groups.
//!
//! Ranks of one group compare their operations once all have arrived. Ranks that are in
//! different groups never arrive, and would wait for the deadline. But a region also shows how
//! far each rank of its group has come, and a rank is in the regions of all its groups. So a
//! rank that goes to sleep looks there for a peer that has run ahead of it:
//!
//! * this rank has published phase `p` of a group, and not `q` of another one;
//! * a peer in both has published `q` of the other one, and not `p` of this one.
//!
//! This is a proof, not a matter of patience. Ranks that share groups run the shared operations
//! in one order. So at any moment one of two such ranks has published all shared phases of the
//! other, and perhaps more. It can't be that each of them has published a phase that the other
//! lacks. The two ranks can't go on either. A phase ends when its last rank publishes it, and a
//! rank publishes no further phase before its last one has ended. So it does not matter if the
//! peer waits still, fails, or has left for another reason. Both ranks find the same, also a
//! rank that wakes because the other leaves, because published phases stay.
//!
//! Each look is made while others move, so its order counts:
//!
//! * What this rank published stands still, as this rank is here. No other thread of it runs
//!   operations that it shares with this peer: that would be no order.
//! * `q` is looked at before `p`. Phases only grow, so at the second look the peer has `q` and
//!   lacks `p`: both are true at one moment. The first look is an acquire, so a peer that
//!   published `p` first is seen to have done so.
//! * The peer describes `q` before it publishes `q`, and can't describe another phase in its
//!   place before this rank has published `q`.
//! * A look may come too early to see what the peer just published. Then the peer's look, which
//!   follows, finds the divergence, and its leaving wakes this rank. Otherwise this rank looks
//!   again when its sleep ends.
//!
//! Circles of more ranks, of which no two wait for each other in this way, end by the deadline.
//! There are none among all ranks and parts that don't overlap, as DP ranks are. One rank of
//! such a circle would wait in the group of all ranks. A rank of its part that has not come
//! there would wait for it in the part, and so these two would wait for each other.

use std::sync::atomic::Ordering;

use super::region::Region;
use super::seats::Seats;
use super::wait::reached;
use crate::Operation;

/// Returns a peer that keeps another order than this rank, by its name, and its operation. This
/// rank waits in `phase` of `region`. `names` are the names of the region's ranks, and `seats`
/// are this rank's.
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

    /// Start of the counts, chosen so that they wrap within a test.
    const START: u32 = u32::MAX - 2;

    /// Returns what rank 5 finds while rank 9 has published `other`. Rank 5 waits in the last
    /// of the groups, 0 or 1, that `own` lists in the order of their phases.
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
                // A rank publishes at most one phase more than another one.
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
