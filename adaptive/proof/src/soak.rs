//! Very many steps of groups of random sizes, whose ranks each decide for themselves.
//!
//! Every rank has its own decider, fed with the same rows. The planner's rule follows the
//! answers, one or two steps late. Ranks are idle or hot, join in crowds, lack depths, and
//! bring absurd times. Operators pin, cap and let go. Groups end and begin anew.

use anyhow::ensure;
use lockstep_adaptive::{
    AdaptiveConfig, BatchSlot, Decider, DepthRange, LAG, Policies, Row, Seen, Tier,
};
use lockstep_planner::{PlanDepth, PlannerConfig, ReserveConfig};

const DEPTHS: [u32; 6] = [0, 1, 2, 3, 5, 7];
/// `goodput` takes five times as long to decide as the other policies.
const POLICIES: [&str; 6] = [
    "goodput",
    "ema",
    "ema",
    "throughput_aware",
    "static",
    "static",
];
/// Every rank reads the rows of all, so the time grows with the square of a group's size.
const SIZES: [usize; 8] = [1, 2, 2, 3, 4, 4, 8, 64];
/// Most steps of a group, times the square of its ranks; and the most steps regardless.
const LIFE: u32 = 60_000;
const LONGEST: u32 = 8_000;

/// Counts of a soak.
#[derive(Debug, Default)]
pub struct Soaked {
    pub groups: u64,
    /// Steps of groups, and steps of their ranks.
    pub steps: u64,
    pub rank_steps: u64,
    /// Steps at another depth than the step before.
    pub switches: u64,
    /// Switches while some rank was idle.
    pub while_idle: u64,
}

/// Goes on until all ranks together have made `rank_steps` steps.
///
/// # Errors
/// An event that must never happen, with the seed that made it.
pub fn soak(rank_steps: u64, seed: u64) -> anyhow::Result<Soaked> {
    let mut soaked = Soaked::default();
    let mut group = seed << 32;
    while soaked.rank_steps < rank_steps {
        group += 1;
        soaked.groups += 1;
        live(group, &mut soaked).map_err(|what| what.context(format!("group {group}")))?;
    }
    Ok(soaked)
}

/// A random generator for one group (SplitMix64: Steele, Lea & Flood 2014).
struct Draw(u64);

impl Draw {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    fn below(&mut self, most: u32) -> u32 {
        ((u128::from(self.word()) * u128::from(most)) >> 64) as u32
    }

    fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }
}

/// Runs one group from its start to its end.
fn live(number: u64, soaked: &mut Soaked) -> anyhow::Result<()> {
    let mut draw = Draw(number);
    let ranks = SIZES[draw.below(SIZES.len() as u32) as usize];
    let policy = POLICIES[draw.below(POLICIES.len() as u32) as usize];
    let mut group = Group::new(policy, ranks, &mut draw)?;
    let longest = LONGEST.min(LIFE / (ranks * ranks) as u32);
    let steps = 1 + draw.below(longest);
    for _ in 0..steps {
        group.step(&mut draw, soaked)?;
    }
    Ok(())
}

struct Group {
    deciders: Vec<Decider>,
    plan: PlanDepth,
    step: u64,
    /// Answers that are under way: step and depth.
    answers: std::collections::VecDeque<(u64, u32)>,
    overlap: bool,
    range: DepthRange,
    /// Depths that each rank can run, as bits; 0 is always one of them.
    can_run: Vec<u32>,
    /// Rows of each rank, and accepted drafts in a thousand.
    load: Vec<u32>,
    hazard: Vec<u32>,
    rows: Vec<Row>,
    last: u32,
}

impl Group {
    fn new(policy: &str, ranks: usize, draw: &mut Draw) -> anyhow::Result<Self> {
        let tier = |depth| Tier {
            depth,
            tokens: depth + 1,
        };
        let slots = vec![
            BatchSlot::new(1, DEPTHS.to_vec()),
            BatchSlot::new(16, DEPTHS[..4].to_vec()),
        ];
        let tiers = DEPTHS.map(tier).to_vec();
        let config = AdaptiveConfig::new(policy, DEPTHS[0], tiers, slots);
        let policies = Policies::builtin();
        let deciders = (0..ranks).map(|_| Decider::new(&config, &policies, &[]));
        let plan = PlanDepth::new(&PlannerConfig {
            initial_depth: DEPTHS[0],
            reserve: ReserveConfig {
                steps: 7,
                ..ReserveConfig::none()
            },
            adapts: true,
            ..PlannerConfig::default()
        });
        let lacks = |draw: &mut Draw| match draw.once_in(8) {
            true => !(1 << DEPTHS[1 + draw.below(5) as usize]),
            false => u32::MAX,
        };
        Ok(Self {
            deciders: deciders.collect::<Result<_, _>>()?,
            plan,
            step: 0,
            answers: std::collections::VecDeque::new(),
            overlap: draw.once_in(2),
            range: DepthRange::default(),
            can_run: (0..ranks).map(|_| lacks(draw)).collect(),
            load: vec![0; ranks],
            hazard: vec![500; ranks],
            rows: vec![Row::default(); ranks],
            last: DEPTHS[0],
        })
    }

