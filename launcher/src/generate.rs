//! `lockstep generate`: one answer, without a server.

use std::io::{self, Read, Write};
use std::time::Instant;

use anyhow::Context;
use lockstep_config::ServeArgs;
use lockstep_config::args::{KvCacheDtypeArg, ModelArgs, SpeculationArgs};
use lockstep_devices::Registry;
use lockstep_local_engine::{LocalEngine, LocalOptions};
use lockstep_process::exit;
use lockstep_text::{
    ChatRequest, ChatTemplate, OutputOptions, OutputText, TemplateOptions, Tokenizer,
};
use lockstep_types::ConfigError;
use lockstep_types::request::Request;
use lockstep_types::sampling::SamplingParams;

use crate::console;
use crate::rank_args::RankArgs;
use crate::settings::Settings;

/// What to answer, and how.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GenerateArgs {
    /// The prompt; `-` reads it from standard input.
    #[arg(
        value_name = "TEXT",
        required_unless_present = "prompt",
        conflicts_with = "prompt"
    )]
    text: Option<String>,
    /// The prompt, as an option.
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Tokens to generate at the most.
    #[arg(long, value_name = "TOKENS", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// 0 always takes the likeliest token; higher is more varied, at most 2.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0)]
    temperature: f32,
    /// Only the likeliest tokens that together have this probability, at most 1.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    top_p: f32,
    /// End before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// The same seed gives the same answer.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Continue the prompt as it is, without the model's chat template.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    ranks: RankArgs,
    /// Instruction set of the kernels, as of `lockstep serve` [default: the best that
    /// this machine runs].
    #[arg(long, env = "LOCKSTEP_ISA", value_name = "NAME")]
    isa: Option<String>,
    /// What keys and values are cached as [default: auto].
    #[arg(long, env = "LOCKSTEP_KV_CACHE_DTYPE", value_name = "TYPE")]
    kv_cache_dtype: Option<KvCacheDtypeArg>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
}

impl GenerateArgs {
    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |why| Err(ConfigError::Usage(why));
        if !(0.0..=2.0).contains(&self.temperature) {
            return wrong(format!(
                "--temperature {} must be from 0 to 2",
                self.temperature
            ));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong(format!(
                "--top-p {} must be above 0 and at most 1",
                self.top_p
            ));
        }
        if !self.model.served_model_name.is_empty() {
            let why = "--served-model-name is for clients of a server; leave it to lockstep serve";
            return wrong(why.into());
        }
        if self.stop.iter().any(String::is_empty) {
            return wrong("--stop must not be empty".into());
        }
        Ok(())
    }
}

/// Answers on stdout as tokens come; figures go to stderr.
pub(crate) fn run(args: &GenerateArgs, registry: &Registry) -> anyhow::Result<u8> {
    args.check()?;
    let settings = Settings::prepare(&serve_args(args), &registry.algorithms(), None)?;
    settings.print_notes();
    let engine = &settings.file.engine;
    let tokenizer = Tokenizer::load(&engine.model.path)?;
    let input_ids = tokenizer.encode(&prompt(args, &settings)?, args.raw)?;
    if input_ids.is_empty() {
        return Err(ConfigError::Usage("the prompt is empty; give some text".into()).into());
    }
    let Some(room) = engine
        .server
        .context_length
        .checked_sub(input_ids.len())
        .filter(|n| *n > 0)
    else {
        let why = format!(
            "the prompt has {} tokens, the context only {}; shorten the prompt",
            input_ids.len(),
            engine.server.context_length
        );
        return Err(ConfigError::Usage(why).into());
    };
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    if args.max_tokens > room {
        console::print_note(&format!(
            "Note: --max-tokens {} is more than the context of {} tokens has room for: at most \
             {room} after this prompt.",
            args.max_tokens, engine.server.context_length
        ));
    }
    let sampling = SamplingParams {
        temperature: args.temperature,
        top_p: args.top_p,
        seed: args.seed,
        ..SamplingParams::default()
    };
    let request = Request {
        trace_id: "generate".into(),
        generation: sampling.into(),
        ..Request::new(input_ids, args.max_tokens.min(room))
    };
    let options = LocalOptions {
        registry: registry.clone(),
        weight_cache: settings.file.node.weight_cache.clone(),
        ..LocalOptions::default()
    };
    let mut local = LocalEngine::start(engine, &options)?;
    for warning in local
        .weight_origins()
        .iter()
        .flat_map(|origin| &origin.warnings)
    {
        console::print_note(&format!("Note: {warning}."));
    }
    // The weights are loaded; an interrupted answer leaves no files behind.
    drop(settings);
    match answer(&mut local, tokenizer, request, &args.stop) {
        // A reader of the answer that left has read enough.
        Err(error) if reader_left(&error) => Ok(exit::OK),
        result => result.map(|()| exit::OK),
    }
}

