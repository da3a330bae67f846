//! Plain data arrives as it was sent: as a message, as bytes, and back.

use std::sync::Arc;

use lockstep_adaptive::DepthRange;
use lockstep_proto::pb::lockstep as pb;
use lockstep_types::{
    ConstraintWork,
    adapter::Adapter,
    constraint::{Constraint, ConstraintKind, Reasoning, Whitespace},
    drafter::{CorpusCommand, CorpusSize, DrafterCommand, DrafterReply, DrafterResult},
    generation::GenerationParams,
    request::{
        ErrorKind, Finish, FinishReason, Output, Request, RequestError, SpeculationUsage, Usage,
    },
    sampling::{LogprobParams, SamplingParams, TokenLogprob},
    step::{
        PlanPart, RankResult, SlotExtend, SlotOpen, SlotOutput, StageTimes, StateKeep, StepDigests,
        StepPlan,
    },
};
use proptest::{collection::vec, option, prelude::*};

/// Returns `message` as its receiver reads it.
fn arrived<M: prost::Message + Default>(message: &M) -> M {
    M::decode(&message.encode_to_vec()[..]).expect("a message")
}

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let floats = vec(-100.0f32..100.0, 6);
    // Sorted by token and each token once, as `validated` leaves it.
    let bias = proptest::collection::btree_map(any::<u32>(), -100.0f32..100.0, 0..4);
    let numbers = (0..=i32::MAX as u32, any::<u64>(), any::<u32>());
    let stops = vec(any::<u32>(), 0..4);
    (floats, bias, numbers, stops, any::<bool>()).prop_map(
        |(floats, bias, (top_k, seed, min_new_tokens), stop_token_ids, ignore_eos)| {
            SamplingParams {
                temperature: floats[0],
                top_p: floats[1],
                top_k,
                min_p: floats[2],
                presence_penalty: floats[3],
                frequency_penalty: floats[4],
                repetition_penalty: floats[5],
                logit_bias: bias.into_iter().collect(),
                seed,
                min_new_tokens,
                stop_token_ids,
                ignore_eos,
            }
        },
    )
}

fn logprob_params() -> impl Strategy<Value = LogprobParams> {
    any::<(bool, u32, Option<u32>)>().prop_map(|(output, top, prompt_start)| LogprobParams {
        output,
        top,
        prompt_start,
    })
}

fn generation() -> impl Strategy<Value = GenerationParams> {
    let constraint = option::of(constraint().prop_map(Arc::new));
    (
        sampling(),
        logprob_params(),
        any::<Option<u32>>(),
        constraint,
    )
        .prop_map(
            |(sampling, logprobs, max_draft_steps, constraint)| GenerationParams {
                sampling,
                logprobs,
                max_draft_steps,
                constraint,
                // Of slots alone.
                adapter: None,
            },
        )
}

fn adapter() -> impl Strategy<Value = Adapter> {
    any::<(u16, u128)>().prop_map(|(place, content)| Adapter { place, content })
}

fn constraint() -> impl Strategy<Value = Constraint> {
    let kind = prop_oneof![
        Just(ConstraintKind::JsonSchema),
        Just(ConstraintKind::Regex),
        Just(ConstraintKind::Lark),
        Just(ConstraintKind::Choice),
        Just(ConstraintKind::StructuralTag),
        Just(ConstraintKind::Anything),
    ];
    let whitespace = prop_oneof![Just(Whitespace::Bounded), Just(Whitespace::Compact)];
    let marks = (option::of(any::<String>()), any::<String>());
    let limit = (option::of(any::<u32>()), any::<bool>());
    let breaks = vec(any::<String>(), 0..3);
    let after =
        (marks, limit, breaks).prop_map(|((open, close), (limit, again), breaks)| Reasoning {
            limit,
            again,
            breaks: breaks.into_iter().map(Into::into).collect(),
            ..Reasoning::new(open.as_deref(), &close)
        });
    let after = option::of(after);
    (kind, any::<String>(), whitespace, after).prop_map(|(kind, text, whitespace, after)| {
        Constraint {
            kind,
            text: text.into(),
            whitespace,
            after,
        }
    })
}

fn logprobs() -> impl Strategy<Value = Vec<TokenLogprob>> {
    let top = vec((any::<u32>(), -50.0f32..0.0), 0..3);
    let one = (any::<u32>(), option::of(-50.0f32..0.0), top);
    let one = one.prop_map(|(token_id, logprob, top)| TokenLogprob {
        token_id,
        logprob,
        top,
    });
    vec(one, 0..3)
}

