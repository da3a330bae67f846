//! Faults planted in kernels, to see that tests find every one. A child process compiles
//! sources that were changed before.

mod gemma4;
mod recurrent;

use std::process::Command;

use lockstep_backend::AttentionShape;
use lockstep_backend_cuda::{Attention, Element};

use crate::requests::{Request, Run, attend, oracle};
use crate::support::{Gpu, Noise, SEEDS, assert_close};

const ATTENTION: &str = "faults::attention_is_watched";
const WIDE: &str = "wide::wide_tiles_are_watched";
const SINKS: &str = "faults::sinks_are_watched";
const PAIRS: &str = "wide::pairs_of_tiles_are_watched";
const LATENTS: &str = "faults::latents_are_watched";
const HEADS: &str = "cells::heads_are_normed_rotated_and_stored";
const CELLS: &str = "cells::cells_are_copied_one_after_the_other";
const CHOOSING: &str = "sampling::little_is_chosen_and_watched";
const MASKS: &str = "sampling::a_few_masks_are_watched";
const FEW_ROWS: &str = "products::few_rows_are_watched";
const EXPERTS: &str = "experts::experts_are_watched";
const PACKED: &str = "experts::packed_experts_are_watched";
const WINDOWS: &str = "attention::windows_show_the_nearest_positions";
const NORMS: &str = "rowwise::norms_are_those_of_plain_loops";
const ENDS: &str = "blocks::ends_of_blocks_are_those_of_plain_loops";
const CHAINS: &str = "chains::kernels_that_begin_early_have_the_bits_of_those_that_wait";

