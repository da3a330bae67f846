//! The table of what the kernels of a step take of a multiprocessor, by NVIDIA's own compiler.
//! Run as the tests that compile all kernels; with `UPDATE_EXPECT=1` it is written.

use std::fmt::Write as _;
use std::path::Path;

use lockstep_backend::{AttentionShape, DeltaShape};

use super::{BLOCK_MEMORY, DELTAS, Defines, MOST_SHARED, Source, TAPS, compiled};
use crate::drafting::sampling;
use crate::ops::delta::HeadRule;
use crate::ops::{
    attention, blocks, delta, experts, groups, latent, products, rowwise, short, states,
};
use crate::runtime::compiler::library_version;
use crate::tensors::{Element, MatrixForm};

const TABLE: &str = "../../docs/results/kernels-on-gpus.md";

/// A generation of GPUs, with the limits of a multiprocessor from the CUDA C++ Programming Guide.
struct Architecture {
    name: &'static str,
    shared: usize,
    threads: usize,
    blocks: usize,
}
const ARCHITECTURES: [Architecture; 4] = [
    Architecture::new("sm_80", 164 << 10, 2048, 32),
    Architecture::new("sm_90", 228 << 10, 2048, 32),
    Architecture::new("sm_100", 228 << 10, 2048, 32),
    Architecture::new("sm_120", 100 << 10, 1536, 24),
];
/// Registers of a multiprocessor, and the unit in which a warp gets them.
const REGISTERS: usize = 64 << 10;
const REGISTER_UNIT: usize = 256;
/// Shared memory that each block takes for the system.
const SYSTEM_SHARED: usize = 1 << 10;

impl Architecture {
    const fn new(name: &'static str, shared: usize, threads: usize, blocks: usize) -> Self {
        Self {
            name,
            shared,
            threads,
            blocks,
        }
    }

    /// Number of blocks that a multiprocessor runs at once; zero if it can run none.
    fn at_once(&self, kernel: &Kernel, taken: &Taken) -> usize {
        let warps = kernel.threads.div_ceil(32);
        let registers = warps * (32 * taken.registers).next_multiple_of(REGISTER_UNIT);
        let shared = kernel.dynamic + taken.shared + SYSTEM_SHARED;
        let room = [
            REGISTERS / registers,
            self.shared / shared,
            self.threads / kernel.threads,
            self.blocks,
        ];
        room.into_iter().min().unwrap_or_default()
    }
}

/// A kernel as it is launched.
struct Kernel {
    name: &'static str,
    threads: usize,
    /// Bytes of shared memory beside those that its source declares.
    dynamic: usize,
    /// Heads, where they are not those of the table, and the way that they are taken.
    heads: &'static str,
    /// True if GPUs whose blocks may have too little shared memory do without.
    optional: bool,
}

/// Registers and memory of a kernel, by the compiler's report.
struct Taken {
    registers: usize,
    shared: usize,
    spills: bool,
}

fn kernel(name: &'static str, threads: usize) -> Kernel {
    Kernel {
        name,
        threads,
        dynamic: 0,
        heads: "",
        optional: false,
    }
}