fn open() -> impl Strategy<Value = SlotOpen> {
    let numbers = any::<(u32, u32, u32, bool)>();
    let states = any::<(Option<u32>, Option<u32>)>();
    let tokens = vec(any::<u32>(), 0..8);
    let generation = (generation(), option::of(adapter()))
        .prop_map(|(params, adapter)| GenerationParams { adapter, ..params });
    (numbers, states, tokens, generation).prop_map(
        |((slot, prompt_len, cached_len, drafted), (state, restore), token_ids, generation)| {
            SlotOpen {
                slot,
                token_ids,
                prompt_len,
                cached_len,
                drafted,
                state,
                restore,
                generation,
            }
        },
    )
}

fn extend() -> impl Strategy<Value = SlotExtend> {
    let pages = vec(any::<u32>(), 0..4);
    let keep = any::<(u32, u32)>().prop_map(|(position, state)| StateKeep { position, state });
    (any::<(u32, u32, bool)>(), pages, vec(keep, 0..3)).prop_map(
        |((slot, prefill_len, sample), new_pages, keeps)| SlotExtend {
            slot,
            prefill_len,
            sample,
            new_pages,
            keeps,
        },
    )
}

fn part() -> impl Strategy<Value = PlanPart> {
    let lists = (
        vec(any::<u32>(), 0..4),
        vec(open(), 0..3),
        vec(extend(), 0..6),
    );
    lists.prop_map(|(closes, opens, extends)| PlanPart {
        closes,
        opens,
        extends,
    })
}

fn plan() -> impl Strategy<Value = StepPlan> {
    (any::<(u64, u32, u32, u32)>(), vec(part(), 0..4)).prop_map(
        |((step, draft_steps, least, most), parts)| StepPlan {
            step,
            draft_steps,
            depth_range: DepthRange { least, most },
            parts,
        },
    )
}

fn row_output() -> impl Strategy<Value = SlotOutput> {
    let numbers = any::<(u32, u32, u32, u32, u32)>();
    (numbers, vec(any::<u32>(), 0..4), logprobs(), logprobs()).prop_map(
        |(numbers, token_ids, logprobs, prompt_logprobs)| SlotOutput {
            slot: numbers.0,
            token_ids,
            logprobs,
            prompt_logprobs,
            draft_depth: numbers.1,
            draft_tokens: numbers.2,
            forced_tokens: numbers.3,
            accepted_forced_tokens: numbers.4,
        },
    )
}