    fn step(&mut self, draw: &mut Draw, soaked: &mut Soaked) -> anyhow::Result<()> {
        self.step += 1;
        self.change(draw);
        self.plan.begin(|| self.load.iter().sum());
        let depth = self.plan.steps();
        self.plan.launch(|| self.load.iter().sum());
        let agreed = self.deciders[0].depth();
        ensure!(depth <= agreed, "a plan asks for {depth} of {agreed}");
        ensure!(
            self.can_run.iter().all(|can| can & (1 << depth) != 0),
            "somebody can't run {depth}"
        );
        for (rank, row) in self.rows.iter_mut().enumerate() {
            row.step = self.step;
            row.depth = depth;
            row.depths = self.can_run[rank];
            row.decodes = self.load[rank];
        }
        self.decide(agreed)?;
        for rank in 0..self.rows.len() {
            self.rows[rank].seen = self.run(rank, depth, draw);
        }
        soaked.steps += 1;
        soaked.rank_steps += self.rows.len() as u64;
        if depth != self.last {
            soaked.switches += 1;
            soaked.while_idle += u64::from(self.load.contains(&0));
        }
        self.last = depth;
        Ok(())
    }

    /// Lets every rank decide. The scheduler hears of the decision one or two steps later.
    fn decide(&mut self, agreed: u32) -> anyhow::Result<()> {
        let mut all = None;
        for (rank, decider) in self.deciders.iter_mut().enumerate() {
            ensure!(
                decider.depth() == agreed,
                "rank {rank} begins at {}",
                decider.depth()
            );
            decider.begin();
            let decided = decider.decide(&self.rows, self.range);
            let own = (decided, decider.digest());
            let first = *all.get_or_insert(own);
            ensure!(first == own, "rank {rank} has {own:?}, others {first:?}");
            let can = self.can_run.iter().all(|can| can & (1 << decided) != 0);
            ensure!(can, "{decided} is decided, which somebody can't run");
        }
        if let Some((decided, _)) = all {
            self.answers.push_back((self.step, decided));
        }
        let late = if self.overlap { LAG as usize - 1 } else { 0 };
        while self.answers.len() > late {
            if let Some((step, depth)) = self.answers.pop_front() {
                self.plan.decide(step, depth);
            }
        }
        Ok(())
    }

    /// Changes loads and the operator's range.
    fn change(&mut self, draw: &mut Draw) {
        let rank = draw.below(self.load.len() as u32) as usize;
        if draw.once_in(16) {
            self.load[rank] = match draw.below(4) {
                0 => 0,
                1 => 24,
                _ => 1 + draw.below(4),
            };
            self.hazard[rank] = draw.below(1000);
        }
        if draw.once_in(512) {
            let depth = DEPTHS[draw.below(6) as usize];
            self.range = match draw.below(3) {
                0 => DepthRange {
                    least: depth,
                    most: depth,
                },
                1 => DepthRange {
                    least: 0,
                    most: depth,
                },
                _ => DepthRange::default(),
            };
            self.plan.set_range(self.range);
        }
    }

    /// Returns the statistics of a rank's part of the step.
    fn run(&self, rank: usize, depth: u32, draw: &mut Draw) -> Seen {
        let rows = self.load[rank];
        let mut seen = Seen {
            depth,
            decodes: rows,
            tokens: rows * (depth + 1),
            draft_us: depth * (500 + rows * 10),
            verify_us: 20_000 + rows * (depth + 1) * 100 + draw.below(3_000),
            ..Seen::default()
        };
        if draw.once_in(64) {
            seen.prompt_tokens = draw.below(512);
            seen.tokens += seen.prompt_tokens;
        }
        if draw.once_in(4096) {
            seen.verify_us = draw.word() as u32;
        }
        let mut left = rows;
        for at in 0..depth as usize {
            seen.at_risk[at] = left;
            // All rows of a position share one draw.
            left = (left * self.hazard[rank] + draw.below(1000)) / 1000;
            seen.accepted[at] = left;
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_over_random_groups() {
        let soaked = soak(200_000, 1).expect("nothing that must not happen");
        assert!(
            soaked.switches > 500 && soaked.while_idle > 100,
            "{soaked:?}"
        );
    }
}
