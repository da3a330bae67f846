//! The table of compiled tiles of one instruction set and element type.

use lockstep_types::Dtype;

use super::tile::{PANEL, TileFn};
use crate::isa::Isa;
use crate::quantize::{BLOCK_ROW_WORDS, GROUP, Parts, ROW_WORDS};

/// Content of a step of a weight panel, for each of its columns. Products cut a row of
/// weights at whole steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    /// One f32.
    F32,
    /// Two bf16.
    Bf16,
}

impl Element {
    /// The element that products in `dtype` read.
    pub(crate) fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Float32 => Self::F32,
            Dtype::Bfloat16 => Self::Bf16,
        }
    }

    /// Steps of a row of `k` values.
    pub(crate) fn steps(self, k: usize) -> usize {
        match self {
            Self::F32 => k,
            Self::Bf16 => k.div_ceil(2),
        }
    }

    /// 4-byte words of one step of a panel.
    pub(crate) fn step_words(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => PANEL,
        }
    }
}

/// Packed form of a row of inputs: 4-byte words, step after step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// The row's values.
    F32,
    /// The row's values rounded to bf16, as f32, an even number of them. For tiles that
    /// widen weights, so that inputs need no work in the inner loop.
    Rounded,
    /// The row's values, filled up with zeros to whole groups of 128.
    Groups,
    /// Groups like [`Self::Groups`], of values rounded to bf16.
    RoundedGroups,
    /// Pairs of bf16, the earlier one in the low half.
    Pairs,
    /// Pairs of bf16 that lie 4 apart: of every 8 values the pairs (0, 4), (1, 5), (2, 6) and
    /// (3, 7). The row is filled up with zeros to whole groups of 128.
    SplitPairs,
    /// Blocks of 32 bf16. A block is 16 consecutive words of each row, which a tile register
    /// loads. The last block is filled up with zeros.
    Blocks,
    /// Groups of 8-bit integers, each with its scale and the numbers that undo the offsets
    /// of weights.
    Integers,
    /// Groups of 8-bit integers for tiles with rows of 64 bytes, in the layout of
    /// [`crate::quantize::BLOCK_ROW_WORDS`].
    IntegerBlocks,
    /// Groups of integers for weights that have several scales in a group.
    Parts(Parts),
}

impl Input {
    /// Words of a row of `k` values: [`Self::step_words`] for each step of the weights.
    pub(crate) fn len(self, k: usize) -> usize {
        match self {
            Self::F32 => k,
            Self::Rounded => k.next_multiple_of(2),
            Self::Pairs => k.div_ceil(2),
            Self::Blocks => k.div_ceil(2).next_multiple_of(BLOCK_STEPS),
            Self::Groups | Self::RoundedGroups => k.next_multiple_of(GROUP),
            Self::SplitPairs => k.next_multiple_of(GROUP) / 2,
            Self::Integers | Self::IntegerBlocks | Self::Parts(_) => {
                k.div_ceil(GROUP) * self.step_words()
            }
        }
    }

    /// Words of a row for each step of the weights.
    pub(crate) fn step_words(self) -> usize {
        match self {
            Self::F32 | Self::Pairs | Self::Blocks => 1,
            Self::Rounded => 2,
            Self::Groups | Self::RoundedGroups => GROUP,
            Self::SplitPairs => GROUP / 2,
            Self::Integers => ROW_WORDS,
            Self::IntegerBlocks => BLOCK_ROW_WORDS,
            Self::Parts(parts) => parts.words(),
        }
    }

    /// Consecutive words of a row before the next row's turn.
    pub(crate) fn run(self) -> usize {
        match self {
            Self::Blocks => BLOCK_STEPS,
            _ => 1,
        }
    }
}

/// Steps of pairs that [`Input::Blocks`] holds together.
pub(crate) const BLOCK_STEPS: usize = 16;

