//! The costs of a device's chains and trees by their depth, and the effects of a depth that
//! changes.

use std::{fs, path::Path};

use lockstep_adaptive::{Agreed, DepthRange};
use lockstep_fake_cuda::{brought, fetched};

use super::*;

/// Number of tokens of a prompt.
const PROMPT: u32 = 24;
/// Number of positions after the prompt that requests have pages for.
const BEHIND: u32 = 136;
/// Depth of the deepest drafts.
const DEEPEST: u32 = 4;

/// One step of a run.
pub(super) struct Step {
    depth: u32,
    calls: [u64; CALLS.len()],
    /// Bytes that products have fetched.
    fetched: u64,
    /// Number of graphs that were made during the step.
    recorded: u64,
    /// Bytes that were copied to the device.
    pub(super) brought: u64,
    draft_us: u32,
}

/// A run of some requests.
pub(super) struct Run {
    pub(super) steps: Vec<Step>,
    texts: Vec<Vec<u32>>,
    drafts: u64,
    accepted: usize,
}

/// Opens a request with a prompt of `prompt` tokens.
fn open_with(slot: u32, prompt: u32) -> SlotOpen {
    let open = open(slot, false);
    let tokens = open.token_ids.iter().copied().cycle();
    SlotOpen {
        token_ids: tokens.take(prompt as usize).collect(),
        prompt_len: prompt,
        ..open
    }
}

fn rows(config: &EngineConfig, (requests, prompt): (u32, u32), step: u64) -> PlanPart {
    let first = step == 1;
    let pages = (prompt + BEHIND).div_ceil(config.kv.page_size as u32);
    let extend = |slot| SlotExtend {
        slot,
        prefill_len: if first { prompt } else { 0 },
        sample: true,
        new_pages: match first {
            true => (1 + slot * pages..1 + (slot + 1) * pages).collect(),
            false => Vec::new(),
        },
        ..SlotExtend::default()
    };
    let opens = (0..requests).filter(|_| first);
    PlanPart {
        opens: opens.map(|slot| open_with(slot, prompt)).collect(),
        extends: (0..requests).map(extend).collect(),
        ..PlanPart::default()
    }
}

/// Returns arguments for an algorithm with `branches` branches, at depths that the group
/// decides.
fn adaptive(algorithm: &'static str, branches: usize) -> ServeArgs {
    let (steps, tokens) = (DEEPEST as usize, 1 + DEEPEST as usize * branches);
    let mut args = args(Some((algorithm, [steps, branches, tokens])), true);
    args.speculation.speculative_adaptive = Some(true);
    args.model.context_length = Some((PROMPT + BEHIND) as usize);
    args
}

/// Runs a prompt, and then a step for each of `pins`. Where the group decides the depth, the
/// pin acts as an operator's.
fn run(config: &EngineConfig, requests: u32, pins: &[Option<u32>]) -> Run {
    run_behind(config, (requests, PROMPT), pins)
}

/// Runs requests as [`run`] does, with prompts of `prompt` tokens.
pub(super) fn run_behind(
    config: &EngineConfig,
    (requests, prompt): (u32, u32),
    pins: &[Option<u32>],
) -> Run {
    let (mut worker, findings) = load(config);
    let most = config.speculation.num_steps as u32;
    let adaptive = config.speculation.adaptive.as_ref();
    let mut agreed = adaptive.map(|adaptive| Agreed::new(adaptive.initial_depth));
    let mut run = Run {
        steps: Vec::new(),
        texts: vec![Vec::new(); requests as usize],
        drafts: 0,
        accepted: 0,
    };
    for (step, pin) in (1..).zip([None].iter().chain(pins)) {
        let depth = match &mut agreed {
            Some(agreed) => agreed.depth(),
            None => pin.map_or(most, |depth| depth.min(most)),
        };
        let depth_range = pin.map_or_else(DepthRange::default, |depth| DepthRange {
            least: depth,
            most: depth,
        });
        let plan = StepPlan {
            step,
            draft_steps: depth,
            depth_range,
            parts: vec![rows(config, (requests, prompt), step)],
        };
        let weights = || fetched(c"product_").unwrap_or_default();
        let (calls, graphs, bytes) = (made(), recorded(), weights());
        let copied = brought().unwrap_or_default();
        let result = worker.step(&plan).unwrap();
        if let Some(agreed) = &mut agreed {
            agreed.begin();
            agreed.decide(step, result.agreed_depth.unwrap());
        }
        let now = made();
        if step > 1 {
            run.steps.push(Step {
                depth,
                calls: std::array::from_fn(|at| now[at] - calls[at]),
                fetched: weights() - bytes,
                recorded: recorded() - graphs,
                brought: brought().unwrap_or_default() - copied,
                draft_us: result.stages.draft_us,
            });
            run.accepted += result
                .outputs
                .iter()
                .map(|output| output.token_ids.len() - 1)
                .sum::<usize>();
        }
        for output in &result.outputs {
            run.texts[output.slot as usize].extend(&output.token_ids);
        }
    }
    run.drafts = findings.digest();
    run
}

