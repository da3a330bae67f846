//! Groups of experts, of which a row chooses some before it chooses experts.

use lockstep_types::{ExpertGroups, GroupWorth};

/// Experts among which a row chooses: those of its chosen groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    /// Experts of a group.
    size: usize,
    /// Bit for each group.
    groups: u64,
}

impl Open {
    /// All experts, in one group.
    const ALL: Self = Self {
        size: usize::MAX,
        groups: 1,
    };

    /// Chooses the groups of a row by its `weights` and their corrections.
    ///
    /// Models are published with rules that mask the experts of other groups, by zero where weights
    /// alone are compared and by -∞ where they are corrected. Both choose what this does: no weight
    /// is below zero, and an expert of weight zero adds nothing.
    pub fn of(weights: &[f32], correction: Option<&[f32]>, groups: Option<ExpertGroups>) -> Self {
        let Some(groups) = groups else {
            return Self::ALL;
        };
        let size = weights.len() / groups.count;
        let mut worths = [0.0; ExpertGroups::MOST];
        let worths = &mut worths[..groups.count];
        for (group, to) in worths.iter_mut().enumerate() {
            let experts = group * size..(group + 1) * size;
            let worth =
                |expert: usize| weights[expert] + correction.map_or(0.0, |values| values[expert]);
            *to = worth_of(groups.worth, experts.map(worth));
        }
        let mut chosen = 0;
        for _ in 0..groups.chosen {
            let mut best: Option<(usize, f32)> = None;
            for (group, &worth) in worths.iter().enumerate() {
                let free = chosen >> group & 1 == 0;
                if free && best.is_none_or(|(_, most)| worth > most) {
                    best = Some((group, worth));
                }
            }
            chosen |= best.map_or(0, |(group, _)| 1 << group);
        }
        Self {
            size,
            groups: chosen,
        }
    }

    /// Returns true if the row may choose an expert.
    pub fn has(self, expert: usize) -> bool {
        self.groups >> (expert / self.size) & 1 == 1
    }
}

/// Value of a group by what its experts are worth. A worth without order stays if it comes first,
/// and is left out otherwise.
fn worth_of(rule: GroupWorth, worths: impl Iterator<Item = f32>) -> f32 {
    let (mut largest, mut second) = (None::<f32>, f32::NEG_INFINITY);
    for worth in worths {
        match largest {
            Some(most) if worth > most => (largest, second) = (Some(worth), most),
            Some(_) if worth > second => second = worth,
            None => largest = Some(worth),
            Some(_) => {}
        }
    }
    let largest = largest.unwrap_or(f32::NEG_INFINITY);
    match rule {
        GroupWorth::Largest => largest,
        GroupWorth::TwoLargest => largest + second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [(usize, usize, usize); 4] = [(8, 4, 2), (12, 3, 1), (64, 8, 4), (6, 1, 1)];

    /// Numbers in 0..1 that look random, some of them equal.
    fn noise(seed: u64, len: usize) -> Vec<f32> {
        let number = |at: u64| {
            let x = (seed << 32).wrapping_add(at + 1);
            let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            ((x ^ (x >> 27)) >> 58) as f32 / 64.0
        };
        (0..len as u64).map(number).collect()
    }

    /// Chooses groups as the models' own code does, but for ties: by sorted lists.
    fn published(worths: &[f32], groups: ExpertGroups) -> Vec<usize> {
        let size = worths.len() / groups.count;
        let value = |experts: &[f32]| {
            let mut sorted = experts.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            match groups.worth {
                GroupWorth::Largest => sorted[0],
                GroupWorth::TwoLargest => sorted[0] + sorted[1],
            }
        };
        let mut all: Vec<(usize, f32)> = worths.chunks(size).map(value).enumerate().collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut chosen: Vec<_> = all[..groups.chosen].iter().map(|(at, _)| *at).collect();
        chosen.sort_unstable();
        chosen
    }

    #[test]
    fn groups_are_chosen_as_published() {
        for seed in 0..50 {
            for (experts, count, chosen) in SIZES {
                for worth in [GroupWorth::Largest, GroupWorth::TwoLargest] {
                    let groups = ExpertGroups {
                        count,
                        chosen,
                        worth,
                    };
                    let weights = noise(seed, experts);
                    let bias: Vec<f32> = noise(seed + 50, experts)
                        .iter()
                        .map(|x| 2.0 * x - 1.5)
                        .collect();
                    for correction in [None, Some(bias.as_slice())] {
                        let worths: Vec<f32> = (0..experts)
                            .map(|at| weights[at] + correction.map_or(0.0, |values| values[at]))
                            .collect();
                        let open = Open::of(&weights, correction, Some(groups));
                        let size = experts / count;
                        let expected = published(&worths, groups);
                        for expert in 0..experts {
                            let is_open = expected.contains(&(expert / size));
                            assert_eq!(open.has(expert), is_open, "{groups:?}, seed {seed}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn of_equal_groups_the_lower_are_chosen() {
        for worth in [GroupWorth::Largest, GroupWorth::TwoLargest] {
            let groups = ExpertGroups {
                count: 64,
                chosen: 3,
                worth,
            };
            for weight in [0.25, f32::NAN] {
                let open = Open::of(&[weight; 128], None, Some(groups));
                let found: Vec<_> = (0..128).filter(|expert| open.has(*expert)).collect();
                assert_eq!(found, [0, 1, 2, 3, 4, 5]);
            }
        }
    }

    /// Each rule has a row that the other one gets wrong.
    #[test]
    fn rules_differ() {
        let weights = [0.9, 0.0, 0.6, 0.5, 0.1, 0.1];
        let chosen = |worth| {
            let groups = ExpertGroups {
                count: 3,
                chosen: 1,
                worth,
            };
            let open = Open::of(&weights, None, Some(groups));
            (0..3).find(|group| open.has(2 * group))
        };
        assert_eq!(chosen(GroupWorth::Largest), Some(0));
        assert_eq!(chosen(GroupWorth::TwoLargest), Some(1));
    }
}
