// Paged attention of rows with many queries, such as prompts, where sums of 64 queries have no room in
// registers: of latents, and of wide heads. A block has two tiles of queries, so that positions come
// to shared memory half as often as with one. Their bits are those of one tile.
#include "tiles.cuh"

constexpr unsigned TILES = 2, THREADS = 32 * WARPS * TILES;
static_assert(WIDE_TILE == TILES * QUERIES, "an item has as many queries");
typedef Staged<TILES> Stage;
static_assert(sizeof(Stage) == WIDE_STAGE_BYTES, "the launch asks for as much");

// Grid: (blocks that share the items, kv heads). Items of a row become lighter, so blocks take
// them to and fro.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_wide(Attend a) {
    DYNAMIC_SHARED(Stage, stage);
    Stage& s = *stage;
    griddepcontrol_launch_dependents();
    fill_padding(s);
    griddepcontrol_wait();
    const Share* shares = shares_of(a.work);
    const unsigned rows = min(a.batch[ROWS], a.most_rows), items = a.work[WIDE_ITEMS];
    for (unsigned first = 0; first < items; first += gridDim.x) {
        const bool back = first / gridDim.x % 2 != 0;
        const unsigned index = first + (back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (index >= items) continue;               // the same for all threads
        const unsigned at = last_at_most(rows, index, [&](unsigned row) { return shares[row].first_wide; });
        const Row row = row_of(a.batch, at);
        const Share share = shares[at];
        const Item item = item_of(row, a.window, share, index - share.first_wide, WIDE_TILE);
        run_item(a, s, row, item, share.first_part);
    }
}
