//! Resolves the options to one configuration.

use lockstep_model_folder::Described;
use lockstep_types::{
    Algorithms, ConfigError, DeviceKind, EngineConfig, EngineShape, Footprint, LoadFormat,
    LongRope, ModelConfig, NodeConfig, ParallelConfig, RopeConfig, RopeScaling, ScheduleConfig,
    SchedulePolicy, ServerConfig, SpeculationConfig, StepLimits, TimeoutConfig,
};
use std::path::PathBuf;

use crate::Hardware;
use crate::args::{PolicyArg, ServeArgs};
use crate::memory::{self, Sizing, StateOptions};
use device::Device;
use parallel::Ranks;

mod answers;
mod collectives;
mod connections;
mod device;
mod dp_attention;
mod format;
mod graphs;
mod limits;
mod lora;
mod open_to_others;
mod parallel;
mod schedule;
mod secret;
mod server;
mod speculation;
mod tls;
mod traces;
mod web;

/// A value, with notes for people on how it came about.
#[derive(Debug)]
pub struct Resolved<T> {
    /// The value.
    pub value: T,
    /// Notes of one sentence each.
    pub notes: Vec<String>,
}

/// Resolves options against the model, the machine, the program's algorithms for drafting, and
/// the memory that its devices take.
///
/// `node.run_dir` is the parent folder from `--run-dir`, or empty. The code that starts
/// processes puts a folder of its own there.
///
/// # Errors
/// [`ConfigError`] for the first problem, with the remedy.
pub fn resolve(
    args: &ServeArgs,
    hardware: &Hardware,
    algorithms: &Algorithms,
    footprint: &dyn Footprint,
) -> Result<Resolved<(EngineConfig, NodeConfig)>, ConfigError> {
    args.refused.check()?;
    let (model, of_model) = model(args)?;
    let isa = device::kernels(args, footprint)?;
    let device = device::resolve(args, footprint)?;
    let on = |device: &Device| {
        let mut args = args.clone();
        if device.config.kind == DeviceKind::Cpu {
            let parallel = &mut args.parallel;
            parallel.tp_size = parallel.tp_size.or(parallel.tp_size_on_cpu);
        }
        resolve_on(&args, &model, isa, device, hardware, algorithms, footprint)
    };
    let mut resolved = match on(&device) {
        // An option that only GPUs have fails on the processor too; the GPU's reason helps then.
        Err(why) if device.chosen => on(&device::processor(&why.to_string())).map_err(|_| why),
        resolved => resolved,
    }?;
    resolved.notes.extend(of_model);
    Ok(resolved)
}

/// Resolves the options for `device`.
fn resolve_on(
    args: &ServeArgs,
    model: &ModelConfig,
    isa: Option<&str>,
    device: &Device,
    hardware: &Hardware,
    algorithms: &Algorithms,
    footprint: &dyn Footprint,
) -> Result<Resolved<(EngineConfig, NodeConfig)>, ConfigError> {
    let ranks = collectives::of_ranks(args, model, device, hardware, footprint)?;
    let dtype = format::dtype(args);
    let (speculation, drafter_bytes) =
        speculation::resolve(args, model, algorithms, &ranks, footprint)?;
    let (asked, longest) = context_length(args, model)?;
    let schedule = schedule::resolve(args, longest);
    let adapters = lora::limits(args, device.config.kind)?;
    let graphs = graphs::resolve(args, device, &ranks, &schedule, &speculation)?;
    let sizing = Sizing {
        engine: EngineShape {
            model,
            dtype,
            device: device.config,
            isa,
            graphs: &graphs,
            kv_dtype: format::kv_cache(args, dtype)?,
            tp_size: ranks.parallel.tp_size,
            dp_size: ranks.parallel.dp_size,
            ep_size: ranks.parallel.ep_size,
            collectives: ranks.parallel.collectives.backend,
            threads_per_rank: ranks.parallel.threads_per_rank,
            adapters,
            speculation: &speculation,
            page_size: page_size(args)?,
            step: step_limits(&schedule, &ranks, &speculation, longest),
        },
        footprint,
        nnodes: ranks.parallel.nnodes,
        node_rank: ranks.node_rank,
        radix_cache: !args.memory.disable_radix_cache,
        overlap: schedule.overlap,
        drafter_bytes,
        context_length: asked,
        max_total_tokens: args.memory.max_total_tokens,
        mem_fraction_static: fraction(args)?,
        states: StateOptions::of(&args.memory),
    };
    device::check(device, &sizing.engine, footprint)?;
    let sized = memory::size(&sizing, hardware, &device.rooms)?;
    let ((kv, context_length), mut notes) = (sized.value, sized.notes);
    notes.extend(at_start(device, hardware, &ranks.parallel, model));
    let node = node(args, model, device, &ranks)?;
    let server = server::resolve(args, model, context_length, node.api_key.is_some())?;
    notes.extend(of_server(args, model, &server, &speculation)?);
    let engine = EngineConfig {
        dtype,
        device: device.config,
        isa: isa.map(str::to_owned),
        graphs,
        parallel: ranks.parallel,
        kv,
        schedule: schedule::checked(args, context_length)?,
        speculation: speculation.serving(context_length),
        adapters,
        timeouts: timeouts(args),
        server,
        model: model.clone().serving(context_length),
    };
    let value = (engine, node);
    Ok(Resolved { value, notes })
}

