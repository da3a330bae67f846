//! The battery passes every algorithm that is served, and catches algorithms that break a rule.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use lockstep_backend::Backend;
use lockstep_config::{Hardware, ServeArgs, resolve};
use lockstep_devices::Registry;
use lockstep_speculation::{
    Build, Device, DraftError, DraftRow, Drafter, DrafterFactory, Drafts, Ngram, Node,
};
use lockstep_tp_worker::{
    conformance::{ConformanceError, Ranks, Report, check, check_on},
    worker::{
        WorkerError,
        local::{LocalGroup, LocalOptions},
    },
};
use lockstep_types::{
    Algorithm, Capabilities, DeviceKind, DraftKv,
    sampling::SamplingParams,
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};

fn model(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    let root = above.find(|folder| folder.join("models").is_dir());
    let root = root.expect("the models are above this crate");
    root.join("models").join(name)
}

fn builtin(name: &str, draft: Option<&str>) -> Result<Report, ConformanceError> {
    let draft = draft.map(model);
    let target = model("lockstep-demo-7m");
    check(&Registry::builtin(), name, &target, draft.as_deref())
}

#[test]
fn eagle_conforms() {
    let report = builtin("EAGLE", Some("lockstep-demo-7m-eagle")).unwrap();
    assert!(report.trees > 0 && report.accepted > 0 && report.switches > 0);
}

#[test]
fn eagle3_conforms() {
    let report = builtin("EAGLE3", Some("lockstep-demo-7m-eagle3")).unwrap();
    assert!(report.trees > 0 && report.accepted > 0 && report.switches > 0);
}

/// A random mixture with a draft layer of its own.
fn mixture() -> PathBuf {
    model("../tests/fixtures/nextn/glm4_moe")
}

/// A random mixture with three draft layers, which draft in turn.
fn mixture_in_turn() -> PathBuf {
    model("../tests/fixtures/nextn/glm4_moe_three")
}

#[test]
fn draft_layers_in_turn_conform() {
    let report = check(&Registry::builtin(), "NEXTN", &mixture_in_turn(), None).unwrap();
    assert!(report.trees > 0 && report.accepted > 0 && report.switches > 0);
}

#[test]
fn a_draft_layer_of_the_model_conforms() {
    let report = check(&Registry::builtin(), "NEXTN", &mixture(), None).unwrap();
    assert!(report.trees > 0 && report.accepted > 0 && report.switches > 0);
}

#[test]
fn dflash_conforms() {
    let report = builtin("DFLASH", Some("lockstep-demo-7m-dflash")).unwrap();
    assert!(report.trees == 0 && report.accepted > 0 && report.switches > 0);
}

#[test]
fn a_standalone_draft_conforms() {
    let report = builtin("STANDALONE", Some("lockstep-demo-1m-draft")).unwrap();
    assert!(report.trees > 0 && report.accepted > 0 && report.switches > 0);
}

#[test]
fn ngrams_conform() {
    let report = builtin("ngram", None).unwrap();
    assert!(report.trees > 0 && report.accepted > 0 && report.switches > 0);
}

/// It keeps every rule that the battery checks before anything is drafted. Its drafts come from
/// constraints, which no request of the battery has.
#[test]
fn jump_forward_drafts_nothing_by_itself() {
    let error = builtin("JUMP_FORWARD", None).unwrap_err();
    assert!(matches!(error, ConformanceError::Idle { .. }), "{error}");
}

/// A head reads only rows of its own DP rank, whose requests other DP ranks do not know.
#[test]
fn drafters_conform_on_several_ranks() {
    for (name, draft, (tp_size, dp_size)) in [
        ("EAGLE3", Some("lockstep-demo-7m-eagle3"), (2, 2)),
        ("DFLASH", Some("lockstep-demo-7m-dflash"), (2, 2)),
        ("NEXTN", None, (2, 2)),
        ("STANDALONE", Some("lockstep-demo-1m-draft"), (4, 2)),
        ("NGRAM", None, (2, 1)),
    ] {
        let ranks = Ranks {
            device: DeviceKind::Cpu,
            own_gpus: false,
            tp_size,
            dp_size,
        };
        let target = match name {
            "NEXTN" => mixture_in_turn(),
            _ => model("lockstep-demo-7m"),
        };
        let draft = draft.map(model);
        let registry = Registry::builtin();
        let report = check_on(ranks, &registry, name, &target, draft.as_deref()).unwrap();
        assert!((report.trees > 0) == (name != "DFLASH"));
        assert!(report.accepted > 0 && report.switches > 0);
    }
}

/// A random model of recurrent layers and attention, with a draft layer of its own.
fn hybrid() -> PathBuf {
    model("../tests/fixtures/nextn/qwen3_5")
}

