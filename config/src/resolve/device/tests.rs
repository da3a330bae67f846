use std::path::Path;

use lockstep_types::{
    DeviceKind, DeviceRoom, EngineShape, Footprint, MatrixRole, ModelConfig, RankMemory,
    WeightFormat,
};
use serde_json::json;

use crate::args::DeviceArg;
use crate::resolve;
use crate::testing::{Plain, Program, algorithms, folder, llama, machine, resolve_model, with};

#[test]
fn a_model_is_computed_where_it_is_asked_to_be() {
    for (line, kind, gpu, note) in [
        ("", DeviceKind::Cuda, 0, None),
        ("--base-gpu-id 0", DeviceKind::Cuda, 0, None),
        (
            "--quantization int8",
            DeviceKind::Cpu,
            0,
            Some("--quantization int8"),
        ),
        ("--device cpu", DeviceKind::Cpu, 0, None),
        ("--device cuda", DeviceKind::Cuda, 0, None),
        ("--device auto", DeviceKind::Cuda, 0, None),
        ("--device auto --base-gpu-id 0", DeviceKind::Cuda, 0, None),
        (
            "--device auto --quantization int8",
            DeviceKind::Cpu,
            0,
            Some("--quantization int8"),
        ),
        (
            "--device auto --tp 2",
            DeviceKind::Cpu,
            0,
            Some("there is no GPU 1"),
        ),
        (
            "--device auto --tp 2 --gpu-id-step 0",
            DeviceKind::Cuda,
            0,
            None,
        ),
        (
            "--device cuda --tp 2 --dp-size 2 --enable-dp-attention --gpu-id-step 0",
            DeviceKind::Cuda,
            0,
            None,
        ),
        // A GPU of 40 GiB has 30 GiB free: too little if so large a part of all stays free.
        (
            "--device auto --mem-fraction-static 0.2",
            DeviceKind::Cpu,
            0,
            Some("free memory of GPU 0"),
        ),
    ] {
        let model = folder(&llama(), None);
        let words = ["lockstep"].into_iter().chain(line.split_whitespace());
        let mut args = Program::parse_words(words).expect(line).args;
        args.model.model_path = Some(model.path().to_owned());
        let resolved = resolve(&args, &machine(), &algorithms(), &Plain).expect(line);
        let engine = resolved.value.0;
        assert_eq!(engine.device.kind, kind, "{line}");
        assert_eq!(engine.device.base_gpu_id, gpu, "{line}");
        let found = resolved
            .notes
            .iter()
            .find(|note| note.contains("--device auto"));
        assert_eq!(found.is_some(), note.is_some(), "{line}: {found:?}");
        let says = found
            .zip(note)
            .is_none_or(|(found, note)| found.contains(note));
        assert!(says, "{line}: {found:?}");
    }
}

/// A machine without GPUs, or with one that can't be used.
struct Without {
    exists: bool,
}

impl Footprint for Without {
    fn exists(&self, _: DeviceKind) -> bool {
        self.exists
    }

    fn room(&self, kind: DeviceKind, number: usize) -> Result<Option<DeviceRoom>, String> {
        match kind {
            DeviceKind::Cpu => Plain.room(kind, number),
            DeviceKind::Cuda => Err("the driver is too old".to_owned()),
        }
    }

    fn rank(&self, engine: &EngineShape<'_>, rank: usize) -> RankMemory {
        Plain.rank(engine, rank)
    }

    fn shared_part(&self, model: &ModelConfig, attn_tp_size: usize) -> u32 {
        Plain.shared_part(model, attn_tp_size)
    }

    fn serves(&self, engine: &EngineShape<'_>) -> Result<(), String> {
        Plain.serves(engine)
    }

    fn serves_format(
        &self,
        kind: DeviceKind,
        format: WeightFormat,
        role: MatrixRole,
    ) -> Result<(), &'static str> {
        Plain.serves_format(kind, format, role)
    }

    fn kernels(&self, kind: DeviceKind, name: &str) -> Result<&'static str, String> {
        Plain.kernels(kind, name)
    }

    fn collectives(&self, kind: DeviceKind, path: Option<&Path>) -> Result<String, String> {
        Plain.collectives(kind, path)
    }
}

/// A user who has a GPU learns why it is not used. A user who has none, and asked for none, is
/// not told about GPUs.
#[test]
fn a_gpu_that_is_left_is_told_of_where_there_is_one() {
    let model = folder(&llama(), None);
    for (line, exists, told) in [
        ("", true, true),
        ("", false, false),
        ("--quantization int8", false, false),
        ("--device auto", false, true),
        ("--device cpu", true, false),
    ] {
        let words = ["lockstep"].into_iter().chain(line.split_whitespace());
        let mut args = Program::parse_words(words).expect(line).args;
        args.model.model_path = Some(model.path().to_owned());
        let resolved = resolve(&args, &machine(), &algorithms(), &Without { exists });
        let resolved = resolved.expect(line);
        assert_eq!(resolved.value.0.device.kind, DeviceKind::Cpu, "{line}");
        let mut notes = resolved.notes.iter();
        let note = notes.any(|note| note.contains("the driver is too old"));
        assert_eq!(note, told, "{line}, {exists}: {:?}", resolved.notes);
        args.parallel.device = Some(DeviceArg::Cuda);
        let asked = resolve(&args, &machine(), &algorithms(), &Without { exists });
        asked.expect_err("a GPU that was asked for can't be used");
    }
}

/// If the processor does not take the options either, the reason why the GPU was left is told.
#[test]
fn the_reason_of_the_gpu_is_told_where_the_processor_serves_no_better() {
    let model = folder(&llama(), None);
    let line = "lockstep --mem-fraction-static 0.2 --cuda-graph-max-bs 4";
    let mut args = Program::parse_words(line.split_whitespace())
        .expect(line)
        .args;
    args.model.model_path = Some(model.path().to_owned());
    let error = resolve(&args, &machine(), &algorithms(), &Plain).expect_err("too little memory");
    let error = error.to_string();
    assert!(error.contains("free memory of GPU 0"), "{error}");
}

/// A program may want other ranks on the processor than on a GPU.
#[test]
fn ranks_on_the_processor_are_those_where_it_computes() {
    let model = folder(&llama(), None);
    for (line, ranks) in [
        ("", 1),
        ("--device cpu", 2),
        ("--device cpu --tp 1", 1),
        ("--quantization int8", 2),
    ] {
        let words = ["lockstep"].into_iter().chain(line.split_whitespace());
        let mut args = Program::parse_words(words).expect(line).args;
        args.model.model_path = Some(model.path().to_owned());
        args.parallel.tp_size_on_cpu = Some(2);
        let resolved = resolve(&args, &machine(), &algorithms(), &Plain).expect(line);
        assert_eq!(resolved.value.0.parallel.tp_size, ranks, "{line}");
    }
}

/// A model that a GPU can't compute is refused before anything is loaded.
#[test]
fn a_model_that_gpus_do_not_serve_is_refused_or_takes_the_processor() {
    let wide = json!({"hidden_size": 2048, "head_dim": 256});
    let model = folder(&with(llama(), &wide), None);
    let error = resolve_model("--device cuda", model.path(), &machine());
    let error = error.expect_err("too wide").to_string();
    for said in ["--device cuda", "--model-path", "256", "--device cpu"] {
        assert!(error.contains(said), "{said:?} is not in: {error}");
    }
    let (engine, _) = resolve_model("--device auto", model.path(), &machine()).expect("fits");
    assert_eq!(engine.device.kind, DeviceKind::Cpu);
}
