use std::sync::Arc;

use lockstep_types::{
    adapter::Adapter,
    constraint::{Constraint, ConstraintKind, Reasoning, Whitespace},
    generation::GenerationParams,
    sampling::{LogprobParams, SamplingParams},
};

use super::*;

/// A plan in which every list has an element and every option a value.
fn plan() -> StepPlan {
    StepPlan {
        step: 7,
        draft_steps: 5,
        depth_range: DepthRange { least: 1, most: 6 },
        parts: vec![PlanPart {
            closes: vec![3],
            opens: vec![SlotOpen {
                slot: 1,
                token_ids: vec![10, 11, 12],
                prompt_len: 2,
                cached_len: 1,
                drafted: true,
                state: Some(4),
                restore: Some(5),
                generation: GenerationParams {
                    sampling: SamplingParams {
                        temperature: 0.5,
                        top_p: 0.9,
                        top_k: 40,
                        min_p: 0.1,
                        presence_penalty: 0.2,
                        frequency_penalty: 0.3,
                        repetition_penalty: 1.1,
                        logit_bias: vec![(5, 1.5)],
                        seed: 99,
                        min_new_tokens: 4,
                        stop_token_ids: vec![6],
                        ignore_eos: false,
                    },
                    logprobs: LogprobParams {
                        output: true,
                        top: 2,
                        prompt_start: Some(0),
                    },
                    max_draft_steps: Some(3),
                    constraint: Some(Arc::new(Constraint {
                        after: Some(Reasoning::new(Some("<t>"), "</t>")),
                        ..Constraint::new(ConstraintKind::Regex, "[ab]*")
                    })),
                    adapter: Some(Adapter {
                        place: 1,
                        content: 7 << 64 | 5,
                    }),
                },
            }],
            extends: vec![SlotExtend {
                slot: 1,
                prefill_len: 2,
                sample: false,
                new_pages: vec![8],
                keeps: vec![StateKeep {
                    position: 16,
                    state: 6,
                }],
            }],
        }],
    }
}

fn digest(plan: &StepPlan) -> u64 {
    let mut digests = Digests::new();
    digests.plan(plan, &plan.parts[0]);
    digests.values().tensor
}