/// Requests have states, go on from copies of states, and have records of all that is verified.
#[test]
fn drafters_conform_on_recurrent_layers() {
    for (name, (tp_size, dp_size)) in [("NGRAM", (1, 1)), ("NEXTN", (1, 1)), ("NEXTN", (2, 2))] {
        let ranks = Ranks {
            device: DeviceKind::Cpu,
            own_gpus: false,
            tp_size,
            dp_size,
        };
        let report = check_on(ranks, &Registry::builtin(), name, &hybrid(), None).unwrap();
        assert!(
            report.trees > 0 && report.accepted > 0 && report.switches > 0,
            "{name}: {report:?}"
        );
    }
}

#[test]
fn an_algorithm_that_nobody_knows_is_refused() {
    let error = builtin("LOOKAHEAD", None).unwrap_err();
    assert!(matches!(error, ConformanceError::Unknown(_)), "{error}");
}

/// Faults of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// No fault.
    None,
    /// It branches, and says that it does not.
    Branches,
    /// A row is deeper than it may be.
    TooDeep,
    /// It puts a child before its parent.
    ChildFirst,
    /// A node follows itself.
    Itself,
    /// One node is followed by the same token twice.
    Twins,
    /// A token is in no vocabulary.
    Token,
    /// It drafts something else each time it is built.
    Whim,
    /// It drafts nothing.
    Silence,
    /// It says that it reads hidden states, but captures none.
    Hidden,
    /// It says that it keeps keys and values, but has no model.
    Keeps,
    /// It says that it samples, but gives no probabilities.
    Probabilities,
    /// It verifies fewer tokens than it drafts.
    Narrow,
    /// It runs passes of a width of its own on a draft model, but has no such model.
    Passes,
    /// It says that it drafts from texts, but takes none.
    Texts,
}

/// Drafts the last token again and again.
#[derive(Debug)]
struct Echo(Fault);

struct EchoDrafter {
    fault: Fault,
    offset: u32,
}

impl Algorithm for Echo {
    fn name(&self) -> &str {
        "ECHO"
    }
    fn summary(&self) -> &str {
        "the last token again"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            draft_kv: match self.0 {
                Fault::Keeps => DraftKv::Tokens,
                _ => DraftKv::None,
            },
            supports_tree: self.0 == Fault::Twins,
            draft_probabilities: self.0 == Fault::Probabilities,
            carries_hidden_states: self.0 == Fault::Hidden,
            adaptive: true,
            drafts_from_texts: self.0 == Fault::Texts,
            ..Capabilities::default()
        }
    }
    fn tokens_per_request_for_verify(&self, draft_tokens: usize, is_draft: bool) -> usize {
        match (self.0, is_draft) {
            (Fault::Narrow, false) => draft_tokens - 1,
            (Fault::Passes, true) => draft_tokens + 1,
            _ => draft_tokens,
        }
    }
}

impl<B: Backend> DrafterFactory<B> for Echo {
    fn build(&self, _build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        static BUILT: AtomicU32 = AtomicU32::new(0);
        let offset = match self.0 {
            Fault::Whim => BUILT.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        let fault = self.0;
        Ok(Box::new(EchoDrafter { fault, offset }))
    }
}

impl<B: Backend> Drafter<B> for EchoDrafter {
    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        for (at, row) in rows.iter().enumerate() {
            let last = device.requests.tokens(row.slot)[row.kv_len];
            let token = (last + self.offset) % 200;
            let chain = (0..row.steps.min(row.most) as u32).map(|parent| (token, parent));
            let nodes = match self.fault {
                Fault::Silence => Vec::new(),
                Fault::Branches => vec![(token, 0), (token + 1, 0)],
                Fault::Twins => vec![(token, 0), (token, 0)],
                Fault::ChildFirst => vec![(token, 2), (token, 0)],
                Fault::Itself => vec![(token, 1)],
                Fault::Token => vec![(u32::MAX, 0)],
                Fault::TooDeep => vec![(token, 0), (token, 1)],
                _ => chain.collect(),
            };
            // Faults show where a row has room for them. `TooDeep` shows where the row has no
            // room, but its drafts have.
            let shows = match self.fault {
                Fault::TooDeep => row.steps == 1 && drafts.most() > 1,
                _ => row.steps > 0 && row.most >= nodes.len(),
            };
            if shows {
                for (token, parent) in nodes {
                    drafts.push(at, Node { token, parent });
                }
            }
        }
        Ok(())
    }
}

/// Runs the battery with a model of random weights, whose texts say as much about its rules.
fn echo(fault: Fault) -> Result<Report, ConformanceError> {
    echo_for(&model("../tests/fixtures/architectures/llama"), fault)
}