/// Notes about a server that is resolved.
fn of_server(
    args: &ServeArgs,
    model: &ModelConfig,
    server: &ServerConfig,
    speculation: &SpeculationConfig,
) -> Result<Vec<String>, ConfigError> {
    let mut notes: Vec<_> = open_to_others::notes(args, server, speculation).collect();
    notes.extend(speculation::fit(speculation, server.context_length)?);
    notes.extend(long_rope(model, server.context_length));
    Ok(notes)
}

/// Limits of the largest step of a DP rank, with texts of at most `longest` tokens.
fn step_limits(
    schedule: &ScheduleConfig,
    ranks: &Ranks,
    speculation: &SpeculationConfig,
    longest: usize,
) -> StepLimits {
    let share = schedule.of_dp_rank(ranks.parallel.dp_size);
    StepLimits::new(&share, speculation, longest)
}

/// Configuration of a node, from the options and the node's ranks.
fn node(
    args: &ServeArgs,
    model: &ModelConfig,
    device: &Device,
    ranks: &Ranks,
) -> Result<NodeConfig, ConfigError> {
    let process = &args.process;
    let api_key = secret::api_key(&args.server)?;
    let admin_api_key = secret::admin_api_key(&args.server, api_key.as_deref())?;
    Ok(NodeConfig {
        node_rank: ranks.node_rank,
        run_dir: process.run_dir.clone().unwrap_or_default(),
        cores: ranks.cores.clone(),
        weight_cache: format::weight_cache(args, model.load_format, device.config.kind)?,
        weight_update_dir: weight_update_dir(args)?,
        lora_paths: lora::at_start(args, model)?,
        lora_dir: lora::folder(args)?,
        api_key,
        admin_api_key,
        tls: tls::of_ports(&args.server)?,
        dist_tls: tls::of_nodes(&args.parallel, ranks.parallel.nnodes)?,
        dist_secret: ranks.dist_secret.clone(),
        log: process.log_level.clone().unwrap_or_else(|| "info".into()),
        log_json: process.log_json,
        traces: traces::resolve(&args.traces)?,
    })
}

/// The model, and notes about it.
fn model(args: &ServeArgs) -> Result<(ModelConfig, Vec<String>), ConfigError> {
    let Some(path) = &args.model.model_path else {
        return Err(ConfigError::value(
            "--model-path",
            "",
            "no model is named",
            "Name its folder",
        ));
    };
    let load_format = format::load(args)?;
    let described = Described::of(path)?.with_tokenizer()?;
    let described = match load_format {
        LoadFormat::Auto => described.with_weights()?,
        LoadFormat::Dummy => described,
    };
    let (mut model, mut notes) = (described.model, described.notes);
    if described.own_draft && args.speculation.speculative_algorithm.is_none() {
        notes.push(
            "the model has a draft layer of its own: --speculative-algorithm NEXTN drafts with it"
                .to_owned(),
        );
    }
    model.load_format = load_format;
    model.quantization = format::quantization(args);
    Ok((model, notes))
}

