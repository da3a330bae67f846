//! The example passes the tests that every algorithm must pass.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use lockstep_config::{
    Hardware, ServeArgs,
    args::{DeviceArg, DtypeArg},
    resolve,
};
use lockstep_devices::Registry;
use lockstep_example_block_drafter::{Block, Phrases};
use lockstep_tp_worker::conformance::{self, Report};
use lockstep_types::{Algorithm, DeviceKind};

fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    let root = above.find(|folder| folder.join("models").is_dir());
    root.expect("the models are above this crate")
}

fn model(name: &str) -> PathBuf {
    root().join("models").join(name)
}

#[test]
fn it_conforms_and_drafts_what_is_accepted() {
    let registry = Registry::builtin().with(Block);
    let (target, draft) = (model("lockstep-demo-7m"), model("lockstep-demo-1m-draft"));
    let report = conformance::check(&registry, "block", &target, Some(&draft)).unwrap();
    assert!(report.drafted > report.accepted && report.accepted > 0);
    assert_eq!(report.trees, 0);
}

/// For a model with attention in all layers, and for one with recurrent layers.
#[test]
fn phrases_conform() {
    let registry = Registry::builtin().with(Phrases::default());
    let recurrent = root().join("tests/fixtures/nextn/qwen3_5");
    for target in [model("lockstep-demo-7m"), recurrent] {
        let report = conformance::check(&registry, "phrases", &target, None).unwrap();
        assert!(report.drafted > 0 && report.trees == 0);
    }
}

/// A model of random weights, small enough for the fake GPU.
fn small() -> PathBuf {
    root().join("tests/fixtures/architectures/llama")
}

/// Checks the algorithm on a GPU. Cargo starts the test on the fake GPU; started by
/// hand, the test uses the machine's own GPU.
fn on_gpu(registry: &Registry, name: &str, draft: Option<&Path>) -> Report {
    // The device has memory for one test at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _order = lockstep_fake_cuda::order_of_threads(3);
    let report = conformance::check_on(DeviceKind::Cuda, registry, name, &small(), draft);
    report.expect("it conforms")
}

#[test]
#[ignore = "half a minute on a GPU that is played"]
fn it_conforms_on_a_gpu() {
    let registry = Registry::builtin().with(Block);
    let report = on_gpu(&registry, "block", Some(&small()));
    assert!(report.drafted > 0 && report.accepted > 0);
    assert_eq!(report.trees, 0);
}

#[test]
#[ignore = "half a minute on a GPU that is played"]
fn phrases_conform_on_a_gpu() {
    let registry = Registry::builtin().with(Phrases::default());
    let report = on_gpu(&registry, "phrases", None);
    assert!(report.drafted > 0 && report.trees == 0);
}

#[test]
fn the_wider_pass_decides_over_the_reserve() {
    assert_eq!(Block.tokens_per_request_for_verify(5, false), 5);
    assert_eq!(Block.tokens_per_request_for_verify(5, true), 8);
    let mut args = ServeArgs::default();
    args.model.model_path = Some(model("lockstep-demo-7m"));
    args.model.dtype = Some(DtypeArg::Float32);
    args.parallel.device = Some(DeviceArg::Cpu);
    args.memory.max_total_tokens = Some(4096);
    args.schedule.max_running_requests = Some(2);
    args.model.context_length = Some(256);
    args.speculation.speculative_algorithm = Some("Block".to_owned());
    args.speculation.speculative_draft_model_path = Some(model("lockstep-demo-1m-draft"));
    let registry = Registry::empty().with(Block);
    let resolved = resolve(
        &args,
        &Hardware::detect(),
        &registry.algorithms(),
        &lockstep_devices::DeviceFootprint,
    )
    .unwrap();
    let speculation = resolved.value.0.speculation;
    assert_eq!(speculation.num_draft_tokens, 5);
    assert_eq!(speculation.max_speculative_num_draft_tokens, 8);
}