/// Kernels by their names, threads and bytes of shared memory.
fn launched<const N: usize>(all: [(&'static str, usize, usize); N]) -> Vec<Kernel> {
    let kernels = all.map(|(name, threads, dynamic)| Kernel {
        dynamic,
        ..kernel(name, threads)
    });
    kernels.into()
}

/// Kernels of attention of other shapes, each with its program: latents of DeepSeek V3 on eight
/// ranks, and Gemma 4's wide heads. Pairs of tiles take one block of positions at a time where two
/// have no room.
fn wide_shapes() -> Vec<((&'static Source, Defines), Vec<Kernel>)> {
    const LATENTS: [&str; 3] = [
        " of latents of 512 and 64 columns",
        " of latents of 512 and 64 columns, two blocks of positions",
        " of latents of 512 and 64 columns, one block of positions",
    ];
    const WIDE: [&str; 3] = [
        " of 512 columns",
        " of 512 columns, two blocks of positions",
        " of 512 columns, one block of positions",
    ];
    let latents = AttentionShape {
        latent: Some(512),
        ..AttentionShape::dense(16, 1, 576, 1.0)
    };
    let shapes = [
        (latents, LATENTS),
        (AttentionShape::dense(8, 1, 512, 1.0), WIDE),
    ];
    let of_shape = |(shape, names): (AttentionShape, [&'static str; 3])| {
        let [heads, two, one] = names;
        let [.., attend] = attention::sources(&shape, Element::Bf16, Element::Bf16);
        let staged = attention::stage_bytes(&shape, Element::Bf16);
        let kernels = launched([("attend", 128, staged), ("attention_merge", 128, 0)]);
        let kernels = kernels.into_iter().map(|kernel| Kernel { heads, ..kernel });
        let [most, less, _] = BLOCK_MEMORY;
        let pairs = [(two, most), (one, less)];
        let pairs = pairs.map(|(heads, most)| pairs_of_tiles(&shape, heads, most));
        [(attend, kernels.collect())].into_iter().chain(pairs)
    };
    shapes.into_iter().flat_map(of_shape).collect()
}

/// The kernel of pairs of tiles on GPUs whose blocks have so much shared memory.
fn pairs_of_tiles(
    shape: &AttentionShape,
    heads: &'static str,
    most: usize,
) -> ((&'static Source, Defines), Vec<Kernel>) {
    let wide = attention::Wide::of(shape, Element::Bf16, most).expect("pairs of tiles fit");
    let kernel = Kernel {
        name: "attend_wide",
        threads: wide.threads as usize,
        dynamic: wide.bytes,
        heads,
        optional: true,
    };
    let program = attention::wide_source(shape, Element::Bf16, &wide);
    (program, vec![kernel])
}

/// The kernels of a step of a model of Llama 3's shape in bf16, by their programs.
fn programs() -> Vec<((&'static Source, Defines), Vec<Kernel>)> {
    let (shape, bf16) = (AttentionShape::dense(32, 8, 128, 1.0), Element::Bf16);
    let [rows, norm, elementwise] = rowwise::sources(bf16);
    let [cells, plan, attend] = attention::sources(&shape, bf16, bf16);
    let wide = attention::Wide::of(&shape, bf16, MOST_SHARED).expect("wide tiles serve this shape");
    let few = launched(products::few::launched());
    let few = few.into_iter().chain([kernel("sum_up", 256)]);
    let of_experts = [MatrixForm::Floats, MatrixForm::Mxfp4].map(|form| {
        let kernels = launched(experts::products::launched(bf16, form));
        (experts::products::source(bf16, form), kernels)
    });
    let [floats, mxfp4] = of_experts;
    let [choose, accept] = sampling::SOURCES.map(|source| (source, Defines::new()));
    let mut all = vec![
        (rows, vec![kernel("embed", 256)]),
        (
            norm,
            vec![kernel("rms_norm", 256), kernel("rms_norm_wide", 256)],
        ),
        (products::few::source(bf16, false), few.collect()),
        (elementwise, vec![kernel("silu_mul", 256)]),
        (
            blocks::source(bf16),
            [
                "end_block",
                "join_norms",
                "square_sums",
                "whole_norm",
                "activate",
                "sigmoid_gate",
                "scale_logits",
            ]
            .map(|name| kernel(name, 256))
            .into(),
        ),
        (
            experts::source(bf16),
            vec![
                kernel("score_1", 128),
                kernel("score_4", 128),
                kernel("score_16", 128),
                kernel("route", 128),
                kernel("sort_choices", 512),
                kernel("weigh_choices", 128),
            ],
        ),
        floats,
        mxfp4,
        (cells, vec![kernel("rotate_and_store", 128)]),
        (plan, vec![kernel("attention_plan", 32)]),
        (
            attend,
            launched([
                ("attend", 128, attention::stage_bytes(&shape, bf16)),
                ("attention_merge", 128, 0),
            ]),
        ),
        (
            attention::wide_source(&shape, bf16, &wide),
            launched([("attend_wide", 128, wide.bytes)]),
        ),
        (latent::source(bf16, bf16), launched(latent::launched())),
        (
            choose,
            vec![
                kernel("choose_best", 512),
                kernel("choose_mask", 512),
                kernel("choose_weigh", 512),
                kernel("choose_token", 1024),
            ],
        ),
        (accept, vec![kernel("accept", 128), kernel("follow", 128)]),
    ];
    all.extend(of_recurrent_layers());
    all.extend(wide_shapes());
    all
}

/// Those of recurrent layers of Qwen 3.5, Nemotron 3 Nano and LFM2.
fn of_recurrent_layers() -> Vec<((&'static Source, Defines), Vec<Kernel>)> {
    let bf16 = Element::Bf16;
    let heads = |(rule, shape): &(HeadRule, DeltaShape)| delta::sources((*rule, shape), bf16);
    let ([delta, recur], [mamba, scan]) = (heads(&DELTAS[0]), heads(&DELTAS[3]));
    let of_mamba = Kernel {
        heads: " of Mamba-2",
        ..kernel("delta_recur", 128)
    };
    let kernels = |threads: usize, names: [&'static str; 2]| {
        let all = names.map(|name| kernel(name, threads));
        Vec::from(all)
    };
    vec![
        (delta, kernels(128, ["delta_prepare", "delta_finish"])),
        (recur, vec![kernel("delta_recur", 128)]),
        (mamba, kernels(128, ["mamba_prepare", "mamba_finish"])),
        (scan, vec![of_mamba]),
        (
            groups::source(bf16),
            kernels(256, ["group_squares", "group_norm"]),
        ),
        (
            short::source(TAPS[0], bf16),
            kernels(256, ["short_convolve", "short_commit"]),
        ),
        (
            (states::copies_source(), Defines::new()),
            kernels(128, ["copy_states_16", "copy_states_4"]),
        ),
    ]
}

/// Reads the part of a program's log that is about `kernel`.
fn taken(log: &str, kernel: &str) -> Taken {
    let of = format!("'{kernel}'");
    let lines = log.lines().skip_while(|line| !line.contains(&of));
    let lines: Vec<&str> = lines.take(4).collect();
    let number_before = |line: &str, word: &str| -> Option<usize> {
        let (before, _) = line.split_once(word)?;
        before.split_whitespace().last()?.parse().ok()
    };
    let used = lines.iter().find(|line| line.contains(" registers"));
    let used = used.unwrap_or_else(|| panic!("the log tells of {kernel}: {log}"));
    let spill = |line: &&str| line.contains("spill") && !line.contains("0 bytes spill stores");
    Taken {
        registers: number_before(used, " registers").expect("a number of registers"),
        shared: number_before(used, " bytes smem").unwrap_or(0),
        spills: lines.iter().any(spill),
    }
}

/// The whole table, and the kernels that spill or don't run.
fn table(version: &str) -> (String, Vec<String>) {
    let mut text = format!(
        "# Kernels on GPUs\n\n\
         What a step's kernels take of a multiprocessor, for a model of Llama 3's shape in bf16 (32 heads, 8 key heads, 128 columns), and the kernels that some other families have beside them. \
         By libnvrtc {version}, without a GPU; none spills. Each cell: registers of a thread, KiB of shared memory of a block, blocks on a multiprocessor at once; – where a GPU has too little shared memory and does without.\n\n\
         Written by the test `kernels_of_a_step_fit` of `tp-worker/backend-cuda` with `UPDATE_EXPECT=1`; \
         [how to run it](../../CONTRIBUTING.md#before-a-commit).\n\n| kernel | threads |"
    );
    let mut wrong = Vec::new();
    for of in &ARCHITECTURES {
        let _ = write!(text, " {} |", of.name);
    }
    text += "\n|---|---|---|---|---|---|\n";
    for ((source, defines), kernels) in programs() {
        let logs = ARCHITECTURES.map(|of| {
            let (log, _) = compiled(of.name, source, &defines);
            (of, log)
        });
        for kernel in kernels {
            let Kernel {
                name,
                threads,
                heads,
                optional,
                ..
            } = kernel;
            let _ = write!(text, "| `{name}`{heads} | {threads} |");
            for (of, log) in &logs {
                let taken = taken(log, kernel.name);
                let blocks = of.at_once(&kernel, &taken);
                if taken.spills || (blocks == 0 && !optional) {
                    wrong.push(format!(
                        "{} on {}: {blocks} blocks: {log}",
                        kernel.name, of.name
                    ));
                }
                let shared = (kernel.dynamic + taken.shared) as f64 / 1024.0;
                let _ = match blocks {
                    0 => write!(text, " – |"),
                    _ => write!(text, " {}, {shared:.1}, {blocks} |", taken.registers),
                };
            }
            text.push('\n');
        }
    }
    (text, wrong)
}

/// The file is compared if it was written with the same compiler.
#[test]
#[ignore = "needs NVIDIA's compiler, libnvrtc"]
fn kernels_of_a_step_fit() {
    let version = library_version().expect("libnvrtc").to_string();
    let (text, wrong) = table(&version);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &text).expect("the table is written");
    }
    let kept = std::fs::read_to_string(&path).expect("the table");
    if kept.contains(&format!("libnvrtc {version},")) {
        assert_eq!(kept, text, "write it with UPDATE_EXPECT=1");
    }
}
