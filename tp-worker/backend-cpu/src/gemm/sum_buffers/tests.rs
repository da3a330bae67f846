use lockstep_backend::WeightFormat;
use lockstep_types::Dtype;

use super::super::cut::groups;
use super::*;
use crate::formats;
use crate::isa::Isa;

/// The rooms of a product with 4,096 inputs, and its cut.
fn product(threads: usize, rows: usize, outputs: usize) -> (Rooms, Cut, usize) {
    // Every machine knows the sizes of these tiles.
    let bf16 = formats::of(Dtype::Bfloat16, WeightFormat::Float);
    let tiles = bf16.tiles(Isa::AmxEmulated, rows);
    let rooms = Rooms::new(threads, tiles, bf16, rows, [outputs, 4_096]).unwrap();
    let height = block_height(tiles, rows);
    let blocks = rows.div_ceil(height);
    let passes = tile_passes(threads, blocks, height);
    let cut = Cut::new(threads, outputs.div_ceil(PANEL), blocks, passes);
    (rooms, cut, tile_group(height))
}

#[test]
fn sums_of_every_group_lie_in_the_room_of_its_thread() {
    for threads in [1, 2, 3, 4, 6, 12, 48] {
        for outputs in [16, 32, 80, 144, 1_040, 3_616] {
            for rows in [256, 257, 289, 512, 517, 1_100, 2_048] {
                let (rooms, cut, block_group) = product(threads, rows, outputs);
                assert!(rooms.words().is_multiple_of(threads * SUMS));
                let room = rooms.words() / threads;
                let mut largest = 0;
                for chunk in (0..cut.chunks()).map(|index| cut.chunk(index)) {
                    for (panels, blocks) in groups(chunk, [TILE_PANEL_GROUP, block_group]) {
                        let full = panels.end.min(outputs / PANEL).max(panels.start);
                        largest = largest.max((full - panels.start) * blocks.len());
                        // Any thread may take over a chunk.
                        for thread in [0, threads / 2, threads - 1] {
                            let mut places: Vec<_> = (panels.start..full)
                                .flat_map(|panel| blocks.clone().map(move |block| (panel, block)))
                                .map(|(panel, block)| [panel - panels.start, block - blocks.start])
                                .map(|place| rooms.place(thread, place))
                                .collect();
                            places.sort_unstable();
                            let apart = places.windows(2).all(|two| two[0] + SUMS <= two[1]);
                            assert!(apart, "{threads} {outputs} {rows}");
                            let inside = thread * room..(thread + 1) * room;
                            let ends = [places.first(), places.last()].into_iter().flatten();
                            for &start in ends {
                                assert!(inside.start <= start && start + SUMS <= inside.end);
                            }
                        }
                    }
                }
                assert_eq!(largest * SUMS, room, "{threads} {outputs} {rows}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "larger than its thread's room")]
fn a_place_outside_the_room_is_refused() {
    let (rooms, ..) = product(2, 256, 64);
    rooms.place(1, [0, rooms.blocks]);
}
