//! Arms: ways to choose depths, run over a list of phases.

use lockstep_adaptive::{
    AdaptiveConfig, BatchSlot, Decider, DepthRange, Policies, Row, Seen, Tier,
};

use crate::world::{Machine, Request, Text, hash};

/// Depths that may be chosen.
pub const DEPTHS: [u32; 6] = [0, 1, 2, 3, 5, 7];
/// Tokens of a prompt that is warm in the prefix cache.
const PROMPT: u32 = 16;

/// Work that streams share: each takes the next request when its request is done.
#[derive(Clone, Copy)]
pub struct Phase {
    pub text: Text,
    pub streams: usize,
    pub requests: u32,
    /// Tokens of the first and of the last request.
    pub tokens: (u32, u32),
}

/// Way in which depths are chosen.
#[derive(Clone, Copy, PartialEq)]
pub enum Arm {
    Fixed(u32),
    Policy(&'static str),
    /// The best depth of the next step, from true hazards and times.
    Oracle,
}

/// Results of an arm.
#[derive(Clone, Default)]
pub struct Outcome {
    /// Microseconds of each phase, without noise.
    pub phase_us: Vec<u64>,
    pub switches: u32,
    pub steps: u32,
}

impl Outcome {
    pub fn us(&self) -> u64 {
        self.phase_us.iter().sum()
    }

    pub fn switches_a_minute(&self) -> u64 {
        u64::from(self.switches) * 60_000_000 / self.us()
    }
}

/// Runs `phases` one after the other.
pub fn run(machine: &Machine, phases: &[Phase], arm: Arm, seed: u64) -> Outcome {
    let mut engine = Engine::new(machine, arm, seed);
    for (at, phase) in phases.iter().enumerate() {
        engine.run(at, phases.len(), phase);
    }
    engine.outcome
}

struct Engine<'a> {
    machine: &'a Machine,
    arm: Arm,
    seed: u64,
    decider: Decider,
    seen: Seen,
    depth: u32,
    /// Microseconds since the start, and at the last change of depth; without noise.
    clock_us: u64,
    changed_us: u64,
    outcome: Outcome,
}

/// A stream's request, and the number of tokens that it has emitted.
type Stream = (Request, u32);

impl<'a> Engine<'a> {
    fn new(machine: &'a Machine, arm: Arm, seed: u64) -> Self {
        let (policy, initial) = match arm {
            Arm::Fixed(depth) => ("static", depth),
            Arm::Policy(name) => (name, 3),
            Arm::Oracle => ("static", 0),
        };
        let policies = Policies::builtin();
        let tier = |depth| Tier {
            depth,
            tokens: depth + 1,
        };
        let tiers = DEPTHS.map(tier).to_vec();
        let slots = match policy {
            "ema" | "throughput_aware" => {
                policies.find(policy).map(|policy| policy.default_slots(7))
            }
            _ => None,
        };
        let slots = slots.unwrap_or_else(|| vec![BatchSlot::new(1, DEPTHS.to_vec())]);
        let config = AdaptiveConfig::new(policy, initial, tiers, slots);
        let profile = machine.profile(32, 7);
        Self {
            machine,
            arm,
            seed,
            decider: Decider::new(&config, &policies, &profile).unwrap(),
            seen: Seen::default(),
            depth: initial,
            clock_us: 0,
            changed_us: 0,
            outcome: Outcome::default(),
        }
    }

    fn run(&mut self, number: usize, phases: usize, phase: &Phase) {
        let of_phase = |at: u32| {
            let (first, last) = phase.tokens;
            let tokens = first + (last - first) * at / phase.requests.max(1);
            let id = hash([self.seed, number as u64, at.into(), 7]);
            Request::new(id, tokens, phase.text)
        };
        let mut waiting = (0..phase.requests)
            .map(of_phase)
            .collect::<Vec<_>>()
            .into_iter();
        let mut streams: Vec<Stream> = Vec::new();
        let drift = 100 + (self.machine.drift - 100) * number as u32 / phases as u32;
        let mut us = 0;
        loop {
            let free = phase.streams - streams.len();
            let before = streams.len();
            streams.extend(waiting.by_ref().take(free).map(|request| (request, 0)));
            if streams.is_empty() {
                break;
            }
            let joined = (streams.len() - before) as u32;
            us += self.step(&mut streams, joined, drift);
        }
        self.outcome.phase_us.push(us);
    }

