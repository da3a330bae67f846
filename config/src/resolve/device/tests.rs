use lockstep_types::DeviceKind;
use serde_json::json;

use crate::resolve;
use crate::testing::{Plain, Program, algorithms, folder, llama, machine, resolve_model, with};

#[test]
fn a_model_is_computed_where_it_is_asked_to_be() {
    for (line, kind, gpu, note) in [
        ("", DeviceKind::Cpu, 0, None),
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
