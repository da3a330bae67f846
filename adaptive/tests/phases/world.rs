//! A made-up machine and its work: times of steps, and accepted drafts.

use lockstep_adaptive::Seen;

/// A seeded generator (SplitMix64: Steele, Lea & Flood 2014), as a hash.
pub fn hash(words: [u64; 4]) -> u64 {
    words
        .into_iter()
        .fold(0x9e37_79b9_7f4a_7c15, |state, word| {
            let mut value = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
            value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            value ^ value >> 31
        })
}

/// Microseconds by size, linear between points.
pub type Table = &'static [(u32, u32)];

/// Times of a machine's steps.
#[derive(Clone, Copy)]
pub struct Machine {
    pub name: &'static str,
    /// Times of the first draft step and of each later one, over rows.
    pub first: Table,
    pub later: Table,
    /// Time of the pass over tokens; and the measured time before serving, if it was measured.
    pub verify: Table,
    pub measured: Option<Table>,
    /// Time of the drafter after the pass, over tokens taken in.
    pub extend: Table,
    /// True if the clock can't tell drafting from the pass.
    pub together: bool,
    /// Hundredths of the first passes' time that passes take later: contexts grow, clocks fall.
    pub drift: u32,
    /// Milliseconds of a burst of other programs' work; 0 = there are none. Half of the time,
    /// bursts make everything take half as long again, or more than twice as long.
    pub bursts_ms: u32,
    /// Hundredths of their time that passes take within two milliseconds after a change of
    /// depth, whose weights push others out of caches.
    pub settles: u32,
    /// Hundredths at which the time of a step was measured before serving, by rows and depth:
    /// other programs spoilt the times.
    pub spoilt: fn(rows: u32, depth: u32) -> u32,
}

/// Time of a pass of 1B parameters on two cores.
const CORES: Table = &[
    (1, 60_000),
    (8, 62_000),
    (32, 90_000),
    (64, 150_000),
    (256, 500_000),
];

/// 1B parameters on two cores, with a small model that drafts.
pub const STANDALONE: Machine = Machine {
    name: "standalone",
    first: &[(1, 6_000), (8, 8_000), (32, 14_000)],
    later: &[(1, 6_000), (8, 8_000), (32, 14_000)],
    verify: CORES,
    measured: Some(CORES),
    extend: &[(1, 100)],
    together: false,
    drift: 100,
    bursts_ms: 0,
    settles: 100,
    spoilt: |_, _| 100,
};

/// 1B parameters on two cores with a head, whose first draft is there already.
pub const HEAD: Machine = Machine {
    name: "head",
    first: &[(1, 1_500), (32, 4_000)],
    later: &[(1, 5_500), (8, 7_000), (32, 12_000)],
    extend: &[(1, 4_500), (8, 5_000), (64, 11_000)],
    ..STANDALONE
};

const DEVICE: Table = &[(1, 20_000), (8, 20_000), (256, 206_000)];

/// A memory-bound device: passes are flat to eight tokens, then linear.
pub const DENSE: Machine = Machine {
    name: "dense",
    first: &[(1, 1_200), (32, 1_800)],
    later: &[(1, 1_500), (32, 2_200)],
    verify: DEVICE,
    measured: Some(DEVICE),
    extend: &[(1, 900), (64, 1_600)],
    together: false,
    drift: 100,
    bursts_ms: 0,
    settles: 100,
    spoilt: |_, _| 100,
};

const SMALL: Table = &[(1, 1_200), (8, 2_400), (32, 7_000), (256, 50_000)];

/// A tiny model, whose draft steps cost half as much as a pass.
pub const TINY: Machine = Machine {
    name: "tiny",
    first: &[(1, 600), (32, 3_000)],
    later: &[(1, 600), (32, 3_000)],
    verify: SMALL,
    measured: Some(SMALL),
    extend: &[(1, 50)],
    together: false,
    drift: 100,
    bursts_ms: 0,
    settles: 100,
    spoilt: |_, _| 100,
};

/// The tiny model beside other programs, whose bursts last for hundreds of its steps.
pub const CROWDED: Machine = Machine {
    name: "crowded",
    bursts_ms: 400,
    ..TINY
};

/// Time of a pass: more than eight tokens take a second turn over the weights.
const TURNS: Table = &[
    (1, 80_000),
    (8, 83_000),
    (9, 104_000),
    (16, 140_000),
    (32, 205_000),
    (256, 1_200_000),
];

/// Drafts from the request's own text, at almost no cost.
pub const NGRAM: Machine = Machine {
    name: "ngram",
    first: &[(1, 30), (32, 600)],
    later: &[(1, 1)],
    extend: &[(1, 10), (64, 100)],
    verify: TURNS,
    measured: Some(TURNS),
    ..STANDALONE
};

