//! Messages about an engine that starts and serves.

use std::fmt::Write;
use std::time::Duration;

use lockstep_adaptive::AdaptiveConfig;
use lockstep_devices::DeviceFootprint;
use lockstep_model::parameters;
use lockstep_process::exit;
use lockstep_traces::Destination;
use lockstep_types::{
    CheckpointFormat, DeviceKind, EngineConfig, Footprint as _, NodeConfig, Quantization,
    Verification,
};

use super::children::Children;
use crate::console::Console;
use crate::settings::Settings;

/// Says which model is being started.
pub(super) fn starting(settings: &Settings, console: &Console) {
    let engine = &settings.file.engine;
    if settings.file.node.log_json {
        tracing::info!(model = engine.server.served_model_name, "starting");
        for note in &settings.notes {
            tracing::warn!("{note}");
        }
        return;
    }
    console.say(&format!("lockstep {}", env!("CARGO_PKG_VERSION")));
    if settings.demo {
        console.say(
            "No model named: this serves the small demo model inside the program.\n\
             It answers exercises such as \"Count from 3 to 12.\", nothing more.",
        );
    }
    for note in &settings.notes {
        console.say(&format!("Note: {note}."));
    }
}

/// Says that the engine serves, and what to do next.
pub(super) fn ready(settings: &Settings, console: &Console, children: &Children, took: Duration) {
    let file = &settings.file;
    let seconds = took.as_secs_f64();
    if file.node.log_json {
        let server = &file.engine.server;
        tracing::info!(
            url = url(&file.engine, &file.node),
            model = server.served_model_name,
            traces = settings.traces.as_ref().map(Destination::shown),
            seconds,
            "ready"
        );
    } else if file.node.node_rank == 0 {
        // To stdout, for a user who waits for it.
        console.answer(&text(settings, details(children).as_deref(), seconds));
    } else {
        let parallel = &file.engine.parallel;
        console.answer(&format!(
            "\nNode {} of {} is ready after {seconds:.1} s and works for {}.\n",
            file.node.node_rank, parallel.nnodes, parallel.dist_init_addr
        ));
    }
}

/// Says in one line that the engine serves again after a restart.
pub(super) fn ready_again(settings: &Settings, console: &Console, took: Duration) {
    let seconds = took.as_secs_f64();
    if settings.file.node.log_json {
        tracing::info!(seconds, "ready again");
    } else {
        console.answer(&format!("Ready again after {seconds:.1} s."));
    }
}

/// Says that everything has ended in order.
pub(super) fn stopped(settings: &Settings, console: &Console, code: u8) {
    if code != exit::OK {
        return;
    }
    if settings.file.node.log_json {
        tracing::info!("stopped");
    } else {
        console.say("stopped");
    }
}

/// The first rank's description of its device.
fn details(children: &Children) -> Option<String> {
    children
        .members()
        .iter()
        .find(|member| matches!(member.child.role, lockstep_process::Role::Worker(_)))
        .and_then(|member| member.ready.as_deref())
        .map(str::to_owned)
}

fn text(settings: &Settings, backend: Option<&str>, seconds: f64) -> String {
    let (engine, node) = (&settings.file.engine, &settings.file.node);
    let (server, parallel, model) = (&engine.server, &engine.parallel, &engine.model);
    let mut rows = vec![("OpenAI API", format!("{}/v1", url(engine, node)))];
    if let Some(port) = server.grpc_port {
        rows.push(("gRPC", format!("{}:{port}", reachable(&server.host))));
    }
    if let Some(port) = server.sglang_grpc_port {
        rows.push(("SGLang gRPC", format!("{}:{port}", reachable(&server.host))));
    }
    rows.push((
        "Model",
        format!(
            "{}, {}, {} parameters, {}",
            server.served_model_name,
            model.architecture,
            rounded(parameters(model)),
            weights(engine)
        ),
    ));
    rows.push((
        "Workers",
        format!(
            "{} × {}{}{}",
            counted(parallel.tp_size, "rank"),
            counted(parallel.threads_per_rank, "thread"),
            if parallel.nnodes > 1 {
                format!(" on {} nodes", parallel.nnodes)
            } else {
                String::new()
            },
            // The rest of the description repeats this summary.
            backend
                .and_then(|name| name.split(',').next())
                .map_or_else(String::new, |name| format!(", {name}")),
        ),
    ));
    rows.extend(exchange(engine, backend).map(|text| ("Exchange", text)));
    rows.extend(dp_ranks(engine).map(|text| ("DP ranks", text)));
    rows.extend(experts(engine).map(|text| ("Experts", text)));
    rows.push((
        "KV cache",
        format!(
            "{}, {}, context {} tokens",
            kv_cache(engine),
            engine.kv.dtype.name(),
            grouped(server.context_length)
        ),
    ));
    if let Some(drafts) = speculation(engine) {
        rows.push(("Speculation", drafts));
    }
    rows.extend(settings.traces.as_ref().map(|to| ("Traces", traces(to))));
    let mut text = format!("\nReady after {seconds:.1} s.\n\n");
    for (name, value) in rows {
        let _ = writeln!(text, "  {name:<12} {value}");
    }
    let _ = write!(
        text,
        "\nTry it{}:\n\n{}\n\nCtrl-C stops it.\n",
        match node.tls {
            // The address also has to be one of the certificate's names.
            Some(_) => " (ROOT.pem is the root that signed the certificate)",
            None => "",
        },
        curl(engine, node)
    );
    text
}