/// Tiles for 1 to [`Self::rows`] rows.
pub(crate) struct Tiles {
    /// The form in which rows are packed.
    pub input: Input,
    /// `single[m − 1]`: `m` rows, one panel.
    pub single: &'static [TileFn],
    /// `stream[m − 1]`: `m` rows and several panels at once, so that few rows are bound
    /// neither by one memory stream nor by the multiply-add's latency. Or one panel, with
    /// requests for the panels behind it in memory while it is read. AMD's cores read a
    /// fifth to a third faster that way, with any number of rows of a tile: only there does
    /// [`Isa::detect`] take [`Isa::Avx512Bf16`]. AMX's tiles read one panel, too. Row counts
    /// above the list's length ask for the next slice from several places.
    pub stream: &'static [(TileFn, usize)],
    /// For tiles that widen bf16, 8-bit floats or 4-bit weights in their inner loop: the f32 or 8-bit
    /// tiles that give the same bits for weights that were widened before.
    pub widened: Option<&'static Tiles>,
}

impl Tiles {
    /// Returns the tiles for rows in another form that the same code reads.
    pub(crate) const fn with_input(&self, input: Input) -> Self {
        Self {
            input,
            single: self.single,
            stream: self.stream,
            widened: self.widened,
        }
    }

    /// Steps of these tiles in one step of `narrow`. The inputs are those of `narrow`.
    pub(crate) fn steps_per(&self, narrow: &Self) -> usize {
        narrow.input.step_words() / self.input.step_words()
    }

    /// The most rows of one tile.
    pub(crate) fn rows(&self) -> usize {
        self.single.len()
    }
}

/// The tiles for a machine and element type.
pub(crate) fn select(isa: Isa, element: Element) -> &'static Tiles {
    if let (Isa::AmxEmulated, Element::Bf16) = (isa, element) {
        return &super::amx_emulated::TILES_BF16;
    }
    match (isa.vectors(), element) {
        #[cfg(target_arch = "x86_64")]
        _ if isa == Isa::Amx && element == Element::Bf16 => &super::amx::TILES_BF16,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Bf16, Element::Bf16) => &super::avx512_bf16::TILES_BF16,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, Element::Bf16) => &super::avx512::TILES_BF16,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Bf16, Element::F32) => &super::avx512::TILES_F32_ONE_BY_ONE,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, Element::F32) => &super::avx512::TILES_F32,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Element::Bf16) => &super::avx2::TILES_BF16,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Element::F32) => &super::avx2::TILES_F32,
        #[cfg(target_arch = "aarch64")]
        (Isa::Neon, Element::Bf16) => &super::neon::TILES_BF16,
        #[cfg(target_arch = "aarch64")]
        (Isa::Neon, Element::F32) => &super::neon::TILES_F32,
        (_, Element::F32) => &super::scalar::TILES_F32,
        (_, Element::Bf16) => &super::scalar::TILES_BF16,
    }
}

/// `tiles!(input, f: [m …], [m … : p …], [h …])`: the table for rows 1, 2, …. The second
/// list pairs numbers of rows with numbers of panels to stream at once. The third says for
/// each number of rows how many halves of a panel have sums that fit in registers. A last
/// argument names the tiles for widened weights.
macro_rules! tiles {
    (@widened Rounded) => { Some(&TILES_F32) };
    (@widened $input:ident) => { None };
    (@widened $input:ident $widened:ident) => { Some(&$widened) };
    ($input:ident, $tile:ident: [$($m:literal)*], [$($s:literal)* : $($p:literal)*], [$($h:literal)*] $(, $widened:ident)?) => {
        Tiles {
            input: $crate::gemm::Input::$input,
            single: &[$($tile::<$m, 1, $h>),*],
            stream: &[$(($tile::<$s, $p, 2>, $p)),*],
            widened: tiles!(@widened $input $($widened)?),
        }
    };
}

pub(crate) use tiles;
