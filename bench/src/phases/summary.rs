//! Sums over the runs of a list.

use lockstep_adaptive::{Decider, Seen};

use super::arms::Arm;
use super::bootstrap::{Estimate, paired};
use super::cost::Costs;
use super::list::List;
use super::replay::{self, Choice, Replay};
use super::run::{Run, Step};
use super::texts::Log;
use super::work::{SLICES, Work};
use crate::stats::Durations;

/// A list, and all measurements of it.
pub struct Measured {
    /// The list's phases.
    pub list: List,
    /// The phases' requests.
    pub work: Work,
    /// The arms, in the engines' order.
    pub arms: Vec<Arm>,
    /// The runs, by repetition and arm.
    pub runs: Vec<Vec<Run>>,
    /// Steps in flight at once.
    pub lag: usize,
}

/// Makes a policy by its name, which has seen only the given steps measured before serving.
pub type Deciders<'a> = dyn Fn(&str, &[Seen]) -> Option<Decider> + 'a;

/// Results of replays of a list, in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Replayed {
    /// Seconds of each arm. For policies they do not include the cost of drafting again
    /// after steps that drafted nothing.
    pub arms: Vec<Option<f64>>,
    /// See [`Replay::oracle`].
    pub oracle: Option<f64>,
    /// See [`Replay::clairvoyant`].
    pub clairvoyant: Option<f64>,
}

impl Measured {
    /// Mean seconds of an arm's runs.
    pub fn seconds(&self, arm: usize) -> f64 {
        let runs = self.runs.iter().map(|runs| runs[arm].seconds());
        runs.sum::<f64>() / self.runs.len() as f64
    }