/// Notes about device, cores and weights.
fn at_start(
    device: &Device,
    hardware: &Hardware,
    parallel: &ParallelConfig,
    model: &ModelConfig,
) -> impl Iterator<Item = String> {
    let device_note = device.note.clone().into_iter();
    device_note
        .chain(parallel::crowded(parallel, hardware, device))
        .chain(untrained(model))
}

/// A note about weights that nobody trained.
fn untrained(model: &ModelConfig) -> Option<String> {
    (model.load_format == LoadFormat::Dummy)
        .then(|| "the weights are random (--load-format dummy): texts mean nothing".to_owned())
}

/// The folder of weights that requests may name. It must exist.
fn weight_update_dir(args: &ServeArgs) -> Result<Option<PathBuf>, ConfigError> {
    let folder = args.server.weight_update_dir.clone();
    match folder.as_ref().filter(|folder| !folder.is_dir()) {
        None => Ok(folder),
        Some(missing) => Err(ConfigError::value(
            "--weight-update-dir",
            missing.display(),
            "there is no such folder",
            "Name one whose folders hold the weights, or leave it out",
        )),
    }
}

fn page_size(args: &ServeArgs) -> Result<usize, ConfigError> {
    match args.memory.page_size.unwrap_or(16) {
        size @ 1..=4096 => Ok(size),
        size => Err(ConfigError::value(
            "--page-size",
            size,
            "a page holds 1 to 4096 tokens",
            "Usual sizes are 1, 16 and 64",
        )),
    }
}

fn fraction(args: &ServeArgs) -> Result<f64, ConfigError> {
    let fraction = args.memory.mem_fraction_static.unwrap_or(0.85);
    if fraction > 0.0 && fraction <= 1.0 {
        return Ok(fraction);
    }
    let (option, why) = ("--mem-fraction-static", "must be above 0 and at most 1");
    Err(ConfigError::value(option, fraction, why, "Usual is 0.85"))
}

/// The requested context, and the context to use if memory allows.
fn context_length(
    args: &ServeArgs,
    model: &ModelConfig,
) -> Result<(Option<usize>, usize), ConfigError> {
    match args.model.context_length {
        Some(length) if length > model.max_position_embeddings => Err(ConfigError::value(
            "--context-length",
            length,
            format!(
                "the model's positions end at {}",
                model.max_position_embeddings
            ),
            match yarn_reach(model).filter(|reach| *reach > model.max_position_embeddings) {
                Some(reach) => format!(
                    "Give that or less, or raise max_position_embeddings in config.json: YaRN \
                     stretches positions up to {reach}"
                ),
                None => "Give that or less".to_owned(),
            },
        )),
        length => Ok((length, length.unwrap_or(model.max_position_embeddings))),
    }
}

/// A note about the rotation of a model that has one for short texts and one for long ones.
fn long_rope(model: &ModelConfig, served: usize) -> Option<String> {
    let long = model.ropes().find_map(RopeConfig::choice)?;
    let original = long.original_max_position;
    let long = LongRope { served, ..long };
    Some(match long.is_long() {
        true => format!(
            "positions rotate as in long texts, also those of short ones, as texts of {served} tokens \
             are served: for short texts alone give --context-length {original}"
        ),
        false => format!(
            "positions rotate as in short texts, as no text of more than {original} tokens is served"
        ),
    })
}

/// Returns the number of positions that YaRN stretches a model's original ones to; `None` without
/// YaRN.
fn yarn_reach(model: &ModelConfig) -> Option<usize> {
    let reach = |scaling| match scaling {
        RopeScaling::Yarn {
            factor,
            original_max_position,
            ..
        } => Some((factor * original_max_position as f64) as usize),
        _ => None,
    };
    model.ropes().find_map(|rope| reach(rope.scaling))
}

fn timeouts(args: &ServeArgs) -> TimeoutConfig {
    let given = &args.timeouts;
    let startup_s = given.startup();
    TimeoutConfig {
        request_s: given.request_timeout,
        queue_s: given.queue_timeout,
        step_watchdog_s: given.watchdog_timeout.unwrap_or(120),
        health_s: given.health_timeout.unwrap_or(20),
        drain_s: given.drain_timeout.unwrap_or(30),
        drain_delay_s: given.drain_delay.unwrap_or(0),
        startup_s,
        weight_update_s: given.weight_update_timeout.unwrap_or(startup_s),
    }
}

#[cfg(test)]
mod tests;
