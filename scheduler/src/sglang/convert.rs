//! Conversion of a gateway's request to the planner's.
//!
//! proto3 can't tell an absent number from zero. Zero means "not given" for numbers where it
//! makes no sense (`top_p`, `top_k`, `repetition_penalty`, `n`). `temperature` 0 means greedy,
//! as in SGLang, whose clients always set it.

use std::sync::Arc;

use lockstep_proto::pb::sglang::grpc::scheduler::{
    GenerateRequest, SamplingParams as WireParams, sampling_params::Constraint as Asked,
};
use lockstep_types::{EngineConfig, RequestLimits};
use lockstep_types::{
    adapter::check_adapter_name,
    constraint::{Constraint, ConstraintKind},
    generation::GenerationParams,
    request::Request,
    sampling::{LogprobParams, SamplingParams},
};
use tonic::Status;

/// Most bytes of a caller's id, which stands in logs and in every message.
const LONGEST_ID: usize = 256;

/// A converted call.
pub struct Call {
    /// One request per choice.
    pub requests: Vec<Request>,
    /// True if the caller wants chunks, not only the end.
    pub stream: bool,
    /// Least number of tokens per chunk.
    pub interval: usize,
    /// Log-probabilities to report.
    pub logprobs: LogprobParams,
    /// Bytes of log-probabilities that each choice reserves before it begins.
    pub logprob_bytes: usize,
}

impl Call {
    /// Returns the constraint of its choices, which is the same for all.
    pub fn constraint(&self) -> Option<&Arc<Constraint>> {
        let first = self.requests.first()?;
        first.generation.constraint.as_ref()
    }