fn result() -> impl Strategy<Value = RankResult> {
    let stages = any::<(u32, u32, u32)>();
    let decided = any::<(Option<u32>, u32)>();
    let outputs = vec(row_output(), 0..6);
    let numbers = (any::<(u64, u64, u64, u64)>(), any::<[u64; 8]>());
    (numbers, outputs, stages, decided).prop_map(
        |((numbers, worked), outputs, stages, (agreed_depth, expected_us))| {
            let (step, tensor, world, forward_us) = numbers;
            let (draft_us, verify_us, extend_us) = stages;
            RankResult {
                step,
                digests: StepDigests { tensor, world },
                outputs,
                forward_us,
                stages: StageTimes {
                    draft_us,
                    verify_us,
                    extend_us,
                },
                agreed_depth,
                expected_us,
                constraints: ConstraintWork {
                    masks: worked[0],
                    mask_us: worked[1],
                    waits: worked[2],
                    wait_us: worked[3],
                    compiles: worked[4],
                    cache_hits: worked[5],
                    failures: worked[6],
                    cut_drafts: worked[7],
                },
            }
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let numbers = any::<(u32, i32, Option<u32>, Option<u32>)>();
    let tokens = vec(any::<u32>(), 1..8);
    let names = (option::of(".{0,8}"), option::of(".{0,8}"));
    (".{0,8}", tokens, numbers, generation(), names).prop_map(
        |(trace_id, input_ids, numbers, generation, (cache_salt, adapter_name))| {
            let (max_new_tokens, priority, timeout_ms, data_parallel_rank) = numbers;
            Request {
                trace_id,
                input_ids,
                generation,
                max_new_tokens,
                priority,
                timeout_ms,
                data_parallel_rank,
                cache_salt,
                adapter_name,
            }
        },
    )
}

fn error() -> impl Strategy<Value = RequestError> {
    let kind = prop::sample::select(vec![
        ErrorKind::Invalid,
        ErrorKind::Overloaded,
        ErrorKind::Unavailable,
        ErrorKind::Timeout,
        ErrorKind::Internal,
        ErrorKind::NotFound,
        ErrorKind::Conflict,
    ]);
    (kind, ".{0,8}", option::of(".{0,8}"), any::<Option<u32>>()).prop_map(
        |(kind, message, param, retry_after_s)| RequestError {
            kind,
            message,
            param,
            retry_after_s,
        },
    )
}

fn finish() -> impl Strategy<Value = Finish> {
    let reasons = [
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::Abort,
    ];
    let outcome = prop_oneof![
        prop::sample::select(reasons.to_vec()).prop_map(Ok),
        error().prop_map(Err),
    ];
    let usage = any::<(u32, u32, u32)>().prop_map(|(prompt, completion, cached)| Usage {
        prompt_tokens: prompt,
        completion_tokens: completion,
        cached_tokens: cached,
    });
    let lists = vec(any::<u32>(), 0..4);
    let speculation = (any::<(u32, u32)>(), lists.clone(), lists).prop_map(
        |((verify_steps, draft_tokens), proposed, accepted)| SpeculationUsage {
            verify_steps,
            draft_tokens,
            proposed,
            accepted,
        },
    );
    (
        outcome,
        any::<Option<u32>>(),
        usage,
        option::of(speculation),
    )
        .prop_map(|(outcome, matched_token, usage, speculation)| Finish {
            outcome,
            matched_token,
            usage,
            speculation,
        })
}

fn output() -> impl Strategy<Value = Output> {
    let tokens = vec(any::<u32>(), 0..4);
    let dp_rank = any::<Option<u32>>();
    (
        tokens,
        logprobs(),
        logprobs(),
        option::of(finish()),
        dp_rank,
    )
        .prop_map(
            |(token_ids, logprobs, prompt_logprobs, finish, dp_rank)| Output {
                token_ids,
                logprobs,
                prompt_logprobs,
                finish,
                dp_rank,
            },
        )
}

fn drafter_command() -> impl Strategy<Value = DrafterCommand> {
    let add = (".{0,8}", vec(any::<u32>(), 0..8));
    let command = prop_oneof![
        Just(CorpusCommand::List),
        add.prop_map(|(name, token_ids)| CorpusCommand::Add { name, token_ids }),
        ".{0,8}".prop_map(|name| CorpusCommand::Remove { name }),
    ];
    command.prop_map(DrafterCommand::Corpora)
}

fn drafter_result() -> impl Strategy<Value = DrafterResult> {
    let size = (".{0,8}", any::<u64>()).prop_map(|(name, tokens)| CorpusSize { name, tokens });
    prop_oneof![
        vec(size, 0..4).prop_map(|corpora| Ok(DrafterReply::Corpora(corpora))),
        error().prop_map(Err),
    ]
}

proptest! {
    #[test]
    fn steps(plan in plan(), result in result()) {
        let wire = arrived(&pb::StepPlan::from(plan.clone()));
        prop_assert_eq!(StepPlan::try_from(wire).expect("a plan"), plan);
        let wire = arrived(&pb::RankResult::from(result.clone()));
        prop_assert_eq!(RankResult::from(wire), result);
    }

    #[test]
    fn requests(
        request in request(),
        output in output(),
        number in any::<u64>(),
        parent in any::<Option<u64>>(),
    ) {
        let wire = arrived(&lockstep_proto::submit(request.clone(), number, parent));
        prop_assert_eq!((wire.request, wire.parent), (number, parent));
        prop_assert_eq!(Request::try_from(wire).expect("a request"), request);
        let wire = arrived(&lockstep_proto::output(output.clone(), number));
        prop_assert_eq!(wire.request, number);
        prop_assert_eq!(Output::try_from(wire).expect("an output"), output);
    }

    #[test]
    fn drafter_commands(command in drafter_command(), result in drafter_result()) {
        let wire = arrived(&pb::DrafterCommand::from(command.clone()));
        prop_assert_eq!(DrafterCommand::try_from(wire).expect("a command"), command);
        let wire = arrived(&pb::DrafterReply::from(result.clone()));
        prop_assert_eq!(DrafterResult::from(wire), result);
    }
}
