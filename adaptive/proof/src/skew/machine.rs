//! Times of steps on DP ranks with different loads, from figures that were measured on one
//! rank.
//!
//! Every DP rank is one rank here. Drafting, attention with the products around it, and the
//! drafter's work after the pass are the rank's own, so the others wait for the rank with most.
//! The MLP and the head run over the tokens of all DP ranks, each rank with its part of the
//! columns.

use lockstep_adaptive::Seen;

/// Microseconds by size, linear between points and beyond the last one.
type Table = &'static [(u32, u32)];

/// Times of a machine's steps.
#[derive(Clone, Copy)]
pub struct Machine {
    pub name: &'static str,
    /// Microseconds of a step whatever its size.
    fixed: u32,
    /// Time of one layer's products over tokens. `own` and `shared` are the thousandths of it
    /// that a rank's own products and the shared products take in all layers.
    layer: Table,
    own: u32,
    shared: u32,
    /// Microseconds of a row's attention over its cached tokens.
    row: u32,
    /// Times of the first draft step, of each later one, and of the drafter's work after the
    /// pass, over rows.
    first: Table,
    later: Table,
    extend: Table,
}

/// All products of a layer of the 1B shape in bf16, in microseconds over rows. Two cores of an
/// EPYC (Zen 4, AVX-512 BF16) took these medians.
const LAYER: Table = &[
    (1, 3_846),
    (2, 3_939),
    (4, 4_218),
    (8, 4_289),
    (16, 5_555),
    (32, 10_302),
    (512, 157_426),
];

/// The 1B shape on two cores, with a small model that drafts.
///
/// 10.5 of a layer's 60.8 million weights are attention's, in 16 layers. The other weights and
/// the head's 65.5 million are shared. A row's attention is a quarter of what 1,024 positions
/// took (817 µs a layer for 8 requests). Steps with 3 and 7 drafts took 73.3 and 79.9 ms, of
/// which a draft of the small model took 1.5 ms; with more rows it grows as products do.
pub const STANDALONE: Machine = Machine {
    name: "1B, two cores, STANDALONE",
    fixed: 0,
    layer: LAYER,
    own: 16 * 173,
    shared: 16 * 827 + 1_077,
    row: 400,
    first: &[(1, 1_500), (8, 1_670), (16, 2_170), (32, 4_020)],
    later: &[(1, 1_500), (8, 1_670), (16, 2_170), (32, 4_020)],
    extend: &[(1, 100)],
};

/// The 1B shape on two cores with an EAGLE-3 head. Steps with 3 and 7 drafts took 82.3 and 100
/// ms, of which a pass of the head took 4.4 ms. The head's first draft comes from the pass over
/// the outcome.
pub const EAGLE3: Machine = Machine {
    name: "1B, two cores, EAGLE3",
    first: &[(1, 300), (32, 1_000)],
    later: &[(1, 4_400), (8, 4_910), (16, 6_360), (32, 11_790)],
    extend: &[(1, 4_400), (8, 4_910), (16, 6_360), (32, 11_790)],
    ..STANDALONE
};

/// The 1B shape with an EAGLE-3 head on an H100. The times come from the median gaps between
/// chunks of docs/results/phases-h100-constant. These are at 1, 8 and 32 streams without drafts
/// and at depths 1 and 3: a draft of 190 µs and a pass of these times. Reading the weights
/// takes 600 µs of the pass. The rest is launching and does not shrink.
pub const H100: Machine = Machine {
    name: "1B, H100, EAGLE3",
    fixed: 1_008,
    layer: &[
        (1, 600),
        (8, 664),
        (16, 755),
        (32, 843),
        (64, 1_141),
        (128, 1_510),
    ],
    own: 162,
    shared: 838,
    row: 0,
    first: &[(1, 20)],
    later: &[(1, 190)],
    extend: &[(1, 190)],
};

/// Work of a DP rank in a step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Part {
    /// Number of rows that decode, and depth of their drafts.
    pub rows: u32,
    pub depth: u32,
    /// Tokens of the pass, and tokens that the drafter takes in.
    pub tokens: u32,
    pub taken: u32,
}

impl Machine {
    /// Returns the microseconds of drafting, of the pass, and of the drafter's work after it.
    pub fn step_us(&self, parts: &[Part]) -> [u32; 3] {
        let all = parts.iter().map(|part| part.tokens).sum::<u32>();
        let most = |us: &dyn Fn(&Part) -> u32| parts.iter().map(us).max().unwrap_or(0);
        let draft = most(&|part| self.draft_us(part));
        let own = most(&|part| self.own_us(part));
        let shared = scaled(at(self.layer, all), self.shared) / parts.len().max(1) as u32;
        let shared = if all > 0 { shared } else { 0 };
        let extend = most(&|part| match part.depth {
            0 => 0,
            _ => at(self.extend, part.taken),
        });
        [draft, self.fixed + own + shared, extend]
    }

    /// See [`AdaptiveConfig::shared_part`](lockstep_adaptive::AdaptiveConfig).
    pub fn shared_part(&self) -> u32 {
        (self.shared << 16) / (self.own + self.shared)
    }

    fn draft_us(&self, part: &Part) -> u32 {
        match part.depth {
            0 => 0,
            depth => at(self.first, part.rows) + (depth - 1) * at(self.later, part.rows),
        }
    }

    fn own_us(&self, part: &Part) -> u32 {
        match part.tokens {
            0 => 0,
            tokens => scaled(at(self.layer, tokens), self.own) + part.rows * self.row,
        }
    }

    /// Returns the steps measured before serving: all DP ranks alike run 1, 2, 4, … rows.
    pub fn profile(&self, dp_size: usize, most: u32, depths: &[u32]) -> Vec<Seen> {
        let sizes = (0..).map(|power| 1 << power);
        let sizes = sizes.take_while(|rows| *rows <= most);
        let grid = sizes.flat_map(|rows| depths.iter().map(move |depth| (rows, *depth)));
        let measured = grid.map(|(rows, depth)| {
            let tokens = rows * (depth + 1);
            let part = Part {
                rows,
                depth,
                tokens,
                taken: rows,
            };
            let [draft_us, verify_us, extend_us] = self.step_us(&vec![part; dp_size]);
            Seen {
                depth,
                decodes: rows,
                tokens,
                draft_us,
                verify_us,
                extend_us,
                ..Seen::default()
            }
        });
        measured.collect()
    }
}

/// Returns `us` times `thousandths`, in thousandths.
fn scaled(us: u32, thousandths: u32) -> u32 {
    (u64::from(us) * u64::from(thousandths) / 1_000) as u32
}

fn at(table: Table, size: u32) -> u32 {
    let right = table.partition_point(|point| point.0 < size);
    let (from, to) = match right {
        0 => return table[0].1,
        _ if table.len() == 1 => return table[0].1,
        right if right < table.len() => (table[right - 1], table[right]),
        _ => (table[table.len() - 2], table[table.len() - 1]),
    };
    let rise = u64::from(to.1 - from.1) * u64::from(size - from.0);
    from.1 + (rise / u64::from(to.0 - from.0)) as u32
}