/// Returns the bytes of the matrices that a level of a draft reads in units of 16 bytes.
/// Matrices with other row widths are read value by value, and left out.
fn level_bytes(algorithm: &str, folder: &Path, first: bool) -> u64 {
    let file = fs::read(folder.join("model.safetensors")).unwrap();
    let (len, rest) = file.split_at(8);
    let len = u64::from_le_bytes(len.try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&rest[..len]).unwrap();
    let read = |name: &str| match name {
        "fc.weight" => algorithm == "EAGLE" || first,
        _ => name.ends_with("_proj.weight") || name == "lm_head.weight",
    };
    let size = |tensor: &serde_json::Value| {
        let of = |number: usize| tensor["shape"][number].as_u64().unwrap();
        let (rows, row) = (of(0), 2 * of(1));
        if row % 16 == 0 { rows * row } else { 0 }
    };
    let all = header.as_object().unwrap().iter();
    all.filter(|(name, _)| read(name))
        .map(|(_, tensor)| size(tensor))
        .sum()
}

/// A step at depth `n` reads the draft's weights `n` times, though one graph holds all levels.
#[test]
fn a_level_that_nobody_wants_reads_no_weights() {
    if calls(c"cuInit").is_none() {
        return; // A real driver does not count.
    }
    let trees = MODELS.map(|algorithm| (algorithm, 2));
    for (algorithm, branches) in MODELS
        .map(|algorithm| (algorithm, 1))
        .into_iter()
        .chain(trees)
    {
        let config = resolved(&adaptive(algorithm, branches));
        let draft = draft(algorithm).unwrap();
        let pins: Vec<_> = (0..=DEEPEST).flat_map(|depth| [Some(depth); 3]).collect();
        let steps = run(&config, 1, &pins).steps;
        // The last step at a depth has nothing to catch up with.
        let read = |depth: u32| {
            let last = steps.iter().rfind(|step| step.depth == depth);
            last.unwrap().fetched as f64
        };
        let read: Vec<f64> = (0..=DEEPEST).map(read).collect();
        for depth in 1..read.len() {
            let level = level_bytes(algorithm, &draft, depth == 1) as f64;
            // Rows are read beside the weights: rows of this level, and rows of the target's
            // pass.
            let more = (read[depth] - read[depth - 1]) / level;
            let most = if branches == 1 { 1.2 } else { 1.6 };
            let what = "of a level's weights more are read at a depth of";
            assert!(
                (0.98..most).contains(&more),
                "{algorithm}, {branches}: {more} {what} {depth}"
            );
        }
    }
}