fn reader_left(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref();
    error.is_some_and(|error| lockstep_process::reader_left(error, io::stdout()))
}

/// Options of a server for one request.
pub(crate) fn serve_args(args: &GenerateArgs) -> ServeArgs {
    let mut serve = ServeArgs::default();
    serve.model = args.model.clone();
    serve.speculation = args.speculation.clone();
    args.ranks.give_to(&mut serve);
    serve.parallel.isa = args.isa.clone();
    serve.memory.kv_cache_dtype = args.kv_cache_dtype;
    serve
}

/// The text that the model continues.
fn prompt(args: &GenerateArgs, settings: &Settings) -> anyhow::Result<String> {
    let given = args.prompt.as_ref().or(args.text.as_ref());
    let mut text = given.cloned().unwrap_or_default();
    if text == "-" {
        text.clear();
        io::stdin()
            .read_to_string(&mut text)
            .context("reading the prompt")?;
    }
    if args.raw {
        return Ok(text);
    }
    let path = &settings.file.engine.model.path;
    let Some(template) = ChatTemplate::from_dir(path, TemplateOptions::default())? else {
        let why = "the model has no chat template; give --raw to continue the prompt as it is";
        return Err(ConfigError::Usage(why.into()).into());
    };
    let messages = [serde_json::json!({ "role": "user", "content": text })];
    let chat = ChatRequest {
        messages: &messages,
        add_generation_prompt: true,
        ..ChatRequest::default()
    };
    Ok(template.render(&chat)?)
}

fn answer(
    local: &mut LocalEngine,
    tokenizer: Tokenizer,
    request: Request,
    stops: &[String],
) -> anyhow::Result<()> {
    let options = OutputOptions {
        prompt: &request.input_ids,
        stops,
        ..OutputOptions::default()
    };
    let mut text = OutputText::new(tokenizer, options)?;
    let prompt_tokens = request.input_ids.len();
    let mut out = io::stdout().lock();
    let begin = Instant::now();
    let (mut first, mut tokens, mut end, mut stopped) = (None, 0, None, false);
    local.submit(request)?;
    loop {
        let more = local.step()?;
        for (_, output) in local.take_outputs() {
            for id in output.token_ids {
                first.get_or_insert_with(|| begin.elapsed());
                if stopped {
                    continue;
                }
                tokens += 1;
                let piece = text.push(id);
                out.write_all(piece.text.as_bytes())?;
                stopped = piece.stop.is_some();
            }
            end = output.finish.map(|finish| finish.outcome).or(end);
        }
        out.flush()?;
        if stopped || !more {
            break;
        }
    }
    if !stopped {
        out.write_all(text.finish().as_bytes())?;
    }
    writeln!(out)?;
    if let Some(Err(error)) = end {
        return Err(error.into());
    }
    let (all, first) = (begin.elapsed(), first.unwrap_or_default());
    let rate = f64::from(tokens - 1.min(tokens)) / (all - first).as_secs_f64().max(1e-9);
    console::print_note(&format!(
        "[{prompt_tokens} prompt tokens in {:.3} s, {tokens} tokens at {rate:.0} tokens/s]",
        first.as_secs_f64()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use lockstep_config::args::DeviceArg;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: GenerateArgs,
    }

    #[test]
    fn what_is_said_of_ranks_and_kernels_is_what_the_engine_is_asked_for() {
        let line = "generate --tp 2 --threads-per-rank 3 --isa scalar --device cuda \
                    --base-gpu-id 4 --gpu-id-step 0 text";
        let line = Line::try_parse_from(line.split_whitespace()).unwrap();
        let parallel = serve_args(&line.args).parallel;
        assert_eq!(parallel.tp_size, Some(2));
        assert_eq!(parallel.threads_per_rank, Some(3));
        assert_eq!(parallel.isa.as_deref(), Some("scalar"));
        assert_eq!(parallel.device, Some(DeviceArg::Cuda));
        let gpus = (parallel.base_gpu_id, parallel.gpu_id_step);
        assert_eq!(gpus, (Some(4), Some(0)));
    }

    #[test]
    fn what_only_clients_see_is_refused() {
        let line = "generate text --served-model-name name";
        let line = Line::try_parse_from(line.split(' ')).unwrap();
        let error = line.args.check().unwrap_err().to_string();
        assert!(error.contains("--served-model-name"), "{error}");
    }
}