    /// The arms that keep to one depth.
    pub fn fixed(&self) -> impl Iterator<Item = usize> + '_ {
        let arms = self.arms.iter().enumerate();
        arms.filter_map(|(at, arm)| arm.is_fixed().then_some(at))
    }

    /// The fixed arm that was fastest over the whole list.
    pub fn best_fixed(&self) -> Option<usize> {
        self.fixed()
            .min_by(|one, other| self.seconds(*one).total_cmp(&self.seconds(*other)))
    }

    /// Speed of an arm relative to `other`: 2 is twice as fast.
    pub fn ratio_to(&self, arm: usize, other: usize) -> Option<Estimate> {
        paired(&self.slices(), |slices| {
            let sums = self.sums(slices);
            (sums[arm] > 0.0).then(|| sums[other] / sums[arm])
        })
    }

    /// Speed of an arm relative to the fastest fixed arm, which is found anew for every
    /// resample.
    pub fn ratio_to_best(&self, arm: usize) -> Option<Estimate> {
        paired(&self.slices(), |slices| {
            let sums = self.sums(slices);
            let best = self.fixed().map(|at| sums[at]).min_by(f64::total_cmp)?;
            (sums[arm] > 0.0).then(|| best / sums[arm])
        })
    }

    /// Slices of each phase, over all repetitions.
    fn slices(&self) -> Vec<usize> {
        vec![SLICES * self.runs.len(); self.work.phases.len()]
    }

    /// Seconds of an arm in the slice with this index. All slices of the first phase, over
    /// the repetitions, come before the slices of the second.
    fn slice(&self, index: usize, arm: usize) -> f64 {
        let of_phase = SLICES * self.runs.len();
        let (phase, within) = (index / of_phase, index % of_phase);
        let (repetition, slice) = (within / SLICES, within % SLICES);
        self.runs[repetition][arm].slices[phase * SLICES + slice]
    }

    /// Seconds of each arm in these slices.
    fn sums(&self, slices: &mut dyn Iterator<Item = usize>) -> Vec<f64> {
        let mut sums = vec![0.0; self.arms.len()];
        for index in slices {
            for (arm, sum) in sums.iter_mut().enumerate() {
                *sum += self.slice(index, arm);
            }
        }
        sums
    }

    /// Tokens per second of an arm in a phase, over all repetitions. The tokens are the
    /// phase's part of the list's tokens.
    pub fn rate(&self, phase: usize, arm: usize) -> Option<f64> {
        let of_phase = SLICES * self.runs.len();
        let slices = phase * of_phase..(phase + 1) * of_phase;
        let seconds: f64 = slices.map(|index| self.slice(index, arm)).sum();
        let tokens = f64::from(self.work.tokens(phase)) * self.runs.len() as f64;
        (seconds > 0.0).then(|| tokens / seconds)
    }

    /// The fixed arm that was fastest in a phase, with its tokens per second.
    pub fn best_of_phase(&self, phase: usize) -> Option<(usize, f64)> {
        let rates = self
            .fixed()
            .filter_map(|at| Some((at, self.rate(phase, at)?)));
        rates.max_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// Speed of an arm relative to each phase at the best depth for that phase. That is an
    /// upper bound of what choosing a depth by phase can bring.
    pub fn ratio_to_best_of_phases(&self, arm: usize) -> Option<Estimate> {
        let of_phase = SLICES * self.runs.len();
        paired(&self.slices(), |slices| {
            let (mut own, mut best) = (0.0, 0.0);
            // The slices come phase by phase.
            for _ in &self.work.phases {
                let sums = self.sums(&mut slices.take(of_phase));
                own += sums[arm];
                best += self.fixed().map(|at| sums[at]).min_by(f64::total_cmp)?;
            }
            (own > 0.0).then(|| best / own)
        })
    }

    /// The phase in which an arm is slowest, compared with the phase's best fixed depth.
    /// Returns the phase and the arm's relative speed.
    pub fn worst_phase(&self, arm: usize) -> Option<(usize, f64)> {
        let phases = 0..self.work.phases.len();
        let ratios = phases.filter_map(|phase| {
            let (_, best) = self.best_of_phase(phase)?;
            Some((phase, self.rate(phase, arm)? / best))
        });
        ratios.min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// All gaps between outputs of an arm's requests.
    pub fn gaps(&self, arm: usize) -> Durations {
        let mut all = Durations::default();
        for runs in &self.runs {
            all.merge(&runs[arm].gaps);
        }
        all
    }

    /// Changes of an arm's depth per minute.
    pub fn switches_per_minute(&self, arm: usize) -> f64 {
        let runs = self.runs.iter().map(|runs| runs[arm].switches());
        let minutes = self.seconds(arm) * self.runs.len() as f64 / 60.0;
        runs.sum::<usize>() as f64 / minutes
    }

    /// Depths and the part of an arm's time at each, ascending.
    pub fn time_by_depth(&self, arm: usize) -> Vec<(u32, f64)> {
        let mut all: Vec<(u32, f64)> = Vec::new();
        for step in self.steps(arm) {
            match all.iter_mut().find(|(depth, _)| *depth == step.depth) {
                Some((_, seconds)) => *seconds += step.took,
                None => all.push((step.depth, step.took)),
            }
        }
        all.sort_unstable_by_key(|(depth, _)| *depth);
        let sum: f64 = all.iter().map(|(_, seconds)| seconds).sum();
        all.iter()
            .map(|(depth, seconds)| (*depth, seconds / sum))
            .collect()
    }

    /// Replays the list with the times of its own steps; `decider` makes the policies'
    /// deciders.
    pub fn replay(&self, log: &Log, decider: &Deciders<'_>) -> Replayed {
        let plain = self.costs(|arm| *arm == Arm::None);
        let mut fixed = self.costs(|arm| matches!(arm, Arm::Fixed(_)));
        if !self.arms.contains(&Arm::Fixed(0)) {
            fixed.take_in(&plain);
        }
        let at = |costs| Replay {
            work: &self.work,
            log,
            costs,
            prompt_tokens: self.prompt_tokens(),
            lag: self.lag,
        };
        let arms = self.arms.iter().map(|arm| match arm {
            Arm::None | Arm::NoneAgain => at(&plain).seconds(Choice::Fixed(0)),
            Arm::Fixed(depth) => at(&fixed).seconds(Choice::Fixed(*depth)),
            Arm::Policy(name) => {
                let profile = replay::profile(&fixed, self.list.streams());
                at(&fixed).policy_seconds(decider(name, &profile)?)
            }
        });
        Replayed {
            arms: arms.collect(),
            oracle: at(&fixed).oracle(),
            clairvoyant: at(&fixed).clairvoyant(),
        }
    }

    /// Prompt tokens of a request that were not in the prefix cache.
    pub fn prompt_tokens(&self) -> f64 {
        let items: usize = self.work.phases.iter().map(|(_, items)| items.len()).sum();
        let steps = (0..self.arms.len()).flat_map(|arm| self.steps(arm));
        let tokens: u64 = steps.map(|step| u64::from(step.prompt_tokens)).sum();
        let runs = self.arms.len() * self.runs.len();
        tokens as f64 / (items * runs).max(1) as f64
    }

    fn costs(&self, wanted: impl Fn(&Arm) -> bool) -> Costs {
        let arms = self.arms.iter().enumerate();
        let arms = arms.filter(|(_, arm)| wanted(arm));
        Costs::new(arms.flat_map(|(at, _)| self.steps(at)))
    }

    fn steps(&self, arm: usize) -> impl Iterator<Item = &Step> {
        self.runs.iter().flat_map(move |runs| &runs[arm].steps)
    }
}

#[cfg(test)]
pub(super) mod tests;
