//! Seeds of the choices of one request.

/// Returns one seed per choice. Choice 0 has the request's seed. Each further seed
/// depends only on the request's seed and on the choice's index, so choice `i` is the
/// same for every `n`.
pub(super) fn seeds(seed: Option<u64>, n: usize) -> Vec<u64> {
    let seed = seed.unwrap_or_else(rand::random);
    (0..n as u64)
        .map(|index| match index {
            0 => seed,
            _ => mix(seed ^ mix(index)),
        })
        .collect()
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). It is a bijection,
/// so distinct indices give distinct seeds.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_keeps_its_seed_whatever_n_is() {
        let all = seeds(Some(7), 8);
        assert_eq!(seeds(Some(7), 3), all[..3]);
        assert_eq!(all[0], 7);
        let mut distinct = all.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn without_a_seed_one_is_drawn() {
        assert_ne!(seeds(None, 1), seeds(None, 1));
    }
}