const GPU_PASS: Table = &[
    (1, 1_045),
    (8, 1_090),
    (32, 1_290),
    (64, 1_400),
    (128, 1_450),
    (256, 1_650),
];

/// 1B parameters on a GPU, where a head drafts and passes run without the host. The times are
/// about those of an H200, except passes of 64 tokens and more: the H200 took longer for 64
/// than for 128.
pub const GPU: Machine = Machine {
    name: "gpu",
    first: &[(1, 280), (8, 310), (32, 400)],
    later: &[(1, 70), (8, 75), (32, 95)],
    verify: GPU_PASS,
    measured: Some(GPU_PASS),
    extend: &[(1, 5)],
    ..STANDALONE
};

/// The GPU with times by the host's clock, which sees drafting and pass end together.
pub const GPU_TOGETHER: Machine = Machine {
    name: "gpu, by the host's clock",
    together: true,
    ..GPU
};

/// The demo model on two cores, where a head drafts. The times are about those of a Zen 3 while
/// serving, and those measured there before serving by steps that each followed one of another
/// size.
pub const DEMO: Machine = Machine {
    name: "demo",
    first: &[(1, 19), (4, 54), (8, 90), (24, 203)],
    later: &[(1, 150), (4, 300), (8, 500), (24, 1_300)],
    verify: &[
        (1, 374),
        (2, 600),
        (4, 967),
        (8, 1_700),
        (16, 3_526),
        (24, 4_706),
        (48, 8_526),
        (192, 33_000),
    ],
    measured: Some(&[
        (1, 506),
        (2, 600),
        (4, 709),
        (8, 1_230),
        (16, 2_380),
        (24, 3_110),
        (48, 5_670),
        (192, 22_000),
    ]),
    extend: &[(1, 86), (4, 238), (8, 440), (24, 1_146)],
    ..TINY
};

/// The demo model on two cores of a Zen 4, whose caches hold the model but not the head beside
/// it.
pub const DEMO_IN_CACHE: Machine = Machine {
    name: "demo in cache",
    first: &[(1, 25), (4, 100), (8, 130), (24, 300)],
    later: &[(1, 90), (4, 200), (8, 300), (24, 700)],
    verify: &[
        (1, 260),
        (2, 404),
        (4, 490),
        (8, 720),
        (16, 1_340),
        (24, 1_980),
        (48, 3_700),
        (192, 14_000),
    ],
    measured: Some(&[
        (1, 340),
        (2, 430),
        (4, 560),
        (8, 800),
        (16, 1_400),
        (24, 2_000),
        (48, 3_600),
        (192, 13_000),
    ]),
    extend: &[(1, 75), (4, 150), (8, 260), (24, 530)],
    settles: 135,
    ..TINY
};

/// Passes that grow by a third, with their contexts.
pub const GROWING: Machine = Machine {
    name: "growing",
    drift: 133,
    ..STANDALONE
};

/// A device that was measured when passes of many tokens took half as long. Corrections can't
/// follow that far.
pub const MISJUDGED: Machine = Machine {
    name: "misjudged",
    measured: Some(&[(1, 20_000), (8, 20_000), (256, 90_000)]),
    ..DENSE
};

/// A machine without steps measured before serving.
pub const UNMEASURED: Machine = Machine {
    name: "unmeasured",
    measured: None,
    ..STANDALONE
};

impl Machine {
    /// Returns the microseconds of a step without noise.
    pub fn step_us(&self, rows: u32, depth: u32, tokens: u32, taken: u32) -> [u32; 3] {
        let verify = at(self.verify, tokens);
        if depth == 0 {
            return [0, verify, 0];
        }
        let draft = at(self.first, rows) + (depth - 1) * at(self.later, rows);
        match self.together {
            true => [0, draft + verify, at(self.extend, taken)],
            false => [draft, verify, at(self.extend, taken)],
        }
    }

    /// Returns the time of a step that begins at `us`, in hundredths of the usual time.
    pub fn slowness(&self, seed: u64, us: u64) -> u32 {
        let Some(burst) = us.checked_div(u64::from(self.bursts_ms) * 1000) else {
            return 100;
        };
        match hash([seed, burst, 8, 8]) % 4 {
            0 => 150,
            1 => 220,
            _ => 100,
        }
    }