/// Name of a fault, script by which `sed` plants it, and the test that has to fail.
type Fault = (&'static str, &'static str, &'static str);

const FAULTS: [Fault; 90] = [
    (
        "latents in turn before the block before is done with",
        "s/__syncthreads(); *.. keys, queries and.*//;s/__syncthreads(); *.. and done with.*//",
        PAIRS,
    ),
    (
        "a pair's second tile scores the first one's queries",
        "s/s.queries + first . STRIDE, keys/s.queries, keys/",
        PAIRS,
    ),
    (
        "latents before the block before is done with",
        "s/__syncthreads(); *.. and done with.*//",
        LATENTS,
    ),
    (
        "no wait for latents",
        "/float scores.2..4., faded/,/score(a, s.tiles/s/cp_async_wait_group<APART . 1 : 0>();//",
        LATENTS,
    ),
    (
        "cells too early",
        "/cell_of(a, row, item, begin/,/copy_block/s/__syncthreads();//",
        ATTENTION,
    ),
    (
        "keys too early",
        "s/__syncthreads(); *.. keys, queries and.*//",
        ATTENTION,
    ),
    (
        "maxima too early",
        "s/__syncthreads(); *.. maxima are.*//",
        ATTENTION,
    ),
    (
        "values too early",
        "s/__syncthreads(); *.. values, weights and.*//",
        ATTENTION,
    ),
    (
        "values too late",
        "s/__syncthreads(); *.. and done with.*//",
        ATTENTION,
    ),
    (
        "no wait for keys",
        "/float scores.2..4., faded/,/score(a, s.tiles/s/cp_async_wait_group<APART . 1 : 0>();//",
        ATTENTION,
    ),
    (
        "no wait for values",
        "/ weigh(s.tiles/,/gather(s.tiles/s/if (!LATENT) cp_async_wait_group<APART . 1 : 0>();//",
        ATTENTION,
    ),
    (
        "next page",
        "s/row.pages + at . a.page_size/row.pages + (at + 1) \\/ a.page_size/",
        ATTENTION,
    ),
    (
        "another row's pages",
        "s/row.pages + at . a/at \\/ a/",
        ATTENTION,
    ),
    (
        "one position more",
        "s/return row.kv_len + token + 1;/return row.kv_len + token + 2;/",
        ATTENTION,
    ),
    (
        "a window of one position more",
        "s/count - min(count, window)/count - min(count, window + 1)/",
        WINDOWS,
    ),
    (
        "bits past the last token",
        "s/left >= 32 .*;$/mask[word];/",
        ATTENTION,
    ),
    (
        "a mask's tokens in no order",
        "s/for (; nth > 0; nth--) bits &= bits - 1;//",
        ATTENTION,
    ),
    (
        "parts of another row",
        "s/(unsigned)(with - wants)/(unsigned)with/",
        ATTENTION,
    ),
    ("no end of parts", "s/with <= a.most_parts/true/", ATTENTION),
    (
        "a span is forgotten",
        "s/span < end; span++/span + 1 < end; span++/",
        ATTENTION,
    ),
    (
        "a tile's end",
        "s/item.queries = min(own ? TILE : tile, end - item.query);/item.queries = tile;/",
        ATTENTION,
    ),
    (
        "a sink for each span",
        "s/fold(sum, part.column., factors);/& if (a.sinks) sum = __fmul_rn(sum, fold_sink(max, weight, a.sinks[query % a.heads]));/",
        SINKS,
    ),
    (
        "a sink for each span that one item folds",
        "s/const Factors factors = fold_max(total.max.half., span.max.half.);/& total.weight[half] += 1;/",
        SINKS,
    ),
    (
        "a sink that sums do not fade by",
        "s/return factors.total;/return 1.0f;/",
        SINKS,
    ),
    (
        "a sink that weighs nothing",
        "s/fold(weight, 1.0f, factors);/fold(weight, 0.0f, factors);/",
        SINKS,
    ),
    (
        "a sink that is no power of two",
        "s/__fmul_rn(sink, 1.44.*f))/sink)/",
        SINKS,
    ),
    (
        "the sink of another head",
        "s/a.sinks.query % a.heads./a.sinks[0]/; s/a.sinks.head./a.sinks[0]/",
        SINKS,
    ),
    (
        "wide: cells too early",
        "s/__syncthreads(); *.. first cells.*//",
        WIDE,
    ),
    (
        "wide: keys too early",
        "s/__syncthreads(); *.. keys are there.*//",
        WIDE,
    ),
    (
        "wide: values too early",
        "s/__syncthreads(); *.. all of the values.*//",
        WIDE,
    ),
    (
        "wide: no wait for keys",
        "/Weights weights;/,/keys are there/s/cp_async_wait_group<1>();//",
        WIDE,
    ),
    (
        "wide: no wait for values",
        "/weigh(span, scores, weights);/,/gather/s/cp_async_wait_group<1>();//",
        WIDE,
    ),
    (
        "wide: a block's cells for the next",
        "s/next + BLOCK + slot/next + slot/",
        WIDE,
    ),
    (
        "another span's part",
        "s/first_part, at . SPAN, place/first_part, item.first_span, place/",
        ATTENTION,
    ),
    ("pairs too early", "s/__syncwarp();//", HEADS),
    ("moves all at once", "s/i < count; i++/i < 1; i++/", CELLS),
    ("sums too early", "s/__syncthreads();//", NORMS),
    (
        "chunks too early, or too late",
        "s/__syncthreads(); *.. the chunk is there.*//",
        FEW_ROWS,
    ),
    (
        "no wait for chunks",
        "s/cp_async_wait_group<STAGES - 2>();//",
        FEW_ROWS,
    ),
    (
        "one chunk less is waited for",
        "s/cp_async_wait_group<STAGES - 2>/cp_async_wait_group<STAGES - 1>/",
        FEW_ROWS,
    ),
    (
        "columns past the last",
        "s/const bool inside = there .*;/const bool inside = there;/",
        FEW_ROWS,
    ),
    (
        "a slice is forgotten",
        "s/first < sums.count; first/first + 1 < sums.count; first/",
        FEW_ROWS,
    ),
    (
        "units at one place",
        "s/(unit ^ row % 8)/unit % 4/",
        FEW_ROWS,
    ),
    (
        "a mask of the row before",
        "s/a.rows.blockIdx.y. [*] a.vocab/a.rows[blockIdx.y ? blockIdx.y - 1 : 0] * a.vocab/",
        MASKS,
    ),
    (
        "the first mask for all rows",
        "s/(size_t)blockIdx.y [*] a.words/0/",
        MASKS,
    ),
    (
        "a mask that hides what is not finite",
        "s/ && row.id. < INFINITY) row/) row/",
        MASKS,
    ),
    (
        "a mask that weighs little instead of nothing",
        "s/row.id. = -INFINITY;/row[id] = row[id] - 9.0f;/",
        MASKS,
    ),
    (
        "two roundings in one",
        "s/__fadd_rn(__fmul_rn(p, r), 0.5f)/std::fma(p, r, 0.5f)/",
        CHOOSING,
    ),
    (
        "cells that are not empty",
        "s/__syncthreads(); *.. fine cells are empty//",
        CHOOSING,
    ),
    (
        "cells that are not full",
        "s/__syncthreads(); *.. cells are full.*//",
        CHOOSING,
    ),
    (
        "a border too early",
        "s/__syncthreads(); *.. the border is there//",
        CHOOSING,
    ),
    (
        "sums too late",
        "s/__syncthreads(); *.. the last sums were read//",
        CHOOSING,
    ),
    (
        "weights that are not there yet",
        "s/__syncthreads(); *.. all weights are in their cells//",
        CHOOSING,
    ),
    (
        "a list that is not empty",
        "s/__syncthreads(); *.. the list is empty//",
        CHOOSING,
    ),
    (
        "a listed token too early",
        "s/__syncthreads(); *.. the token is there//",
        CHOOSING,
    ),
    (
        "a cell that is not listed",
        "s/>> COARSE_SHIFT <= border.cell/>> COARSE_SHIFT < border.cell/",
        CHOOSING,
    ),
    ("a carry is forgotten", "s/low < before/false/", CHOOSING),
    ("the last row's state", "s/words.i. = 0;/;/", CHOOSING),
    ("the last of equals", "s/<< 32 . ~id/<< 32 | id/", CHOOSING),
    ("ties beyond top-k", "s/(nth + 1) . own/2 * own/", CHOOSING),
    (
        "weights of experts too early",
        "s/__syncwarp(); *.. the chosen are in front//",
        EXPERTS,
    ),
    (
        "the highest of equal experts, or any",
        "s/expert < best.expert);/expert > best.expert);/",
        EXPERTS,
    ),
    (
        "a correction that weighs",
        "s/const float weight = is_chosen .*/const float weight = is_chosen ? weights[e] + (a.correction ? a.correction[e] : 0.0f) : 0.0f;/",
        EXPERTS,
    ),
    (
        "a correction that chooses nothing",
        "s/__fadd_rn(weights.e., a.correction . a.correction.e. : 0.0f)/weights[e]/",
        EXPERTS,
    ),
    (
        "the factor is forgotten",
        "s/ : weight, a.factor)/ : weight, 1.0f)/",
        EXPERTS,
    ),
    (
        "a shared expert is forgotten",
        "s/experts.i. = a.held + i - a.active;/experts[i] = 0;/",
        EXPERTS,
    ),
    (
        "counts that are not zero",
        "s/__syncthreads(); *.. counts are zero//",
        EXPERTS,
    ),
    (
        "choices that are not counted",
        "s/__syncthreads(); *.. all are counted//",
        EXPERTS,
    ),
    (
        "a tile's end of another expert",
        "s/min(a.height, total - before)/a.height/",
        EXPERTS,
    ),
    (
        "the row before a place's",
        "s/p.order.of.first + row. : of.first/p.order[of.first + (row ? row - 1 : 0)] : of.first/",
        EXPERTS,
    ),
    (
        "another row's weights",
        "s/a.weights + (size_t)row . a.taken;$/a.weights;/",
        EXPERTS,
    ),
    (
        "biases of the first expert",
        "s/(size_t)of.expert . p.outputs . (p.gated/0 * (p.gated/",
        EXPERTS,
    ),
    (
        "biases of one half alone",
        "s/p.outputs . (p.gated ? 2 : 1) : nullptr/p.outputs : nullptr/",
        EXPERTS,
    ),
    (
        "an unbounded gate",
        "s/if (gate > p.limit) gate = p.limit;//",
        EXPERTS,
    ),
    (
        "no lower bound",
        "s/if (up < -p.limit) up = -p.limit;//",
        EXPERTS,
    ),
    (
        "a clamped gate of another steepness",
        "s/expf(-p.alpha . gate)/expf(-gate)/",
        EXPERTS,
    ),
    (
        "packed weights too early, or too late",
        "s/__syncthreads(); *.. the chunk of packed weights is there.*//",
        PACKED,
    ),
    (
        "no wait for packed weights",
        "/chunk < chunks; chunk++/,/packed weights/s/cp_async_wait_group<STAGES - 2>();//",
        PACKED,
    ),
    (
        "exponents of the part before",
        "s/.output. >> 8 . part & 0xff/[output] >> 8 * (part ? part - 1 : 0) \\& 0xff/",
        PACKED,
    ),
    (
        "a sign of another pair",
        "s/TO_SIGN = 0x2130/TO_SIGN = 0x2103/",
        PACKED,
    ),
    (
        "parts at one place",
        "s/(part ^ output . 2 % PARTS)/part % 2/",
        PACKED,
    ),
    (
        "ups of another gate",
        "s/up ? number + a.outputs : number, number/up ? number + a.outputs - 1 : number, number/",
        PACKED,
    ),
    (
        "an activation of experts without gates is forgotten",
        "s/from_f32<OPERAND>(activated(p.activated, up))/from_f32<OPERAND>(up)/",
        EXPERTS,
    ),
    (
        "attention's items before earlier work is done",
        "/DYNAMIC_SHARED(Stage/,/items = a.work/{s/^ *griddepcontrol_wait();//;s/items = a.work.*$/& griddepcontrol_wait();/}",
        ATTENTION,
    ),
    (
        "a merge that waits only where it merges",
        "/attention_merge(Merge/,/if (a.work/{s/begin_after_predecessors();//;s/if (a.work.*$/& griddepcontrol_wait();/}",
        ATTENTION,
    ),
    (
        "an end of a block that norms too early",
        "/ block_sum(float/,/^}/s/__syncthreads();$//",
        ENDS,
    ),
    (
        "rows of a product before earlier work is done",
        "/ multiply(Product/,/^}/{s/^ *griddepcontrol_wait();//;s/^    found.multiply(.*$/& griddepcontrol_wait();/}",
        CHAINS,
    ),
    (
        "parts in front of a norm before earlier work is done",
        "/ norm_units(const/,/^}/{s/^ *griddepcontrol_wait();//;s/^ *float squares = 0;/griddepcontrol_wait(); &/}",
        CHAINS,
    ),
    (
        "sums before earlier work is done",
        "/ silu_mul(SiluMul/,/^}/{s/begin_after_predecessors();//;s/^    a.out.*$/griddepcontrol_wait(); &/}",
        CHAINS,
    ),
    (
        "an activation that is written too early",
        "/ silu_mul(SiluMul/,/^}/{s/begin_after_predecessors();//;s/^}/griddepcontrol_wait(); }/}",
        CHAINS,
    ),
];

/// Texts of a test that has found a fault.
const FOUND: [&str; 8] = [
    "instead of",
    "nothing else is written",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "F32 under",
    "assertion",
    "other bits",
];

/// Runs a test with a planted fault; returns true if it passes, and its output.
pub fn child(fault: &str, test: &str, environment: &[(&str, &str)]) -> (bool, String) {
    let program = std::env::current_exe().expect("this test's file");
    let mut child = Command::new(program);
    child.args(["--exact", test, "--include-ignored", "--test-threads=1"]);
    child.env("FAKE_CUDA_EDIT", fault);
    // For speed: these kernels run once.
    child.env("FAKE_CUDA_FLAGS", "-O0");
    child.env("RUST_BACKTRACE", "0");
    child.envs(environment.iter().copied());
    let output = child.output().expect("a process");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Output of a test that misses the fault; `None` if the test finds it.
fn missed((name, fault, test): Fault) -> Option<String> {
    let (passed, text) = child(fault, test, &[]);
    let found = !passed && FOUND.iter().any(|words| text.contains(words));
    (!found).then(|| format!("{name}: {text}"))
}

#[test]
fn every_planted_fault_is_found() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real device's compiler changes nothing.
    }
    let all = [&FAULTS[..], &gemma4::FAULTS, &recurrent::FAULTS].concat();
    let missed: Vec<String> = std::thread::scope(|scope| {
        let parts = all.chunks(all.len().div_ceil(2));
        let parts: Vec<_> = parts
            .map(|part| scope.spawn(|| part.iter().copied().filter_map(missed).collect::<Vec<_>>()))
            .collect();
        let parts = parts.into_iter().map(|part| part.join().expect("no panic"));
        parts.flatten().collect()
    });
    assert!(missed.is_empty(), "missed: {}", missed.join("\n"));
}

