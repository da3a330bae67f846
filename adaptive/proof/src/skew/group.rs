//! DP ranks that answer requests in steps, at depths that an arm chooses.

use lockstep_adaptive::{Row, Seen};
use lockstep_speculation::OwnDepths;

use super::{
    machine::{Machine, Part},
    request::{Request, Text, hash},
};

/// Most prompt tokens of one step on a DP rank.
pub const CHUNK: u32 = 256;

/// Load of a DP rank in a phase: streams, each with one request after the other.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub text: Text,
    pub streams: u32,
    /// Prompt tokens that are not cached.
    pub prompt: u32,
    /// Least and most tokens of an answer.
    pub tokens: (u32, u32),
}

/// All DP ranks, at work.
pub struct Group<'a> {
    machine: &'a Machine,
    seed: u64,
    ranks: Vec<Rank>,
    parts: Vec<Part>,
    phase: u64,
    /// Number of steps since the start, and in the present group.
    steps: u64,
    step: u64,
    /// Depth of the step before.
    last: u32,
    /// True if requests draft less deep than agreed when their own past says so.
    cuts: bool,
}

/// A request, and the depths that its own drafts suggest.
struct Stream {
    request: Request,
    own: OwnDepths,
}

/// State of a DP rank.
#[derive(Default)]
struct Rank {
    running: Vec<Stream>,
    load: Option<Load>,
    /// Number of requests so far.
    begun: u64,
    seen: Seen,
}

impl<'a> Group<'a> {
    pub fn new(machine: &'a Machine, dp_size: usize, cuts: bool, seed: u64) -> Self {
        Self {
            machine,
            seed,
            ranks: (0..dp_size).map(|_| Rank::default()).collect(),
            parts: vec![Part::default(); dp_size],
            phase: 0,
            steps: 0,
            step: 0,
            last: u32::MAX,
            cuts,
        }
    }

    /// Begins a phase. Running requests are aborted, so that all arms begin the phase alike.
    /// Otherwise an arm that got further before would have other prompts left.
    pub fn load(&mut self, loads: impl IntoIterator<Item = Load>) {
        self.phase += 1;
        for (rank, load) in self.ranks.iter_mut().zip(loads) {
            rank.load = Some(load);
            rank.running.clear();
            rank.begun = 0;
        }
    }

    /// Returns the number of rows that decode in the next step.
    pub fn decodes(&self) -> u32 {
        let running = self.ranks.iter().flat_map(|rank| &rank.running);
        running.filter(|stream| stream.request.prompt == 0).count() as u32
    }

    /// Begins a new group, whose first step is number 1.
    pub fn restart(&mut self) {
        self.step = 0;
        self.last = u32::MAX;
        for rank in &mut self.ranks {
            rank.seen = Seen::default();
        }
    }

    /// Begins a step of `depth`, in which streams without a request take one. Fills in every DP
    /// rank's row.
    pub fn begin(&mut self, depth: u32, rows: &mut Vec<Row>) {
        self.steps += 1;
        self.step += 1;
        rows.clear();
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            if let Some(load) = rank.load {
                while rank.running.len() < load.streams as usize {
                    rank.begun += 1;
                    let id = hash([self.seed, self.phase, number as u64, rank.begun]);
                    let request = Request::new(id, load.text, load.prompt, load.tokens);
                    let own = OwnDepths::new(1);
                    rank.running.push(Stream { request, own });
                }
            }
            rows.push(rank.row(self.step, depth));
        }
    }

    /// Runs the step. Returns the tokens that come out, and its microseconds.
    pub fn run(&mut self, depth: u32) -> (u64, u64) {
        // The first step at a depth must show that depth, so no request drafts less deep.
        let cuts = self.cuts && depth == self.last;
        self.last = depth;
        let mut tokens = 0;
        for (rank, part) in self.ranks.iter_mut().zip(&mut self.parts) {
            let out;
            (*part, out) = rank.run(depth, cuts);
            tokens += u64::from(out);
        }
        let us = self.machine.step_us(&self.parts);
        let noisy = |stage: usize| {
            let draw = |at| hash([self.seed, self.steps, stage as u64, at]);
            // Two uniform draws make a triangle of two fifths on each side, and one step in 400
            // takes ten times as long.
            let jitter = 600 + draw(0) % 400 + draw(1) % 401;
            let outlier = if draw(2).is_multiple_of(400) { 10 } else { 1 };
            (u64::from(us[stage]) * jitter * outlier / 1000) as u32
        };
        let [draft_us, verify_us, extend_us] = [0, 1, 2].map(noisy);
        // All DP ranks wait for the slowest and see its times.
        for rank in &mut self.ranks {
            rank.seen.draft_us = draft_us;
            rank.seen.verify_us = verify_us;
            rank.seen.extend_us = extend_us;
        }
        (tokens, us.into_iter().map(u64::from).sum())
    }
}

impl Rank {
    /// Returns the row that the DP rank brings to a step.
    fn row(&self, step: u64, depth: u32) -> Row {
        let prompts = self.running.iter().map(|stream| stream.request.prompt);
        let mut room = CHUNK;
        let ends = prompts.filter(|prompt| *prompt > 0).take_while(|prompt| {
            let fits = *prompt <= room;
            room = room.saturating_sub(*prompt);
            fits
        });
        let joined = ends.count() as u32;
        let decodes = self.running.iter();
        let decodes = decodes.filter(|stream| stream.request.prompt == 0).count();
        Row {
            step,
            depth,
            depths: u32::MAX,
            decodes: decodes as u32 + joined,
            joined,
            unfinished: (self.running.len() - decodes) as u32 - joined,
            seen: self.seen,
            ..Row::default()
        }
    }

    /// Runs the DP rank's part of a step. Returns the part, and the tokens that come out of it.
    fn run(&mut self, depth: u32, cuts: bool) -> (Part, u32) {
        let mut seen = Seen {
            depth,
            ..Seen::default()
        };
        let (mut out, mut room, mut deepest) = (0, CHUNK, 0);
        let alone = self.running.len() < 2;
        for Stream { request, own } in &mut self.running {
            if request.prompt > 0 {
                let chunk = request.prompt.min(room);
                room -= chunk;
                request.prompt -= chunk;
                seen.prompt_tokens += chunk;
                if request.prompt == 0 {
                    request.emit(1);
                    out += 1;
                }
                continue;
            }
            let drafts = match cuts && !alone {
                true => own.depth(0, depth as usize) as u32,
                false => depth,
            };
            let accepted = request.accepts(drafts);
            own.count(0, drafts as usize, accepted as usize);
            seen.decodes += 1;
            seen.tokens += 1 + drafts;
            seen.count(drafts, accepted);
            request.emit(accepted + 1);
            out += accepted + 1;
            deepest = deepest.max(drafts);
        }
        self.running.retain(|stream| !stream.request.is_done());
        seen.tokens += seen.prompt_tokens;
        self.seen = seen;
        let part = Part {
            rows: seen.decodes,
            depth: deepest,
            tokens: seen.tokens,
            taken: if seen.decodes > 0 { seen.taken() } else { 0 },
        };
        (part, out)
    }
}