    /// Returns the steps measured before serving. The steps have 1, 2, 4, … and `most` rows at
    /// depths 0, 1, 2 and, up to a quarter of a second, the greatest depth. Each time is off by
    /// up to three in a hundred.
    pub fn profile(&self, most: u32, deepest: u32) -> Vec<Seen> {
        let Some(table) = self.measured else {
            return Vec::new();
        };
        let rows = (0..)
            .map(|power| 1 << power)
            .take_while(move |rows| *rows <= most);
        let grid = rows.flat_map(|rows| [0, 1, 2, deepest].map(|depth| (rows, depth)));
        let grid = grid.filter(|(rows, depth)| {
            let us = self.step_us(*rows, *depth, rows * (depth + 1), *rows);
            *depth < deepest || us.into_iter().sum::<u32>() <= 250_000
        });
        let measured = grid.map(|(decodes, depth)| {
            let tokens = decodes * (depth + 1);
            let mut us = self.step_us(decodes, depth, tokens, decodes);
            us[1] = us[1] - at(self.verify, tokens) + at(table, tokens);
            let noisy = |part: usize| {
                let draw = hash([part as u64, decodes.into(), depth.into(), 99]) % 61;
                us[part] * (970 + draw as u32) / 1000 * (self.spoilt)(decodes, depth) / 100
            };
            Seen {
                depth,
                decodes,
                tokens,
                draft_us: noisy(0),
                verify_us: noisy(1),
                extend_us: noisy(2),
                ..Seen::default()
            }
        });
        measured.collect()
    }
}

fn at(table: Table, size: u32) -> u32 {
    let (first, last) = (table[0], table[table.len() - 1]);
    let right = table.partition_point(|point| point.0 < size);
    match right {
        0 => first.1,
        right if right < table.len() => {
            let (from, to) = (table[right - 1], table[right]);
            from.1 + (to.1 - from.1) * (size - from.0) / (to.0 - from.0)
        }
        _ if table.len() == 1 => first.1,
        _ => {
            let from = table[table.len() - 2];
            last.1 + (last.1 - from.1) * (size - last.0) / (last.0 - from.0)
        }
    }
}

/// Kinds of texts, by how well they can be foretold.
#[derive(Clone, Copy, PartialEq)]
pub enum Text {
    Predictable,
    Code,
    Hard,
    /// Every second draft is right.
    Half,
    /// Each request is one of the others.
    Mixed,
    /// Mostly repeats earlier text.
    Repeating,
    /// Hardly ever repeats earlier text.
    Fresh,
    /// Pieces of 128 tokens, predictable and hard in turn.
    Turning,
}

/// A request, with its number of tokens and one kind of text.
#[derive(Clone, Copy)]
pub struct Request {
    pub id: u64,
    pub tokens: u32,
    text: Text,
}

impl Request {
    pub fn new(id: u64, tokens: u32, text: Text) -> Self {
        let text = match (text, hash([id, 1, 1, 1]) % 3) {
            (Text::Mixed, 0) => Text::Predictable,
            (Text::Mixed, 1) => Text::Code,
            (Text::Mixed, _) => Text::Hard,
            (text, _) => text,
        };
        Self { id, tokens, text }
    }

    /// Returns how many of 1,000 drafts are accepted at a position after `emitted` tokens, if
    /// all before it were.
    pub fn hazard(&self, emitted: u32, position: usize) -> u32 {
        let (first, step, most) = match self.text {
            Text::Turning if emitted / 128 % 2 == 1 => (300, 40, 480),
            Text::Predictable | Text::Turning => (900, 10, 950),
            Text::Code | Text::Mixed => (740, 15, 830),
            Text::Hard => (300, 40, 480),
            Text::Half => (510, 0, 510),
            Text::Repeating => (930, 0, 930),
            Text::Fresh => (250, 0, 250),
        };
        let own = hash([self.id, 2, 2, 2]) % 81;
        (first + step * position as u32).min(most) + own as u32 - 40
    }

    /// Returns how many of `depth` drafts are proposed after `emitted` tokens: all, unless they
    /// are looked up and not found.
    pub fn proposes(&self, emitted: u32, depth: u32) -> u32 {
        let found = match self.text {
            Text::Repeating => 90,
            Text::Fresh => 10,
            _ => 100,
        };
        let draw = hash([self.id, emitted.into(), 0, 4]) % 100;
        if draw < found { depth } else { 0 }
    }

    /// Returns how many of `depth` drafts are accepted after `emitted` tokens, whichever arm
    /// asks.
    pub fn accepts(&self, emitted: u32, depth: u32) -> u32 {
        let missed = |at: &u32| {
            let draw = hash([self.id, emitted.into(), (*at).into(), 3]) % 1000;
            draw >= u64::from(self.hazard(emitted, *at as usize))
        };
        (0..depth).find(missed).unwrap_or(depth)
    }
}
