//! Drafters on a GPU. Started by cargo, the tests run on the fake GPU; started by hand, on the
//! machine's own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "one_launch/heads.rs"]
mod heads;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use lockstep_backend_cuda::Gpu;
use lockstep_devices::Registry;
use lockstep_tp_worker::conformance::{Ranks, Report, check_on};
use lockstep_types::DeviceKind;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn model(name: &str) -> PathBuf {
    root().join("models").join(name)
}

/// Returns the folder of a model of random weights, small enough for the fake device.
fn small() -> PathBuf {
    root().join("tests/fixtures/architectures/llama")
}

/// Returns the folder of a small mixture of experts, with a shared one.
fn mixture() -> PathBuf {
    root().join("tests/fixtures/architectures/glm4_moe")
}

fn battery(ranks: impl Into<Ranks>, name: &str, target: &Path, draft: Option<&Path>) -> Report {
    // The device has memory for one test at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _order = lockstep_fake_cuda::order_of_threads(2);
    let registry = Registry::builtin();
    check_on(ranks, &registry, name, target, draft).expect("it conforms")
}

#[test]
#[ignore = "a minute: the same model twice"]
fn a_standalone_draft_conforms() {
    let report = battery(DeviceKind::Cuda, "STANDALONE", &small(), Some(&small()));
    assert!(report.trees > 0 && report.accepted > 0 && report.switches > 0);
}

#[test]
fn ngrams_conform() {
    let report = battery(DeviceKind::Cuda, "NGRAM", &small(), None);
    assert!(report.trees > 0 && report.drafted > 0 && report.switches > 0);
}

#[test]
fn ngrams_conform_on_a_mixture() {
    let report = battery(DeviceKind::Cuda, "NGRAM", &mixture(), None);
    assert!(report.trees > 0 && report.drafted > 0 && report.switches > 0);
}

/// The device drafts chains and trees with the model's own layer, a mixture too.
#[test]
fn a_draft_layer_of_the_model_conforms() {
    conforms_by_its_own_layer("glm4_moe");
}

#[test]
#[ignore = "minutes: the same with latent attention"]
fn a_draft_layer_of_latent_attention_conforms() {
    conforms_by_its_own_layer("deepseek_v3");
}

fn conforms_by_its_own_layer(model: &str) {
    let target = root().join("tests/fixtures/nextn").join(model);
    let report = battery(DeviceKind::Cuda, "NEXTN", &target, None);
    assert!(report.trees > 0 && report.accepted > 0 && report.switches > 0);
}

#[test]
#[ignore = "minutes: drafts of mixtures of experts"]
fn drafters_conform_on_a_mixture() {
    let texts = [(5..11).cycle().take(96).collect::<Vec<u32>>()];
    let eagle3 = heads::eagle3(&mixture(), &texts);
    for (name, draft) in [
        ("STANDALONE", mixture()),
        ("EAGLE3", eagle3.path().to_owned()),
    ] {
        let report = battery(DeviceKind::Cuda, name, &mixture(), Some(&draft));
        assert!(report.trees > 0 && report.drafted > 0 && report.switches > 0);
    }
    if Gpu::count().expect("GPUs") >= 2 {
        let report = battery(on_gpus((2, 2), true), "NGRAM", &mixture(), None);
        assert!(report.trees > 0 && report.drafted > 0 && report.switches > 0);
    }
}

/// Numbers of ranks and of DP ranks.
type Split = (usize, usize);

/// Returns ranks that have a GPU each, or share one.
fn on_gpus((tp_size, dp_size): Split, own_gpus: bool) -> Ranks {
    Ranks {
        device: DeviceKind::Cuda,
        own_gpus,
        tp_size,
        dp_size,
    }
}

/// Ranks of one DP rank share a GPU; two DP ranks have one each.
#[test]
fn ngrams_conform_on_several_ranks() {
    for (split, own_gpus) in [((2, 1), false), ((2, 2), true)] {
        if own_gpus && Gpu::count().expect("GPUs") < split.0 {
            continue;
        }
        let report = battery(on_gpus(split, own_gpus), "NGRAM", &small(), None);
        assert!(report.trees > 0 && report.drafted > 0 && report.switches > 0);
    }
}

/// The host drafts a block, as a pass of several tokens of each request with a mask.
#[test]
fn dflash_conforms() {
    let draft = root().join("tests/fixtures/drafts/dflash");
    let target = root().join("tests/fixtures/architectures/qwen3");
    let report = battery(DeviceKind::Cuda, "DFLASH", &target, Some(&draft));
    assert!(report.trees == 0 && report.drafted > 0 && report.switches > 0);
}

#[test]
#[ignore = "half an hour: every drafter that has a model on ranks of one and of several DP ranks"]
fn all_drafters_conform_on_several_ranks() {
    let texts = [(5..11).cycle().take(96).collect::<Vec<u32>>()];
    let heads = [
        heads::eagle(&small(), &texts),
        heads::eagle3(&small(), &texts),
    ];
    for split in [(2, 1), (2, 2), (4, 2)] {
        if Gpu::count().expect("GPUs") < split.0 {
            continue;
        }
        for (name, draft) in [
            ("STANDALONE", small()),
            ("EAGLE", heads[0].path().to_owned()),
            ("EAGLE3", heads[1].path().to_owned()),
        ] {
            let report = battery(on_gpus(split, true), name, &small(), Some(&draft));
            assert!(report.trees > 0 && report.drafted > 0 && report.switches > 0);
        }
    }
}

#[test]
#[ignore = "an hour: every drafter of the demo model"]
fn all_drafters_conform() {
    for (name, draft) in [
        ("NGRAM", None),
        ("EAGLE", Some("lockstep-demo-7m-eagle")),
        ("EAGLE3", Some("lockstep-demo-7m-eagle3")),
        ("STANDALONE", Some("lockstep-demo-1m-draft")),
    ] {
        let draft = draft.map(model);
        let report = battery(
            DeviceKind::Cuda,
            name,
            &model("lockstep-demo-7m"),
            draft.as_deref(),
        );
        assert!(report.trees > 0 && report.accepted > 0 && report.switches > 0);
    }
}
