//! Real deciders, identified by the rows that they have seen. Two deciders that will decide
//! alike from now on are one.

use std::collections::HashMap;

use lockstep_adaptive::{
    AdaptiveConfig, BatchSlot, Decider, DepthRange, Digest, Moment, Policies, Policy,
    PolicyFactory, Row, Seen, Tier,
};

use super::{DEPTHS, DP_RANKS, GROUP, Lacks, RANKS, leads};

/// Statistics of a DP rank's last step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Shown {
    /// The step had no rows.
    #[default]
    Nothing,
    /// The step had rows without drafts.
    Undrafted,
    /// All drafts were accepted, or none.
    Drafted { depth: u8, accepted: bool },
}

/// Everything that ranks bring to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Brought {
    /// Draft steps of the step.
    pub depth: u8,
    /// By DP rank: rows that decode after the step, and statistics of the last step.
    pub rows: [u8; DP_RANKS],
    pub shown: [Shown; DP_RANKS],
    pub range: DepthRange,
    /// True if the rows are taken for those of the step before.
    pub early: bool,
    /// The only DP rank whose rows are looked at; `None` = all are.
    pub alone: Option<u8>,
}

/// A decider that is known.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// The decider before this step, and the rows that ranks brought to the step.
    before: Option<(u32, Brought)>,
    /// Number of steps so far.
    steps: u8,
    /// Depths of the next step, and of the steps after it.
    next: [u8; 2],
}

/// All deciders so far, by number; the first one has seen nothing.
#[derive(Debug)]
pub struct Deciders {
    config: AdaptiveConfig,
    policies: Policies,
    lacks: Option<Lacks>,
    nodes: Vec<Node>,
    after: HashMap<(u32, Brought), u32>,
    alike: HashMap<(u8, [u8; 2]), u32>,
}

impl Deciders {
    pub fn new(initial: u8, lacks: Option<Lacks>) -> Self {
        let tier = |depth| Tier {
            depth,
            tokens: depth + 1,
        };
        let slots = vec![BatchSlot::new(1, DEPTHS.to_vec())];
        let tiers = DEPTHS.map(tier).to_vec();
        let mut policies = Policies::builtin();
        policies.add(std::sync::Arc::new(Ladders));
        let first = Node {
            before: None,
            steps: 0,
            next: [initial; 2],
        };
        Self {
            config: AdaptiveConfig::new(Ladders.name(), initial.into(), tiers, slots),
            policies,
            lacks,
            nodes: vec![first],
            after: HashMap::new(),
            alike: HashMap::from([((0, [initial; 2]), 0)]),
        }
    }

    /// Returns the depth of the next step. No plan may ask for more.
    pub fn depth(&self, at: u32) -> u8 {
        self.nodes[at as usize].next[0]
    }

    /// Returns the depth that was decided last.
    pub fn last(&self, at: u32) -> u8 {
        self.nodes[at as usize].next[1]
    }

    /// Begins the next step and decides. Returns the number of the decider after it.
    pub fn decide(&mut self, at: u32, brought: Brought) -> u32 {
        if let Some(known) = self.after.get(&(at, brought)) {
            return *known;
        }
        let steps = self.nodes[at as usize].steps + 1;
        let mut decider = self.rebuild(at);
        self.step(&mut decider, steps, &brought);
        let depth = |decider: &Decider| u8::try_from(decider.depth()).unwrap_or(u8::MAX);
        let now = depth(&decider);
        decider.begin();
        let next = [now, depth(&decider)];
        let number = self.nodes.len() as u32;
        let alike = *self.alike.entry((steps, next)).or_insert(number);
        if alike == number {
            self.nodes.push(Node {
                before: Some((at, brought)),
                steps,
                next,
            });
        }
        self.after.insert((at, brought), alike);
        alike
    }

    /// Rebuilds a decider from all that it has seen.
    fn rebuild(&self, at: u32) -> Decider {
        let mut way = Vec::new();
        let mut node = self.nodes[at as usize];
        while let Some((before, brought)) = node.before {
            way.push((node.steps, brought));
            node = self.nodes[before as usize];
        }
        let decider = Decider::new(&self.config, &self.policies, &[]);
        let mut decider = decider.expect("its policy is known");
        for (step, brought) in way.into_iter().rev() {
            self.step(&mut decider, step, &brought);
        }
        decider
    }

    fn step(&self, decider: &mut Decider, step: u8, brought: &Brought) {
        decider.begin();
        decider.decide(&self.rows(step, brought), brought.range);
    }

    fn rows(&self, step: u8, brought: &Brought) -> [Row; RANKS] {
        std::array::from_fn(|rank| {
            let group = GROUP[rank];
            let looked_at = brought
                .alone
                .is_none_or(|alone| usize::from(alone) == group);
            let counts = leads(rank) && looked_at;
            let (shown, decodes) = match counts {
                true => (brought.shown[group], brought.rows[group]),
                false => (Shown::Nothing, 0),
            };
            Row {
                step: u64::from(step) - u64::from(brought.early),
                depth: brought.depth.into(),
                depths: depths(self.lacks, rank),
                decodes: decodes.into(),
                seen: seen(shown),
                ..Row::default()
            }
        })
    }
}

/// Returns the depths that a rank can run, as bits.
pub fn depths(lacks: Option<Lacks>, rank: usize) -> u32 {
    let lacking = lacks.filter(|lacks| lacks.rank == rank);
    lacking.map_or(u32::MAX, |lacks| !(1 << lacks.depth))
}

fn seen(shown: Shown) -> Seen {
    let mut seen = Seen {
        decodes: u32::from(shown != Shown::Nothing),
        ..Seen::default()
    };
    if let Shown::Drafted { depth, accepted } = shown {
        seen.depth = depth.into();
        seen.count(depth.into(), if accepted { depth.into() } else { 0 });
    }
    seen
}

/// Policy that goes one rung up if more drafts are accepted than not, or if nothing is drafted,
/// and one rung down if fewer are. It keeps no state, so a decider's future depends only on the
/// depths that it has decided.
#[derive(Debug)]
struct Ladders;

#[derive(Debug)]
struct Ladder;

impl PolicyFactory for Ladders {
    fn name(&self) -> &str {
        "ladder"
    }

    fn summary(&self) -> &str {
        "one rung at a time, by whether most first drafts are accepted"
    }

    fn build(&self, _config: &AdaptiveConfig) -> Box<dyn Policy> {
        Box::new(Ladder)
    }
}

impl Policy for Ladder {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        let (at_risk, accepted) = (moment.seen.at_risk[0], moment.seen.accepted[0]);
        let up = moment.decided + 1;
        let down = moment.decided.saturating_sub(1);
        match (2 * accepted).cmp(&at_risk) {
            _ if moment.seen.decodes == 0 => moment.decided,
            _ if at_risk == 0 => up,
            std::cmp::Ordering::Greater => up,
            std::cmp::Ordering::Equal => moment.decided,
            std::cmp::Ordering::Less => down,
        }
    }

    fn digest(&self, _digest: &mut Digest) {}
}