/// The way of data between ranks on devices with memory of their own, by the description of
/// the first rank.
fn exchange(engine: &EngineConfig, backend: Option<&str>) -> Option<String> {
    let ranks = engine.parallel.tp_size;
    if engine.device.kind == DeviceKind::Cpu || ranks == 1 {
        return None;
    }
    let by = backend.and_then(|words| words.split(", ").find(|part| part.starts_with("NCCL ")));
    if let Some(by) = by {
        return Some(format!("data goes from GPU to GPU by {by}"));
    }
    let shared = match engine.device.ranks_per_device(engine.ranks_per_node()) {
        0 | 1 => String::new(),
        sharing => format!("; each GPU has {sharing} of them"),
    };
    Some(format!(
        "data of the {ranks} ranks passes through the host's memory{shared}"
    ))
}

/// The requests whose spans are exported, and the destination.
fn traces(to: &Destination) -> String {
    let which = match to.share {
        share if share >= 1.0 => "of all requests".to_owned(),
        share if share <= 0.0 => "of requests whose callers trace them".to_owned(),
        share => format!("of {}% of the requests", share * 100.0),
    };
    format!("{which}, to {}", to.shown())
}

/// Text about how DP ranks share the requests, where attention is data-parallel.
fn dp_ranks(engine: &EngineConfig) -> Option<String> {
    let parallel = &engine.parallel;
    if parallel.dp_size == 1 {
        return None;
    }
    let own = engine.step_limits().requests;
    Some(format!(
        "{} of {}, each with its own requests (at most {own}), KV cache and drafts; all compute \
         the rest of the model together",
        parallel.dp_size,
        counted(parallel.attn_tp_size(), "rank")
    ))
}

/// Text about ranks with experts of their own; `None` where each has a part of all.
fn experts(engine: &EngineConfig) -> Option<String> {
    let parallel = &engine.parallel;
    let each = counted(parallel.tp_size / parallel.ep_size, "rank");
    (parallel.ep_size > 1).then(|| {
        let groups = parallel.ep_size;
        format!("{groups} groups of {each}, each with experts of its own")
    })
}

/// Suffix for figures that count per DP rank, where there are several.
fn on_each(engine: &EngineConfig) -> &'static str {
    match engine.parallel.dp_size {
        1 => "",
        _ => " on each DP rank",
    }
}

fn curl(engine: &EngineConfig, node: &NodeConfig) -> String {
    let key = if node.api_key.is_some() {
        " \\\n    -H \"Authorization: Bearer $LOCKSTEP_API_KEY\""
    } else {
        ""
    };
    let (url, model) = (url(engine, node), &engine.server.served_model_name);
    let tls = match &node.tls {
        None => "",
        Some(files) if files.client_roots.is_none() => " --cacert ROOT.pem",
        Some(_) => " --cacert ROOT.pem --cert CLIENT.pem --key CLIENT.key",
    };
    let body = format!(
        "{{\"model\": {}, \"stream\": true, \"temperature\": 0,\n         \
         \"messages\": [{{\"role\": \"user\", \"content\": \"Count from 3 to 12.\"}}]}}",
        serde_json::json!(model)
    );
    format!(
        "  curl -N{tls} {url}/v1/chat/completions{key} \\\n    \
         -H 'Content-Type: application/json' \\\n    -d '{body}'"
    )
}

fn url(engine: &EngineConfig, node: &NodeConfig) -> String {
    let scheme = if node.tls.is_some() { "https" } else { "http" };
    format!(
        "{}://{}:{}",
        scheme,
        reachable(&engine.server.host),
        engine.server.port
    )
}

/// An address that a client on this machine can use.
fn reachable(host: &str) -> String {
    match host {
        "0.0.0.0" => "127.0.0.1".into(),
        "::" => "[::1]".into(),
        _ if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
        _ => host.into(),
    }
}

