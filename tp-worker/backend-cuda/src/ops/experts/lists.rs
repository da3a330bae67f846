//! Lists of the routes of a mixture, on the device.

use lockstep_backend::Experts;

use crate::runtime::Buffer;
use crate::tensors::{CudaMatrix, Element, Floats};

/// Rows of tiles, ascending, as `experts.cu` has them.
const HEIGHTS: [usize; 4] = [8, 16, 32, 64];
/// Words of a tile in `routes.cuh`, and words that hold the number of tiles: lists behind them
/// begin at multiples of 16 bytes.
const TILE_WORDS: usize = 4;
const COUNT_WORDS: usize = 4;

/// Addresses of the lists of one mixture over some rows. They lie in memory that the mixture's
/// gates would take, so no other memory is needed for them.
pub(super) struct Lists {
    /// Number of choices, at most.
    pub choices: usize,
    /// Most rows of a tile.
    pub height: usize,
    /// Largest number of tiles, however rows choose.
    pub most_tiles: usize,
    pub tiles: u64,
    pub count: u64,
    pub experts: u64,
    pub weights: u64,
    pub places: u64,
    pub order: u64,
}

impl Lists {
    /// Lays out the lists for `rows` rows in `memory`, which has room for gates and ups of all
    /// choices.
    ///
    /// # Panics
    /// If experts are so narrow that the lists do not fit.
    pub fn new(
        memory: &mut Floats,
        rows: usize,
        w: &Experts<'_, CudaMatrix, Buffer<f32>>,
        height: usize,
    ) -> Self {
        let choices = rows * w.taken();
        let most_tiles = most_tiles(choices, w.gate_up.len(), height);
        memory.expect(Element::F32, 0, "space for gates");
        let head = TILE_WORDS * most_tiles + COUNT_WORDS;
        assert!(
            memory.len() >= words(choices, most_tiles),
            "configuration refuses experts that are as narrow"
        );
        let at = |words: usize| memory.address() + (words * size_of::<u32>()) as u64;
        let list = |number: usize| at(head + number * choices);
        Self {
            choices,
            height,
            most_tiles,
            tiles: at(0),
            count: at(TILE_WORDS * most_tiles),
            experts: list(0),
            weights: list(1),
            places: list(2),
            order: list(3),
        }
    }
}

/// Returns the words of all lists: tiles, their number, and four for each choice.
fn words(choices: usize, most_tiles: usize) -> usize {
    TILE_WORDS * most_tiles + COUNT_WORDS + 4 * choices
}

/// Rows of a tile where `choices` choices fall on `experts` experts: about as many as an expert
/// gets.
pub(super) fn height(choices: usize, experts: usize) -> usize {
    let each = choices.div_ceil(experts.max(1));
    let fits = HEIGHTS.into_iter().find(|height| each <= *height);
    fits.unwrap_or(HEIGHTS[HEIGHTS.len() - 1])
}

/// Largest number of tiles: each expert may have a tile for one choice alone, beside full ones.
fn most_tiles(choices: usize, experts: usize, height: usize) -> usize {
    let alone = choices.min(experts);
    alone + (choices - alone) / height
}

#[cfg(test)]
mod tests {
    use super::super::LEAST_OUTPUTS;
    use super::*;

    #[test]
    fn lists_fit_where_the_narrowest_experts_have_their_gates() {
        for choices in 1..200 {
            for (experts, height) in [(1, 8), (3, 16), (64, 32), (1024, 64)] {
                let gates = LEAST_OUTPUTS * choices;
                let needed = words(choices, most_tiles(choices, experts, height));
                assert!(needed <= gates, "{choices} of {experts}, {height}");
            }
        }
    }

    /// The bound is the number of tiles of the worst way in which few choices fall on few experts.
    #[test]
    fn tiles_are_bounded_by_the_worst_way_to_choose() {
        fn worst(left: usize, experts: usize, height: usize) -> usize {
            match experts {
                0 => 0,
                1 => left.div_ceil(height),
                _ => (0..=left)
                    .map(|own| own.div_ceil(height) + worst(left - own, experts - 1, height))
                    .max()
                    .unwrap_or(0),
            }
        }
        for height in [1, 2, 3] {
            for (choices, experts) in [(0, 3), (1, 3), (5, 3), (7, 2), (9, 4), (4, 9)] {
                let (most, worst) = (
                    most_tiles(choices, experts, height),
                    worst(choices, experts, height),
                );
                assert_eq!(worst, most, "{choices} {experts} {height}");
            }
        }
    }

    #[test]
    fn tiles_grow_with_the_rows_of_an_expert() {
        let heights = [1, 64, 65, 128, 256, 257, 512, 513, 65536].map(|all| height(all, 8));
        assert_eq!(heights, [8, 8, 16, 16, 32, 64, 64, 64, 64]);
    }
}
