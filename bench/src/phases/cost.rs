//! Times of steps by depth and size, measured in the steps of arms that keep to one depth.

use std::collections::BTreeMap;

use lockstep_types::step::StageTimes;

use super::run::Step;

/// Groups of decode rows for which a prompt token costs about the same: up to 2 rows, 3 to
/// 6, and so on.
const SIZES: [u32; 5] = [2, 6, 12, 24, u32::MAX];

/// Measured times of steps.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    depths: BTreeMap<u32, Depth>,
}

/// Times of one depth.
#[derive(Debug, Clone, Default)]
struct Depth {
    /// Decode rows and seconds of steps without prompts, both ascending.
    curve: Vec<(f64, f64)>,
    /// Seconds that a prompt token adds, for each of [`SIZES`].
    prompt: [Option<f64>; SIZES.len()],
    /// Seconds of a step that has only prompts.
    alone: Option<f64>,
    /// Decode rows, ascending, and the parts of a step's seconds that drafting and taking in
    /// the outcome need.
    stages: Vec<(u32, [f64; 2])>,
}

impl Costs {
    /// The costs of steps of runs at one depth each. Times are made to rise with the rows: a
    /// fall is noise.
    pub fn new<'a>(steps: impl IntoIterator<Item = &'a Step>) -> Self {
        let mut by_depth: BTreeMap<u32, Vec<&Step>> = BTreeMap::new();
        for step in steps {
            by_depth.entry(step.depth).or_default().push(step);
        }
        let depths = by_depth.into_iter();
        Self {
            depths: depths
                .map(|(depth, steps)| (depth, Depth::new(&steps)))
                .collect(),
        }
    }

    /// Adds the depths of `other` that were not measured here.
    pub fn take_in(&mut self, other: &Self) {
        for (depth, costs) in &other.depths {
            let entry = self.depths.entry(*depth);
            entry.or_insert_with(|| costs.clone());
        }
    }

    /// The depths that were measured, ascending.
    pub fn depths(&self) -> impl Iterator<Item = u32> + '_ {
        self.depths.keys().copied()
    }

    /// Seconds of a step like [`Self::seconds`], also at depths that were not measured:
    /// these lie on a straight line between the measured ones.
    pub fn between(&self, depth: u32, decodes: u32, prompt_tokens: f64) -> Option<f64> {
        let at = |depth: u32| self.seconds(depth, decodes, prompt_tokens);
        if self.depths.contains_key(&depth) {
            return at(depth);
        }
        let (below, _) = self.depths.range(..depth).next_back()?;
        let (above, _) = self.depths.range(depth..).next()?;
        let (low, high) = (at(*below)?, at(*above)?);
        let part = f64::from(depth - below) / f64::from(above - below);
        Some(low + (high - low) * part)
    }

    /// Splits a step's time into stages, like the nearest depth and size that were measured.
    pub fn stages(&self, depth: u32, decodes: u32, seconds: f64) -> StageTimes {
        let depths = self.depths.iter();
        let nearest = depths.min_by_key(|(known, _)| known.abs_diff(depth));
        let sizes = nearest.into_iter().flat_map(|(_, costs)| &costs.stages);
        let nearest = sizes.min_by_key(|(known, _)| known.abs_diff(decodes));
        let [draft, extend] = nearest.map_or([0.0; 2], |(_, parts)| *parts);
        let us = |part: f64| (seconds * part * 1e6) as u32;
        StageTimes {
            draft_us: us(draft),
            verify_us: us(1.0 - draft - extend),
            extend_us: us(extend),
        }
    }

    /// Seconds of a step; `None` if nothing similar was measured.
    pub fn seconds(&self, depth: u32, decodes: u32, prompt_tokens: f64) -> Option<f64> {
        let costs = self.depths.get(&depth)?;
        if decodes == 0 {
            return costs.alone.or_else(|| costs.at(1.0));
        }
        let prompt = prompt_tokens * costs.prompt_token(decodes);
        Some((costs.at(f64::from(decodes))? + prompt).max(0.0))
    }
}

impl Depth {
    fn new(steps: &[&Step]) -> Self {
        let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        let decoding = steps.iter().filter(|step| step.decodes > 0);
        for step in decoding.clone().filter(|step| step.prompt_tokens == 0) {
            let (seconds, count) = sums.entry(step.decodes).or_default();
            *seconds += step.took;
            *count += 1.0;
        }
        let means = sums.into_iter();
        let points: Vec<(f64, f64, f64)> = means
            .map(|(rows, (seconds, count))| (f64::from(rows), seconds / count, count))
            .collect();
        let mut depth = Self {
            curve: rising(&points),
            stages: parts(decoding.clone().filter(|step| step.prompt_tokens == 0)),
            ..Self::default()
        };
        for (at, most) in SIZES.iter().enumerate() {
            let least = at.checked_sub(1).map_or(0, |below| SIZES[below]);
            let here = |step: &&&&Step| step.decodes > least && step.decodes <= *most;
            let (mut more, mut tokens) = (0.0, 0.0);
            for step in decoding.clone().filter(|step| here(&step)) {
                let plain = depth.at(f64::from(step.decodes)).unwrap_or(step.took);
                if step.prompt_tokens > 0 {
                    more += step.took - plain;
                    tokens += f64::from(step.prompt_tokens);
                }
            }
            // Noise may make the result negative: sums over all steps are right then.
            depth.prompt[at] = (tokens > 0.0).then(|| more / tokens);
        }
        let alone: Vec<f64> = steps
            .iter()
            .filter(|step| step.decodes == 0)
            .map(|step| step.took)
            .collect();
        depth.alone = (!alone.is_empty()).then(|| alone.iter().sum::<f64>() / alone.len() as f64);
        depth
    }