/// Hosts that forget to wait, as `FAKE_CUDA_FORGET` plays them: a copy's source changes early,
/// or a stream goes on too early.
#[test]
fn every_forgotten_wait_is_found() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real driver forgets nothing.
    }
    const TEST: &str = "driver::streams_wait_for_events_and_programs_for_copies";
    for call in ["cuEventSynchronize", "cuStreamWaitEvent"] {
        let program = std::env::current_exe().expect("this test's file");
        let mut child = Command::new(program);
        child.args(["--exact", TEST]).env("FAKE_CUDA_FORGET", call);
        let output = child.output().expect("a process");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            !output.status.success() && text.contains("assertion"),
            "{call}: {text}"
        );
    }
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn attention_is_watched() {
    watched(&AttentionShape::dense(3, 1, 24, 0.2));
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn sinks_are_watched() {
    watched(&AttentionShape {
        sinks: true,
        ..AttentionShape::dense(6, 2, 24, 0.2)
    });
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn latents_are_watched() {
    watched(&AttentionShape {
        latent: Some(16),
        ..AttentionShape::dense(3, 1, 24, 0.2)
    });
}

/// Small enough to run for every fault, with a case of each kind.
fn watched(&shape: &AttentionShape) {
    let gpu = Gpu::new();
    let made = Attention::new(
        &gpu.context,
        &gpu.compiler,
        &shape,
        Element::Bf16,
        Element::Bf16,
    );
    let attention = made.expect("kernels");
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        let requests = [
            Request::causal(1, 0, 30),
            Request::causal(2, 340, 2),
            Request::tree(3, 253, 5, &mut Noise(seed)),
            Request::tree(6, 330, 4, &mut Noise(seed)),
            Request::tree(4, 3, 33, &mut Noise(seed)),
            Request::causal(5, 520, 1),
        ];
        // The two alone leave blocks idle, so they are split.
        let idle = [Request::causal(2, 340, 2), Request::causal(5, 520, 1)];
        for (requests, parts) in [(&idle[..], 64), (&requests[..], 64), (&requests[..], 0)] {
            let run = Run {
                shape,
                cached: Element::Bf16,
                operand: Element::Bf16,
                page_size: 4,
                parts,
            };
            let found = attend(&gpu, &attention, &run, requests);
            for (found, request) in found.iter().zip(requests) {
                assert_close(found, &oracle(&shape, Element::Bf16, request), 1e-2);
            }
        }
    }
}
