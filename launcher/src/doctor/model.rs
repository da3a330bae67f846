//! Findings about the model: its size, its files, and the memory that it takes.

use lockstep_devices::{DeviceFootprint, Finding};
use lockstep_model::{WeightCheck, active_parameters, check_weights, parameters};
use lockstep_types::{EngineConfig, Footprint as _, LoadFormat};

use crate::serve::{megabytes, rounded, weights};

/// Faults of a checkpoint that are told one by one.
const TOLD: usize = 5;

/// Findings about the engine's model, in the order of the report.
pub(super) fn findings(engine: &EngineConfig) -> Vec<Finding> {
    vec![model(engine), tensors(engine), memory(engine)]
}

/// The family, and its parameters.
fn model(engine: &EngineConfig) -> Finding {
    let model = &engine.model;
    let (all, active) = (parameters(model), active_parameters(model));
    let mut found = format!("{}, {} parameters", model.architecture, rounded(all));
    if active < all {
        found += &format!(", {} of them for a token", rounded(active));
    }
    if let Some(form) = model.checkpoint.describe() {
        found += &format!(", {form}");
    }
    Finding::new("Model", found)
}

/// The tensors of the checkpoint.
fn tensors(engine: &EngineConfig) -> Finding {
    const NAME: &str = "Tensors";
    if engine.model.load_format == LoadFormat::Dummy {
        return Finding::new(NAME, "made up, no file is read");
    }
    match check_weights(&engine.model, engine.speculation.draft.as_ref()) {
        Ok(check) => of_check(NAME, &check),
        Err(error) => Finding::new(NAME, "can't be looked at").problem_if(true, error.to_string()),
    }
}

fn of_check(name: &'static str, check: &WeightCheck) -> Finding {
    let WeightCheck {
        tensors,
        files,
        faults,
    } = check;
    let files = match files {
        1 => "one file".to_owned(),
        files => format!("{files} files"),
    };
    if faults.is_empty() {
        return Finding::new(name, format!("all {tensors} are in {files}"));
    }
    let mut told: Vec<String> = faults.iter().take(TOLD).map(ToString::to_string).collect();
    if faults.len() > TOLD {
        told.push(format!("and {} more like these", faults.len() - TOLD));
    }
    let wrong = faults.len();
    Finding::new(
        name,
        format!("{wrong} of {tensors} can't be loaded from {files}"),
    )
    .problem_if(true, told.join("\n                   "))
}

/// Memory of the first rank, which drafts and so takes the most, by its parts.
fn memory(engine: &EngineConfig) -> Finding {
    let memory = DeviceFootprint.rank(&engine.shape(), 0);
    let (pages, page_size) = (engine.kv_pages(), engine.kv.page_size);
    let (target, draft) = (&memory.target, &memory.draft);
    let rest = [target.host, memory.exchange, memory.gathered];
    let passes = [target.activations, memory.scratch, memory.graphs];
    let weights = format!("weights ({})", weights(engine));
    let parts = [
        (weights.as_str(), target.weights),
        ("norms and tables", target.vectors),
        ("KV cache", target.kv_bytes(pages, page_size)),
        (
            "recurrent states",
            engine.state_limits().bytes(target.state, target.record),
        ),
        ("a pass", passes.into_iter().fold(0, u64::saturating_add)),
        (
            "drafting",
            draft
                .fixed()
                .saturating_add(draft.kv_bytes(pages, page_size)),
        ),
        (
            "logits and exchange",
            rest.into_iter().fold(0, u64::saturating_add),
        ),
    ];
    let told = parts.iter().filter(|(_, bytes)| *bytes > 0);
    let told = told.map(|(part, bytes)| format!("{} {part}", megabytes(*bytes)));
    let ranks = match engine.parallel.tp_size {
        1 => "",
        _ => ", on rank 0",
    };
    Finding::new("Memory taken", told.collect::<Vec<_>>().join(", ") + ranks)
}