    /// Returns the number of the prompt's tokens.
    pub fn prompt_tokens(&self) -> u32 {
        let first = self.requests.first();
        let tokens = first.map_or(0, |request| request.input_ids.len());
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

/// Converts and checks a call. `seed` is drawn at random, for the protocol has none, and `room`
/// is the most memory that the call could reserve.
///
/// # Errors
/// INVALID_ARGUMENT with the field and its valid values.
pub fn convert(
    wire: GenerateRequest,
    config: &EngineConfig,
    seed: u64,
    room: usize,
) -> Result<Call, Status> {
    refuse_unsupported(&wire)?;
    if wire.request_id.len() > LONGEST_ID {
        return Err(invalid(
            "request_id",
            &format!("must have at most {LONGEST_ID} bytes"),
        ));
    }
    let input_ids = wire
        .tokenized
        .map(|tokenized| tokenized.input_ids)
        .unwrap_or_default();
    if input_ids.is_empty() {
        return Err(invalid(
            "tokenized.input_ids",
            "is empty: this service takes tokens",
        ));
    }
    let data_parallel_rank = wire.data_parallel_rank.map(|asked| dp_rank(asked, config));
    let data_parallel_rank = data_parallel_rank.transpose()?;
    let params = wire.sampling_params;
    let given = params.as_ref();
    let max_new_tokens = max_new_tokens(given, input_ids.len(), config)?;
    let interval = given.and_then(|params| params.stream_interval).unwrap_or(1);
    let interval = usize::try_from(interval)
        .ok()
        .filter(|interval| *interval > 0)
        .ok_or_else(|| invalid("stream_interval", "must be positive"))?;
    let choices = choices(given, &config.server.limits.request)?;
    let logprobs = logprobs(
        &wire.return_logprob,
        wire.logprob_start_len,
        wire.top_logprobs_num,
        config,
    )?;
    let is_limited = given.is_some_and(|params| params.max_new_tokens.is_some());
    let logprob_bytes = logprobs.reserve(input_ids.len(), max_new_tokens, is_limited);
    check_logprobs(logprob_bytes.saturating_mul(choices), room)?;
    let generation = GenerationParams {
        constraint: constraint(given)?,
        sampling: sampling(params, config)?,
        logprobs,
        ..GenerationParams::default()
    };
    let adapter_name = adapter(&wire.lora_id, config)?;
    let request = |index: u64| {
        let mut request = Request {
            trace_id: wire.request_id.clone(),
            generation: generation.clone(),
            data_parallel_rank,
            adapter_name: adapter_name.clone(),
            // Fields that the gateway's protocol does not have.
            ..Request::new(input_ids.clone(), max_new_tokens)
        };
        request.generation.sampling.seed = seed.wrapping_add(index);
        request
    };
    Ok(Call {
        requests: (0..choices as u64).map(request).collect(),
        stream: wire.stream,
        interval,
        logprobs,
        logprob_bytes,
    })
}

/// Returns the name of the adapter that a call asks for. Whether there is such an adapter is known
/// to the engine.
fn adapter(lora_id: &str, config: &EngineConfig) -> Result<Option<String>, Status> {
    match (lora_id.is_empty(), config.adapters.places) {
        (true, _) => Ok(None),
        (false, 0) => Err(invalid(
            "lora_id",
            "this server serves no adapters; leave it out, or start it with --enable-lora",
        )),
        (false, _) => match check_adapter_name(lora_id) {
            Ok(()) => Ok(Some(lora_id.to_owned())),
            Err(fault) => Err(invalid("lora_id", fault)),
        },
    }
}

/// Refuses a call for more bytes of log-probabilities than any call may have.
fn check_logprobs(bytes: usize, room: usize) -> Result<(), Status> {
    lockstep_types::sampling::check_logprobs(bytes, room).map_err(|error| {
        let remedy = "ask for fewer choices (n), tokens (max_new_tokens) or alternatives";
        invalid("top_logprobs_num", &format!("{error}: {remedy}"))
    })
}

fn invalid(field: &str, message: &str) -> Status {
    Status::invalid_argument(format!("{field}: {message}"))
}

fn refuse_unsupported(wire: &GenerateRequest) -> Result<(), Status> {
    let custom = wire
        .sampling_params
        .as_ref()
        .and_then(|params| params.custom_params.as_ref());
    let given = [
        ("mm_inputs", wire.mm_inputs.is_some()),
        ("input_embeds", !wire.input_embeds.is_empty()),
        ("disaggregated_params", wire.disaggregated_params.is_some()),
        (
            "custom_logit_processor",
            !wire.custom_logit_processor.is_empty(),
        ),
        ("return_hidden_states", wire.return_hidden_states),
        ("token_ids_logprob", !wire.token_ids_logprob.is_empty()),
        ("require_reasoning", wire.require_reasoning),
        ("sampling_params.custom_params", custom.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(invalid(
            field,
            "is not supported by this server; leave it out",
        )),
        None => Ok(()),
    }
}

/// Returns the constraint that a call asks for. Whether it can be followed is checked later.
fn constraint(params: Option<&WireParams>) -> Result<Option<Arc<Constraint>>, Status> {
    let Some(asked) = params.and_then(|params| params.constraint.as_ref()) else {
        return Ok(None);
    };
    if params.is_some_and(|params| params.ignore_eos) {
        return Err(invalid(
            "sampling_params.ignore_eos",
            "can't be used with a constraint: the output ends where it is fulfilled",
        ));
    }
    let (kind, text) = match asked {
        Asked::Regex(text) => (ConstraintKind::Regex, text),
        Asked::JsonSchema(text) => (ConstraintKind::JsonSchema, text),
        Asked::StructuralTag(text) => (ConstraintKind::StructuralTag, text),
        // It is translated already.
        Asked::EbnfGrammar(text) => (ConstraintKind::Lark, text),
    };
    Ok(Some(Arc::new(Constraint::new(kind, text.as_str()))))
}

/// Returns the DP rank that a call names.
fn dp_rank(asked: i32, config: &EngineConfig) -> Result<u32, Status> {
    let dp_size = config.parallel.dp_size;
    let dp_rank = u32::try_from(asked).ok();
    let dp_rank = dp_rank.filter(|dp_rank| (*dp_rank as usize) < dp_size);
    dp_rank.ok_or_else(|| {
        let ranks = format!(
            "DP ranks are numbered from 0 to {} (--dp-size)",
            dp_size - 1
        );
        invalid(
            "data_parallel_rank",
            &format!("there is no DP rank {asked}: {ranks}"),
        )
    })
}

fn max_new_tokens(
    params: Option<&WireParams>,
    prompt: usize,
    config: &EngineConfig,
) -> Result<u32, Status> {
    let left = config.max_output_tokens(prompt);
    let context = config.server.context_length;
    let too_long = || {
        Status::invalid_argument(format!(
            "the prompt has {prompt} tokens; the model's maximum context length is {context} tokens, \
             prompt and output together"
        ))
    };
    if left == 0 {
        return Err(too_long());
    }
    let left = u32::try_from(left).unwrap_or(u32::MAX);
    match params.and_then(|params| params.max_new_tokens) {
        None => Ok(left),
        Some(asked) if asked > left => Err(too_long()),
        Some(asked) => Ok(asked),
    }
}

fn choices(params: Option<&WireParams>, limits: &RequestLimits) -> Result<usize, Status> {
    let n = params.map_or(1, |params| params.n.max(1)) as usize;
    if n > limits.choices {
        return Err(invalid(
            "n",
            &format!("at most {} choices may be asked for", limits.choices),
        ));
    }
    Ok(n)
}

fn logprobs(
    wanted: &bool,
    start: i32,
    top: i32,
    config: &EngineConfig,
) -> Result<LogprobParams, Status> {
    if !wanted {
        return Ok(LogprobParams::default());
    }
    let most = config.server.limits.request.top_logprobs;
    let top = u32::try_from(top)
        .ok()
        .filter(|top| *top as usize <= most)
        .ok_or_else(|| invalid("top_logprobs_num", &format!("must be 0 to {most}")))?;
    // -1 asks for the output only.
    Ok(LogprobParams {
        output: true,
        top,
        prompt_start: u32::try_from(start).ok(),
    })
}

fn sampling(params: Option<WireParams>, config: &EngineConfig) -> Result<SamplingParams, Status> {
    let Some(wire) = params else {
        return Ok(SamplingParams::default());
    };
    let limits = &config.server.limits.request;
    if wire.stop_token_ids.len() > limits.stop_token_ids {
        return Err(invalid(
            "stop_token_ids",
            &format!("at most {}", limits.stop_token_ids),
        ));
    }
    let unless_zero = |value: f32, absent: f32| if value == 0.0 { absent } else { value };
    let top_k = match wire.top_k {
        -1 | 0 => 0,
        k => u32::try_from(k).map_err(|_| invalid("top_k", "must be -1 (all) or positive"))?,
    };
    Ok(SamplingParams {
        temperature: wire.temperature,
        top_p: unless_zero(wire.top_p, 1.0),
        top_k,
        min_p: wire.min_p,
        presence_penalty: wire.presence_penalty,
        frequency_penalty: wire.frequency_penalty,
        repetition_penalty: unless_zero(wire.repetition_penalty, 1.0),
        logit_bias: logit_bias(&wire, limits)?,
        min_new_tokens: wire.min_new_tokens,
        stop_token_ids: wire.stop_token_ids,
        ignore_eos: wire.ignore_eos,
        // Fields that the gateway's protocol does not have, and the seed, which `convert` sets.
        ..SamplingParams::default()
    })
}

fn logit_bias(wire: &WireParams, limits: &RequestLimits) -> Result<Vec<(u32, f32)>, Status> {
    if wire.logit_bias.len() > limits.logit_bias {
        return Err(invalid(
            "logit_bias",
            &format!("at most {} entries", limits.logit_bias),
        ));
    }
    let entry = |(id, bias): (&String, &f32)| {
        let id = id
            .parse()
            .map_err(|_| invalid("logit_bias", "keys must be token ids"))?;
        Ok((id, *bias))
    };
    wire.logit_bias.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn log_probabilities_are_bounded_by_what_is_expected() {
        let logprobs = LogprobParams {
            output: true,
            top: 20,
            prompt_start: None,
        };
        let check = |most, is_limited, choices| {
            let each = logprobs.reserve(9, most, is_limited);
            let checked = check_logprobs(each * choices, usize::MAX);
            checked.map(|()| each).map_err(|status| status.code())
        };
        let one = 21 * 80 * 4096;
        assert_eq!(check(4096, true, 1), Ok(one));
        assert_eq!(check(100, false, 1), Ok(21 * 80 * 100));
        assert_eq!(check(1_000_000, false, 1), Ok(one), "seldom so many");
        assert_eq!(check(1_000_000, true, 1), Err(Code::InvalidArgument));
        let most = (64 << 20) / one;
        assert!(check(4096, false, most).is_ok());
        let refused = check(4096, false, most + 1);
        assert_eq!(refused, Err(Code::InvalidArgument), "{most} choices");
        let named = |bytes, room| {
            let status = check_logprobs(bytes, room).expect_err("one byte too many");
            assert!(status.message().contains("top_logprobs_num"), "{status}");
            assert!(!status.message().contains("  "), "{status}");
            status.message().contains("--max-request-memory")
        };
        assert!(!named((64 << 20) + 1, usize::MAX));
        assert!(!named((64 << 20) + 1, 64 << 20));
        assert!(named((64 << 20) + 1, (64 << 20) - 1));
        assert!(named(one + 1, one));
        assert!(check_logprobs(one, one).is_ok());
    }
}