    /// Seconds of a step with `rows` decode rows. Between two measured sizes they lie on a
    /// straight line. Below the sizes they are those of the smallest, above the sizes they
    /// grow in proportion to the rows.
    fn at(&self, rows: f64) -> Option<f64> {
        let after = self.curve.partition_point(|(known, _)| *known < rows);
        let before = after.checked_sub(1).and_then(|at| self.curve.get(at));
        match (before, self.curve.get(after)) {
            (Some((from, low)), Some((to, high))) => {
                Some(low + (high - low) * (rows - from) / (to - from))
            }
            (None, Some((_, seconds))) => Some(*seconds),
            (Some((from, seconds)), None) => Some(seconds * rows / from),
            (None, None) => None,
        }
    }

    /// Seconds of a prompt token, for the nearest size that was measured.
    fn prompt_token(&self, decodes: u32) -> f64 {
        let own = SIZES.partition_point(|most| *most < decodes);
        let known = self.prompt.iter().enumerate();
        let known = known.filter_map(|(at, seconds)| Some((at, (*seconds)?)));
        let nearest = known.min_by_key(|(at, _)| at.abs_diff(own));
        nearest.map_or(0.0, |(_, seconds)| seconds)
    }
}

/// The parts of steps' time that drafting and taking in outcomes need, by decode rows.
fn parts<'a>(steps: impl Iterator<Item = &'a &'a Step>) -> Vec<(u32, [f64; 2])> {
    let mut sums: BTreeMap<u32, [f64; 3]> = BTreeMap::new();
    for step in steps {
        let StageTimes {
            draft_us,
            verify_us,
            extend_us,
        } = step.stages;
        let [draft, extend, all] = sums.entry(step.decodes).or_default();
        *draft += f64::from(draft_us);
        *extend += f64::from(extend_us);
        *all += f64::from(draft_us) + f64::from(verify_us) + f64::from(extend_us);
    }
    let part = |[draft, extend, all]: [f64; 3]| [draft, extend].map(|sum| sum / all.max(1.0));
    let sums = sums.into_iter();
    sums.map(|(rows, sums)| (rows, part(sums))).collect()
}

/// Isotonic regression by pooling neighbours that fall (Ayer et al., 1955). Turns places,
/// values and weights into places and values.
fn rising(points: &[(f64, f64, f64)]) -> Vec<(f64, f64)> {
    // Value, weight and number of places of each pool.
    let mut pools: Vec<(f64, f64, usize)> = Vec::new();
    for (_, value, weight) in points {
        pools.push((*value, *weight, 1));
        while let [.., (low, light, few), (high, heavy, many)] = pools[..]
            && low > high
        {
            let weight = light + heavy;
            let value = (low * light + high * heavy) / weight;
            pools.truncate(pools.len() - 2);
            pools.push((value, weight, few + many));
        }
    }
    let values = pools
        .into_iter()
        .flat_map(|(value, _, count)| std::iter::repeat_n(value, count));
    points.iter().map(|(at, ..)| *at).zip(values).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(depth: u32, decodes: u32, prompt_tokens: u32, took: f64) -> Step {
        Step {
            depth,
            decodes,
            prompt_tokens,
            took,
            ..Step::default()
        }
    }

    #[test]
    fn times_are_means_between_which_lines_run() {
        let steps = [
            step(2, 1, 0, 1.0),
            step(2, 1, 0, 3.0),
            step(2, 5, 0, 4.0),
            step(2, 1, 4, 4.0),
            step(2, 0, 9, 7.0),
            step(3, 1, 0, 9.0),
        ];
        let costs = Costs::new(&steps);
        assert_eq!(costs.depths().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(costs.seconds(2, 1, 0.0), Some(2.0));
        assert_eq!(costs.seconds(2, 3, 0.0), Some(3.0));
        assert_eq!(costs.seconds(2, 10, 0.0), Some(8.0));
        assert_eq!(costs.seconds(2, 1, 2.0), Some(3.0));
        assert_eq!(costs.seconds(2, 0, 2.0), Some(7.0));
        assert_eq!(costs.seconds(3, 0, 2.0), Some(9.0));
        assert_eq!(costs.seconds(4, 1, 0.0), None);
    }

    #[test]
    fn depths_between_measured_ones_and_stages_are_told() {
        let stages = |draft_us, verify_us| StageTimes {
            draft_us,
            verify_us,
            extend_us: 10,
        };
        let steps = [
            (1, stages(10, 80), 2.0),
            (3, stages(30, 60), 4.0),
            (3, stages(50, 40), 4.0),
        ];
        let steps = steps.map(|(depth, stages, took)| Step {
            stages,
            ..step(depth, 4, 0, took)
        });
        let costs = Costs::new(&steps);
        let at = |depth| costs.between(depth, 4, 0.0);
        assert_eq!(
            [0, 1, 2, 3, 4].map(at),
            [None, Some(2.0), Some(3.0), Some(4.0), None]
        );
        // The nearest depth and size: 40, 50 and 10 of 100 parts.
        let told = costs.stages(9, 1, 1e-3);
        assert_eq!((told.draft_us, told.extend_us), (400, 100));
        assert!(told.verify_us.abs_diff(500) <= 1, "{told:?}");
    }

    #[test]
    fn what_falls_is_pooled() {
        let points = [(1.0, 5.0, 1.0), (2.0, 3.0, 3.0), (4.0, 9.0, 1.0)];
        assert_eq!(rising(&points), [(1.0, 3.5), (2.0, 3.5), (4.0, 9.0)]);
    }
}