/// A level of more chains than one block multiplies reads the weights once for each share of
/// the chains.
#[test]
fn a_level_of_many_chains_reads_its_weights_once_for_each_share() {
    const MANY: u32 = 66;
    let [mut args, mut plain] =
        [Some(("STANDALONE", [2, 1, 3])), None].map(|drafts| args(drafts, true));
    for args in [&mut args, &mut plain] {
        args.schedule.max_running_requests = Some(MANY as usize);
        args.memory.max_total_tokens = Some((MANY * (PROMPT + BEHIND + 16)) as usize);
        args.model.context_length = Some((PROMPT + BEHIND) as usize);
        args.graphs.cuda_graph_bs = vec![MANY as usize];
    }
    let pins = [1, 1, 2, 2].map(Some);
    // All prompts run in one pass.
    let [found, plain] = [args, plain].map(|args| run_behind(&resolved(&args), (MANY, 6), &pins));
    for (text, plain) in found.texts.iter().zip(&plain.texts) {
        assert_eq!(text[..pins.len()], plain[..pins.len()]);
    }
    if calls(c"cuInit").is_none() {
        return;
    }
    // The library multiplies for the target and for the first levels.
    let level = level_bytes("STANDALONE", &model(), false) as f64;
    let [.., shallow, _, deep] = &found.steps[..] else {
        panic!("there are as many steps");
    };
    assert_eq!([shallow.calls[0], deep.calls[0]], [2; 2]);
    let shares = (deep.fetched - shallow.fetched) as f64 / level;
    assert_eq!(shallow.fetched, 0);
    assert!((2.0..3.0).contains(&shares), "{shares}, rows among them");
}

/// The depth of a group that adapts changes while it runs. Nothing is recorded for a new depth,
/// and no step needs more than its launches, copies and wait. Texts equal those without drafts,
/// in full passes and in padded ones.
#[test]
fn a_depth_that_adapts_costs_no_text_and_records_nothing() {
    let pins = [4, 4, 4, 1, 1, 1, 0, 0, 0, 3, 3, 3, 2, 2].map(Some);
    let pins = [&pins[..], &[None; 4]].concat();
    let plan = pins.iter().flatten();
    // There are graphs of 1, 2 and 4 requests. Three requests run in the padded graph of 4.
    let fills: [(u32, &[&'static str]); 4] = [
        (1, &["EAGLE", "STANDALONE"]),
        (2, &["EAGLE"]),
        (3, &["EAGLE", "EAGLE3"]),
        (4, &["EAGLE", "STANDALONE"]),
    ];
    for (requests, algorithms) in fills {
        let mut args = args(None, true);
        args.model.context_length = Some((PROMPT + BEHIND) as usize);
        let plain = run(&resolved(&args), requests, &pins);
        for algorithm in algorithms {
            let _order = lockstep_fake_cuda::order(u64::from(requests));
            let branches = if requests % 2 == 0 { 2 } else { 1 };
            let found = run(&resolved(&adaptive(algorithm, branches)), requests, &pins);
            for (text, plain) in found.texts.iter().zip(&plain.texts) {
                let most = pins.len();
                assert_eq!(text[..most], plain[..most], "{algorithm}, {requests}");
            }
            assert!(found.accepted > 0, "{algorithm}, {requests}");
            let depths = found.steps.iter().map(|step| step.depth);
            // A decision holds two steps later.
            let held = depths.skip(2).zip(plan.clone()).skip(1);
            assert!(held.clone().all(|(depth, pin)| depth == *pin));
            check_calls(algorithm, &found.steps);
        }
    }
}

/// Checks the calls of steps at the depth of the step before, which have nothing to catch up
/// with.
fn check_calls(algorithm: &str, steps: &[Step]) {
    if calls(c"cuInit").is_none() {
        return; // A real driver does not count.
    }
    assert!(steps.iter().all(|step| step.recorded == 0), "{algorithm}");
    let same = steps.windows(2).filter(|two| two[0].depth == two[1].depth);
    for step in same.map(|two| &two[1]) {
        // In a step without drafts, a head's features are kept aside.
        let kept = u64::from(step.depth == 0 && algorithm != "STANDALONE");
        let launches = if step.depth > 0 { 2 } else { 1 };
        let expected = [launches, kept, 1 + kept, 1, 1, 0];
        assert_eq!(step.calls, expected, "{algorithm} at {}", step.depth);
        // The fake device's clock measures the time.
        assert!(step.depth == 0 || step.draft_us >= 1_000, "{algorithm}");
    }
}