#[test]
fn every_field_of_a_plan_changes_the_digest() {
    type Change = fn(&mut StepPlan);
    let changes: &[(&str, Change)] = &[
        ("step", |plan| plan.step += 1),
        ("closes", |plan| part(plan).closes[0] += 1),
        ("closes", |plan| part(plan).closes.clear()),
        ("opens", |plan| part(plan).opens.clear()),
        ("slot", |plan| part(plan).opens[0].slot += 1),
        ("token_ids", |plan| part(plan).opens[0].token_ids[1] += 1),
        ("token_ids", |plan| part(plan).opens[0].token_ids.push(0)),
        ("prompt_len", |plan| part(plan).opens[0].prompt_len += 1),
        ("cached_len", |plan| part(plan).opens[0].cached_len += 1),
        ("drafted", |plan| part(plan).opens[0].drafted = false),
        ("state", |plan| part(plan).opens[0].state = Some(3)),
        ("state", |plan| part(plan).opens[0].state = None),
        ("restore", |plan| part(plan).opens[0].restore = Some(3)),
        ("restore", |plan| part(plan).opens[0].restore = None),
        ("temperature", |plan| sampling(plan).temperature = 0.6),
        ("top_p", |plan| sampling(plan).top_p = 0.8),
        ("top_k", |plan| sampling(plan).top_k = 0),
        ("min_p", |plan| sampling(plan).min_p = 0.0),
        ("presence", |plan| sampling(plan).presence_penalty = 0.0),
        ("frequency", |plan| sampling(plan).frequency_penalty = 0.0),
        ("repetition", |plan| sampling(plan).repetition_penalty = 1.0),
        ("bias's token", |plan| sampling(plan).logit_bias[0].0 = 4),
        ("bias", |plan| sampling(plan).logit_bias[0].1 = -1.5),
        ("logit_bias", |plan| sampling(plan).logit_bias.clear()),
        ("seed", |plan| sampling(plan).seed = 98),
        ("min_new_tokens", |plan| sampling(plan).min_new_tokens = 0),
        ("stop_token_ids", |plan| {
            sampling(plan).stop_token_ids[0] = 7;
        }),
        ("ignore_eos", |plan| sampling(plan).ignore_eos = true),
        ("output", |plan| generation(plan).logprobs.output = false),
        ("top", |plan| generation(plan).logprobs.top = 0),
        ("prompt_start", |plan| {
            generation(plan).logprobs.prompt_start = None;
        }),
        ("max_draft_steps", |plan| {
            generation(plan).max_draft_steps = Some(0);
        }),
        ("max_draft_steps", |plan| {
            generation(plan).max_draft_steps = None;
        }),
        ("constraint", |plan| generation(plan).constraint = None),
        ("kind", |plan| {
            constraint(plan).kind = ConstraintKind::Lark;
        }),
        ("text", |plan| constraint(plan).text = "[ab]+".into()),
        ("whitespace", |plan| {
            constraint(plan).whitespace = Whitespace::Compact;
        }),
        ("after", |plan| constraint(plan).after = None),
        ("open", |plan| reasoning(plan).open = None),
        ("open", |plan| reasoning(plan).open = Some("<u>".into())),
        ("close", |plan| reasoning(plan).close = "</u>".into()),
        ("limit", |plan| reasoning(plan).limit = Some(0)),
        ("again", |plan| reasoning(plan).again = true),
        ("breaks", |plan| reasoning(plan).breaks = vec!["<c>".into()]),
        ("adapter", |plan| generation(plan).adapter = None),
        ("place", |plan| adapter(plan).place = 0),
        ("content", |plan| adapter(plan).content ^= 1),
        ("content", |plan| adapter(plan).content ^= 1 << 64),
        ("extends", |plan| part(plan).extends.clear()),
        ("slot", |plan| part(plan).extends[0].slot = 0),
        ("prefill_len", |plan| part(plan).extends[0].prefill_len = 0),
        ("sample", |plan| part(plan).extends[0].sample = true),
        ("new_pages", |plan| part(plan).extends[0].new_pages[0] = 9),
        ("keeps", |plan| part(plan).extends[0].keeps.clear()),
        ("position", |plan| {
            part(plan).extends[0].keeps[0].position = 32;
        }),
        ("state", |plan| part(plan).extends[0].keeps[0].state = 7),
        ("draft_steps", |plan| plan.draft_steps = 0),
        ("least", |plan| plan.depth_range.least = 0),
        ("most", |plan| plan.depth_range.most = 5),
    ];
    for (field, change) in changes {
        let mut changed = plan();
        change(&mut changed);
        assert_ne!(digest(&changed), digest(&plan()), "{field}");
    }
}

/// Ranks with other requests agree on the numbers of steps and draft steps.
#[test]
fn what_all_ranks_share_does_not_tell_requests_apart() {
    let world = |change: fn(&mut StepPlan)| {
        let mut plan = plan();
        change(&mut plan);
        let mut digests = Digests::new();
        digests.plan(&plan, &plan.parts[0]);
        digests.values().world
    };
    let own = world(|_| {});
    assert_eq!(own, world(|plan| part(plan).opens[0].token_ids[0] = 9));
    assert_eq!(own, world(|plan| part(plan).extends.clear()));
    assert_ne!(own, world(|plan| plan.step = 8));
    assert_ne!(own, world(|plan| plan.draft_steps = 1));
}

fn part(plan: &mut StepPlan) -> &mut PlanPart {
    &mut plan.parts[0]
}

fn generation(plan: &mut StepPlan) -> &mut GenerationParams {
    &mut part(plan).opens[0].generation
}

fn constraint(plan: &mut StepPlan) -> &mut Constraint {
    Arc::make_mut(generation(plan).constraint.as_mut().expect("it has one"))
}

fn adapter(plan: &mut StepPlan) -> &mut Adapter {
    generation(plan).adapter.as_mut().expect("it has one")
}

fn reasoning(plan: &mut StepPlan) -> &mut Reasoning {
    constraint(plan).after.as_mut().expect("it has some")
}

fn sampling(plan: &mut StepPlan) -> &mut SamplingParams {
    &mut generation(plan).sampling
}