fn echo_for(target: &Path, fault: Fault) -> Result<Report, ConformanceError> {
    let registry = Registry::empty().with(Echo(fault)).with(Ngram::default());
    check(&registry, "ECHO", target, None)
}

#[test]
fn a_sound_algorithm_of_a_user_conforms() {
    for report in [echo(Fault::None), echo_for(&hybrid(), Fault::None)] {
        let report = report.unwrap();
        assert!(report.drafted > 0 && report.trees == 0);
    }
}

#[test]
fn drafts_that_break_a_rule_are_caught() {
    for (fault, rule) in [
        (Fault::Branches, "drafts are chains"),
        (Fault::TooDeep, "a row has at most `most` nodes"),
        (Fault::ChildFirst, "parents come before children"),
        (Fault::Twins, "children of a node differ"),
        (Fault::Token, "tokens are the target's"),
        (Fault::Hidden, "carries_hidden_states"),
        (Fault::Texts, "drafts_from_texts"),
        (
            Fault::Probabilities,
            "a sampled draft has its probabilities",
        ),
    ] {
        let error = echo(fault).unwrap_err();
        assert!(matches!(error, ConformanceError::Worker { .. }), "{error}");
        assert!(error.to_string().contains(rule), "{fault:?}: {error}");
    }
}

#[test]
fn answers_that_contradict_each_other_are_caught() {
    for (fault, rule) in [
        (Fault::Keeps, "draft keys and values need a draft model"),
        (Fault::Narrow, "the target verifies all drafted tokens"),
        (Fault::Passes, "needs supports_target_verify_for_draft"),
    ] {
        let error = echo(fault).unwrap_err();
        assert!(matches!(error, ConformanceError::Answers(_)), "{error}");
        assert!(error.to_string().contains(rule), "{fault:?}: {error}");
    }
}

#[test]
fn drafters_that_do_nothing_or_not_the_same_are_caught() {
    let error = echo(Fault::Silence).unwrap_err();
    assert!(matches!(error, ConformanceError::Idle { .. }), "{error}");
    let error = echo(Fault::Whim).unwrap_err();
    assert!(matches!(error, ConformanceError::Differs { .. }), "{error}");
}

/// In service no guard checks a drafter. No drafter may crash a rank by its drafts, or hold the
/// rank up.
#[test]
fn a_rank_ends_with_the_rule_that_a_drafter_broke() {
    for (fault, steps, rule) in [
        (Fault::TooDeep, 1, "a row has at most `most` nodes"),
        (Fault::ChildFirst, 3, "parents come before children"),
        (Fault::Itself, 3, "parents come before children"),
    ] {
        let registry = Registry::empty().with(Echo(fault));
        let mut args = ServeArgs::default();
        args.model.model_path = Some(model("lockstep-demo-7m"));
        args.parallel.tp_size = Some(2);
        args.parallel.threads_per_rank = Some(1);
        args.memory.max_total_tokens = Some(4096);
        args.model.context_length = Some(64);
        args.schedule.max_running_requests = Some(1);
        args.speculation.speculative_algorithm = Some("ECHO".to_owned());
        let algorithms = registry.algorithms();
        let resolved = resolve(
            &args,
            &Hardware::detect(),
            &algorithms,
            &lockstep_devices::DeviceFootprint,
        )
        .unwrap();
        let config = resolved.value.0;
        let options = LocalOptions {
            registry,
            ..LocalOptions::default()
        };
        let group = LocalGroup::start(&config, &options).unwrap();
        let row = |prefill_len, new_pages| SlotExtend {
            slot: 0,
            prefill_len,
            sample: true,
            new_pages,
            ..SlotExtend::default()
        };
        let pages = (1..=64u32.div_ceil(config.kv.page_size as u32)).collect();
        let first = StepPlan {
            step: 1,
            parts: vec![PlanPart {
                opens: vec![SlotOpen {
                    generation: SamplingParams::greedy().into(),
                    ..SlotOpen::new(0, vec![5, 6, 7])
                }],
                extends: vec![row(3, pages)],
                ..PlanPart::default()
            }],
            ..StepPlan::default()
        };
        group.step(first).unwrap();
        let next = StepPlan {
            step: 2,
            draft_steps: steps,
            parts: vec![PlanPart {
                extends: vec![row(0, Vec::new())],
                ..PlanPart::default()
            }],
            ..StepPlan::default()
        };
        let error = group.step(next).unwrap_err();
        assert!(matches!(error, WorkerError::Draft(_)), "{fault:?}: {error}");
        assert!(error.to_string().contains(rule), "{fault:?}: {error}");
    }
}