/// Algorithm and depth of the drafts, and their memory.
fn speculation(engine: &EngineConfig) -> Option<String> {
    let speculation = &engine.speculation;
    let mut text = speculation.algorithm.clone()?;
    let _ = match &speculation.adaptive {
        Some(adaptive) => write!(text, ", {}", tiers(adaptive)),
        None => write!(text, ", {}", counted(speculation.num_steps, "step")),
    };
    if speculation.topk > 1 {
        let (topk, tokens) = (speculation.topk, speculation.num_draft_tokens);
        let most = if speculation.adaptive.is_some() {
            "at most "
        } else {
            ""
        };
        let _ = write!(text, " of {topk} branches, {most}{tokens} tokens verified");
    }
    if let Some(adaptive) = &speculation.adaptive {
        let (policy, first) = (&adaptive.policy, adaptive.initial_depth);
        let _ = write!(text, ", chosen by {policy}, {first} at first");
    }
    if speculation.verification != Verification::Target {
        let _ = write!(text, ", {} verification", speculation.verification.name());
    }
    if speculation.draft.is_some() {
        let memory = DeviceFootprint.rank(&engine.shape(), 0).draft;
        let kv = megabytes(memory.kv_bytes(engine.kv_pages(), engine.kv.page_size));
        let (weights, each) = (megabytes(memory.weights), on_each(engine));
        let _ = write!(text, ", draft weights {weights}, draft KV cache {kv}{each}");
    }
    Some(text)
}

/// The sizes of the caches.
pub(crate) fn kv_cache(engine: &EngineConfig) -> String {
    let page = engine.kv.page_size;
    let tokens = grouped(engine.kv_tokens());
    let mut text = format!("{tokens} tokens{} in pages of {page}", on_each(engine));
    if !engine.model.kv_windows().is_empty() {
        let kept = engine.kv_pages().window.saturating_sub(1) * page;
        let _ = write!(text, ", {} of layers with windows", grouped(kept));
    }
    if engine.kv.states > 0 {
        let state = DeviceFootprint.rank(&engine.shape(), 0).target.state;
        let states = grouped(engine.kv.states);
        let _ = write!(text, ", {states} recurrent states of {}", megabytes(state));
    }
    let (ranks, all) = (engine.parallel.attn_tp_size(), engine.parallel.tp_size);
    if ranks > 1 && engine.model.latent_attentions().next().is_some() {
        let most = grouped(engine.kv_tokens() * all);
        let _ = write!(
            text,
            ", the same latents on {ranks} ranks (--enable-dp-attention --dp-size {all} gives each \
             its own: up to {most} tokens in all)"
        );
    }
    text
}

/// A text like "0, 1 or 3 steps" or "0 to 3 steps".
fn tiers(adaptive: &AdaptiveConfig) -> String {
    let depths: Vec<_> = adaptive.tiers.iter().map(|tier| tier.depth).collect();
    let what = if adaptive.max_depth() == 1 {
        "step"
    } else {
        "steps"
    };
    match depths.as_slice() {
        [first, .., last] if depths.len() > 2 && last - first + 1 == depths.len() as u32 => {
            format!("{first} to {last} {what}")
        }
        [others @ .., last] if !others.is_empty() => {
            let others: Vec<_> = others.iter().map(ToString::to_string).collect();
            format!("{} or {last} {what}", others.join(", "))
        }
        _ => format!("{} {what}", adaptive.max_depth()),
    }
}

/// A text like "3.4 MB".
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 * 1e-6)
}

/// Name of the type of the weights, and where that is another one, of the type of their inputs.
pub(crate) fn weights(engine: &EngineConfig) -> String {
    let inputs = engine.dtype.name();
    let quantization = engine.model.quantization;
    match &engine.model.checkpoint {
        _ if quantization != Quantization::None => quantization.name().to_owned(),
        CheckpointFormat::Floats => inputs.to_owned(),
        CheckpointFormat::Fp8(_) => format!("FP8 with {inputs} inputs"),
        CheckpointFormat::Integers(integers) => integers.name(),
        CheckpointFormat::Mxfp4(_) => format!("MXFP4 experts with {inputs} inputs"),
    }
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A text like "1.24 billion".
pub(crate) fn rounded(number: usize) -> String {
    let number = number as f64;
    match number {
        n if n >= 1e9 => format!("{:.2} billion", n / 1e9),
        n if n >= 1e6 => format!("{:.1} million", n / 1e6),
        n => format!("{:.0} thousand", n / 1e3),
    }
}

/// A text like "131,072".
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests;
