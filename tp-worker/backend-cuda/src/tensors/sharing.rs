//! Sizes of allocations, as the driver makes them, and matrices that share one.

/// Alignment of allocations.
pub(crate) const ALIGNMENT: usize = 256;
/// Unit in which the driver takes device memory. Small arrays share a unit.
const UNIT: usize = 2 << 20;
/// Arrays of at least this many bytes have units of their own.
const LARGE: usize = 1 << 20;
/// Most matrices that share an allocation.
const MOST: usize = 16;

/// Bytes of device memory that an allocation of `bytes` takes.
pub(crate) fn whole(bytes: u64) -> u64 {
    let unit = if bytes < LARGE as u64 {
        ALIGNMENT
    } else {
        UNIT
    } as u64;
    bytes.max(1).div_ceil(unit).saturating_mul(unit)
}

/// Bytes from one matrix of `bytes` bytes to the next in an allocation that they share.
pub(crate) fn shared_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Number of matrices of `bytes` bytes that share an allocation: the least that wastes less than a
/// twentieth, or the one of all that wastes least; one where that wastes less than a tenth.
pub(crate) fn sharers(bytes: usize) -> usize {
    let wasted = |count: usize| {
        let taken = shared_bytes(bytes).saturating_mul(count) as u64;
        // Of a thousand bytes, so that numbers of matrices compare.
        (whole(taken) - taken).saturating_mul(1000) / taken.max(1)
    };
    if !(LARGE..=MOST * UNIT).contains(&bytes) || wasted(1) < 100 {
        return 1;
    }
    let enough = (1..=MOST).find(|count| wasted(*count) < 50);
    let best = || (1..=MOST).min_by_key(|count| wasted(*count));
    enough.or_else(best).unwrap_or(1)
}

/// Bytes that a matrix of `bytes` bytes takes as one of those that share an allocation.
pub(crate) fn share(bytes: u64) -> u64 {
    match usize::try_from(bytes).map(|bytes| (bytes, sharers(bytes))) {
        Ok((bytes, count)) if count > 1 => {
            let slab = whole((count * shared_bytes(bytes)) as u64);
            slab.div_ceil(count as u64)
        }
        _ => whole(bytes),
    }
}

/// Most bytes of the last allocation of such matrices that no matrix takes.
pub(crate) fn left(bytes: u64) -> u64 {
    match usize::try_from(bytes).map_or(1, sharers) {
        1 => 0,
        count => share(bytes).saturating_mul(count as u64 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn matrices_share_what_they_would_waste() {
        let halves = |count: usize| count * MIB / 2;
        // 1.5 MiB waste a quarter of 2 MiB, and 3 MiB a quarter of 4 MiB.
        assert_eq!([3, 6, 7].map(|count| sharers(halves(count))), [4, 2, 4]);
        assert_eq!([4, 8, 12].map(|count| sharers(halves(count))), [1; 3]);
        // Small arrays share units by themselves, and large ones waste little.
        assert_eq!([MIB - 1, 33 * MIB, 0].map(sharers), [1; 3]);
        assert_eq!(share(3 * MIB as u64), 3 * MIB as u64);
        assert_eq!(left(3 * MIB as u64), 3 * MIB as u64);
        assert_eq!(
            (share(4 * MIB as u64), left(4 * MIB as u64)),
            (4 * MIB as u64, 0)
        );
    }

    /// No size costs more than alone, and none that shares wastes more than a tenth.
    #[test]
    fn sharing_never_costs() {
        for bytes in (MIB..40 * MIB).step_by(77_777) {
            let (alone, shared) = (whole(bytes as u64), share(bytes as u64));
            assert!(shared <= alone, "{bytes}");
            if sharers(bytes) > 1 {
                assert!(shared * 10 <= bytes as u64 * 11, "{bytes}: {shared}");
            }
        }
    }
}