    /// Runs one step. Returns its microseconds without noise.
    fn step(&mut self, streams: &mut Vec<Stream>, joined: u32, drift: u32) -> u64 {
        let depth = self.choose(streams, joined);
        let prompts = joined * PROMPT;
        self.outcome.steps += 1;
        if depth != self.depth {
            self.outcome.switches += 1;
            self.changed_us = self.clock_us;
        }
        self.depth = depth;
        let rows = streams.len() as u32;
        let proposes = |(request, emitted): &Stream| request.proposes(*emitted, depth);
        let drafts = streams.iter().map(proposes).sum::<u32>();
        let tokens = rows + drafts + prompts;
        let mut seen = Seen {
            depth,
            decodes: rows,
            tokens,
            prompt_tokens: prompts,
            ..Seen::default()
        };
        for (request, emitted) in streams.iter_mut() {
            let proposed = request.proposes(*emitted, depth);
            let accepted = request.accepts(*emitted, proposed);
            seen.count(proposed, accepted);
            *emitted += accepted + 1;
        }
        streams.retain(|(request, emitted)| emitted < &request.tokens);
        let mut us = self.machine.step_us(rows, depth, tokens, seen.taken());
        us[1] = us[1] * drift / 100;
        if self.outcome.switches > 0 && self.clock_us - self.changed_us < 2_000 {
            us[1] = us[1] * self.machine.settles / 100;
        }
        let slowness = u64::from(self.machine.slowness(self.seed, self.clock_us));
        let noisy = |part: u64| {
            let draw = |at| hash([self.seed, self.outcome.steps.into(), part, at]);
            // Two uniform draws make a triangle of two fifths on each side, and one step in 400
            // takes ten times as long.
            let jitter = 600 + draw(0) % 400 + draw(1) % 401;
            let outlier = if draw(2).is_multiple_of(400) { 10 } else { 1 };
            let slow = jitter * outlier * slowness / 100;
            u32::try_from(u64::from(us[part as usize]) * slow / 1000).unwrap()
        };
        (seen.draft_us, seen.verify_us, seen.extend_us) = (noisy(0), noisy(1), noisy(2));
        self.seen = seen;
        let us = us.into_iter().map(u64::from).sum();
        self.clock_us += us;
        us
    }

    /// Returns the next step's depth, as ranks agree on it.
    fn choose(&mut self, streams: &[Stream], joined: u32) -> u32 {
        if self.arm == Arm::Oracle {
            return self.best(streams);
        }
        let depth = self.decider.depth();
        self.decider.begin();
        let row = Row {
            step: u64::from(self.outcome.steps) + 1,
            depth,
            depths: u32::MAX,
            decodes: streams.len() as u32,
            joined,
            seen: self.seen,
            ..Row::default()
        };
        self.decider.decide(&[row], DepthRange::default());
        depth
    }

    /// Returns the best depth, from true hazards and times.
    fn best(&self, streams: &[Stream]) -> u32 {
        let rows = streams.len() as u32;
        // Expected tokens are in thousandths.
        let expected = |depth: u32| -> u64 {
            let of_row = |(request, emitted): &Stream| {
                let mut survival = 1000;
                let tokens = (0..depth as usize).map(|at| {
                    survival = survival * u64::from(request.hazard(*emitted, at)) / 1000;
                    survival
                });
                1000 + tokens.sum::<u64>()
            };
            streams.iter().map(of_row).sum()
        };
        let us = |depth: u32| -> u64 {
            let taken = (expected(depth) / 1000) as u32;
            let us = self.machine.step_us(rows, depth, rows * (depth + 1), taken);
            us.into_iter().map(u64::from).sum()
        };
        let rate = |depth: &u32| (expected(*depth) << 20) / us(*depth);
        DEPTHS.into_iter().max_by_key(rate).unwrap_or(0)
    }
}
