//! Tests of promises that every policy must keep, whatever rows bring.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};

use lockstep_adaptive::{
    AdaptiveConfig, BatchSlot, Decider, DepthRange, Digest, Loads, LongPrompts, Moment, POSITIONS,
    Policies, Policy, PolicyFactory, Row, Seen, Tier,
};
use proptest::prelude::*;

const DEPTHS: [u32; 6] = [0, 1, 2, 3, 5, 7];

fn config(policy: &str) -> AdaptiveConfig {
    let tier = |depth| Tier {
        depth,
        tokens: depth + 1,
    };
    let small = BatchSlot::new(1, DEPTHS.to_vec());
    let large = BatchSlot::new(16, vec![0, 1, 3]);
    AdaptiveConfig::new(policy, 3, DEPTHS.map(tier).to_vec(), vec![small, large])
}

fn decider(policy: &str, profile: &[Seen]) -> Decider {
    Decider::new(&config(policy), &Policies::builtin(), profile).unwrap()
}

fn names() -> Vec<String> {
    Policies::builtin()
        .iter()
        .map(|policy| policy.name().to_owned())
        .collect()
}

/// Generates small, ordinary and absurd numbers.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..40, 0u32..100_000, Just(u32::MAX), any::<u32>()]
}

fn any_seen() -> impl Strategy<Value = Seen> {
    let counts = || prop::array::uniform16(word());
    let sizes = (
        prop_oneof![0u32..9, word()],
        word(),
        word(),
        prop_oneof![Just(0), word()],
    );
    let forced = (word(), word());
    (sizes, counts(), counts(), forced, word(), word(), word()).prop_map(
        |(
            (depth, decodes, tokens, prompt_tokens),
            at_risk,
            accepted,
            (forced_rows, forced_accepted),
            draft_us,
            verify_us,
            extend_us,
        )| Seen {
            depth,
            decodes,
            tokens,
            prompt_tokens,
            at_risk,
            accepted,
            forced_rows,
            forced_accepted,
            draft_us,
            verify_us,
            extend_us,
        },
    )
}

fn any_row() -> impl Strategy<Value = Row> {
    let step = prop_oneof![0u64..9, Just(u64::MAX), any::<u64>()];
    let depths = prop_oneof![Just(u32::MAX), any::<u32>()];
    let counts = (word(), word(), word());
    let geometry = (word(), word(), word(), word());
    let digests = (any::<u64>(), any::<u64>());
    (step, word(), digests, depths, counts, geometry, any_seen()).prop_map(
        |(
            step,
            depth,
            (digest, group_digest),
            depths,
            (decodes, joined, unfinished),
            geometry,
            seen,
        )| {
            let (tokens, requests, wanted, longest) = geometry;
            Row {
                step,
                depth,
                digest,
                group_digest,
                depths,
                decodes,
                joined,
                unfinished,
                tokens,
                requests,
                wanted,
                longest,
                seen,
            }
        },
    )
}

fn any_range() -> impl Strategy<Value = DepthRange> {
    let pair = (0u32..9, 0u32..9);
    prop_oneof![
        Just(DepthRange::default()),
        pair.prop_map(|(a, b)| DepthRange {
            least: a.min(b),
            most: a.max(b)
        }),
    ]
}

type Step = (Vec<Row>, DepthRange);

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let rows = prop::collection::vec(any_row(), 1..4);
    prop::collection::vec((rows, any_range()), 1..20)
}

/// Returns the depths that may be decided. If none fits, it is the next lower depth that can
/// run.
fn allowed(rows: &[Row], range: DepthRange) -> Vec<u32> {
    let decodes = rows
        .iter()
        .fold(0u32, |sum, row| sum.saturating_add(row.seen.decodes));
    let of_slot: &[u32] = if decodes < 16 { &DEPTHS } else { &[0, 1, 3] };
    let runs = |depth: &u32| rows.iter().all(|row| row.depths & (1 << depth) != 0);
    let fits = of_slot
        .iter()
        .copied()
        .filter(|depth| runs(depth) && range.contains(*depth));
    let fits: Vec<_> = fits.collect();
    if !fits.is_empty() {
        return fits;
    }
    let below = DEPTHS
        .into_iter()
        .filter(|depth| runs(depth) && *depth <= range.most);
    vec![below.max().unwrap_or(0)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn equal_rows_give_equal_depths_that_all_ranks_can_run(
        profile in prop::collection::vec(any_seen(), 0..6),
        steps in any_steps(),
    ) {
        for name in names() {
            let (mut one, mut other) = (decider(&name, &profile), decider(&name, &profile));
            for (rows, range) in &steps {
                one.begin();
                other.begin();
                let depth = one.decide(rows, *range);
                prop_assert!(allowed(rows, *range).contains(&depth), "{} {}", name, depth);
                prop_assert_eq!(depth, other.decide(rows, *range));
                prop_assert_eq!(one.digest(), other.digest());
                prop_assert_eq!(one.depth(), other.depth());
                prop_assert_eq!(one.outlook(), other.outlook());
            }
        }
    }

    #[test]
    fn a_word_that_differs_shows_in_the_digest(
        steps in any_steps(),
        at in any::<prop::sample::Index>(),
        word in 0..Row::WORDS,
        flip in 1u32..,
    ) {
        for name in names() {
            let (mut one, mut other) = (decider(&name, &[]), decider(&name, &[]));
            let at = at.index(steps.len());
            for (number, (rows, range)) in steps.iter().enumerate() {
                one.decide(rows, *range);
                let mut rows = rows.clone();
                if number == at {
                    let mut words = rows[0].to_words();
                    words[word] ^= flip;
                    rows[0] = Row::from_words(&words);
                }
                other.decide(&rows, *range);
                prop_assert_eq!(one.digest() == other.digest(), number < at, "{}", name);
            }
        }
    }

    /// Costs are left out here: ranks without work make the others' steps shorter.
    #[test]
    fn ranks_without_requests_change_no_decision(steps in any_steps(), idle in 1usize..4) {
        let policies = Policies::builtin();
        for policy in policies.iter().filter(|policy| !policy.reads_costs()) {
            let name = policy.name();
            let (mut one, mut other) = (decider(name, &[]), decider(name, &[]));
            for (rows, range) in &steps {
                let Row { step, depth, .. } = rows[0];
                let first = Row { step, depth, depths: u32::MAX, ..Row::default() };
                let mut more = rows.clone();
                more.extend(vec![first; idle]);
                prop_assert_eq!(one.decide(rows, *range), other.decide(&more, *range), "{}", name);
            }
        }
    }

    /// Ranks that share a batch run the same, and only one of them counts its requests.
    #[test]
    fn ranks_that_run_the_same_change_no_decision(
        profile in prop::collection::vec(any_seen(), 0..6),
        steps in prop::collection::vec((any_row(), any_range()), 1..20),
        others in 1usize..4,
    ) {
        for name in names() {
            let (mut one, mut other) = (decider(&name, &profile), decider(&name, &profile));
            for (row, range) in &steps {
                let counts = Seen {
                    decodes: 0,
                    at_risk: [0; POSITIONS],
                    accepted: [0; POSITIONS],
                    forced_rows: 0,
                    forced_accepted: 0,
                    ..row.seen
                };
                let same = Row { decodes: 0, joined: 0, unfinished: 0, seen: counts, ..*row };
                let mut more = vec![*row];
                more.extend(vec![same; others]);
                prop_assert_eq!(one.decide(&[*row], *range), other.decide(&more, *range), "{}", name);
            }
        }
    }

    #[test]
    fn rows_come_back_from_their_words(row in any_row(), words in any::<[u32; 32]>()) {
        prop_assert_eq!(Row::from_words(&row.to_words()), row);
        let mut all = [0; Row::WORDS];
        all[..32].copy_from_slice(&words);
        prop_assert_eq!(Row::from_words(&all).to_words(), all);
    }

    #[test]
    fn joining_sums_requests_and_takes_the_slowest(rows in prop::collection::vec(any_row(), 0..5)) {
        let all = Seen::join(&rows);
        let sum = |of: fn(&Seen) -> u32| {
            let wide: u64 = rows.iter().map(|row| u64::from(of(&row.seen))).sum();
            u32::try_from(wide).unwrap_or(u32::MAX)
        };
        let most = |of: fn(&Seen) -> u32| rows.iter().map(|row| of(&row.seen)).max().unwrap_or(0);
        prop_assert_eq!(all.decodes, sum(|seen| seen.decodes));
        prop_assert_eq!(all.at_risk[0], sum(|seen| seen.at_risk[0]));
        prop_assert_eq!(all.accepted[15], sum(|seen| seen.accepted[15]));
        prop_assert_eq!(all.tokens, most(|seen| seen.tokens));
        prop_assert_eq!(all.prompt_tokens, most(|seen| seen.prompt_tokens));
        prop_assert_eq!(all.verify_us, most(|seen| seen.verify_us));
        prop_assert_eq!(all.depth, most(|seen| seen.depth));
    }

    #[test]
    fn counting_follows_the_rows(rows in prop::collection::vec((0u32..20, 0u32..20), 0..30)) {
        let mut seen = Seen::default();
        for (proposed, accepted) in &rows {
            seen.count(*proposed, *accepted);
        }
        for at in 0..POSITIONS as u32 {
            let reached = |&&(proposed, accepted): &&(u32, u32)| {
                proposed > at && accepted.min(proposed) >= at
            };
            let kept = |&&(proposed, accepted): &&(u32, u32)| accepted.min(proposed) > at;
            prop_assert_eq!(seen.at_risk[at as usize] as usize, rows.iter().filter(reached).count());
            prop_assert_eq!(seen.accepted[at as usize] as usize, rows.iter().filter(kept).count());
        }
    }
}

#[test]
fn counts_saturate() {
    let most = Seen {
        at_risk: [u32::MAX; POSITIONS],
        accepted: [u32::MAX; POSITIONS],
        ..Seen::default()
    };
    let mut seen = most;
    seen.count(9, 9);
    assert_eq!(seen, most);
    let full = Row {
        seen: Seen {
            decodes: u32::MAX,
            ..most
        },
        ..Row::default()
    };
    assert_eq!(Seen::join(&[full, full]), full.seen);
}

/// Ranks with differently measured costs would differ later, so their digests differ at once.
#[test]
fn another_profile_is_another_digest() {
    let digest = |verify_us| {
        let measured = Seen {
            decodes: 1,
            tokens: 1,
            verify_us,
            ..Seen::default()
        };
        let decider = Decider::new(&config("static"), &Policies::builtin(), &[measured]);
        decider.unwrap().digest()
    };
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}

#[test]
fn a_policy_nobody_knows_is_refused_by_name() {
    let error = Decider::new(&config("thrifty"), &Policies::builtin(), &[]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("thrifty") && names().iter().all(|name| text.contains(name)),
        "{text}"
    );
}

/// A policy that keeps what the decider told it last.
#[derive(Debug, Clone, Default)]
struct Told(Arc<Mutex<Option<What>>>);

/// Facts that the policy was told, and the costs at that time.
#[derive(Debug, Clone, Copy)]
struct What {
    taken: u32,
    loads: Loads,
    long_prompts: LongPrompts,
    /// By number of rows: decoded on the fullest rank, decoding on the fullest rank, decoding
    /// on all ranks, and joined on all ranks.
    rows: [u32; 4],
    /// Nanoseconds of a step of 32 tokens on every rank.
    even: Option<u64>,
    /// Nanoseconds of a step in which four rows draft three deep.
    drafting: Option<u64>,
}

impl PolicyFactory for Told {
    fn name(&self) -> &str {
        "told"
    }

    fn summary(&self) -> &str {
        "for tests"
    }

    fn build(&self, _config: &AdaptiveConfig) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

impl Policy for Told {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        let told = What {
            taken: moment.seen_taken,
            loads: moment.loads,
            long_prompts: moment.long_prompts,
            rows: [
                moment.seen_rows,
                moment.rows,
                moment.all_rows,
                moment.joined,
            ],
            even: moment.costs.step_ns(32, 0),
            drafting: moment.costs.step_ns(4, 3),
        };
        *self.0.lock().unwrap() = Some(told);
        0
    }

    fn digest(&self, _digest: &mut Digest) {}
}

/// Returns what the policy is told after `steps` steps with these rows.
fn told(shared_part: u32, profile: &[Seen], steps: usize, rows: &[Row]) -> What {
    told_in_turn(shared_part, profile, &vec![rows; steps])
}

/// Returns what the policy is told after steps with these rows, in turn.
fn told_in_turn(shared_part: u32, profile: &[Seen], steps: &[&[Row]]) -> What {
    let told = Told::default();
    let mut policies = Policies::builtin();
    policies.add(Arc::new(told.clone()));
    let config = AdaptiveConfig {
        shared_part,
        ..config("told")
    };
    let mut decider = Decider::new(&config, &policies, profile).unwrap();
    for rows in steps {
        decider.begin();
        decider.decide(rows, DepthRange::default());
    }
    told.0.lock().unwrap().unwrap()
}

/// Drafters of all DP ranks work at once, each on its own requests. A step waits for the
/// drafter that takes in most, not for the sum.
#[test]
fn what_drafters_take_in_is_that_of_the_one_that_has_most() {
    let row = |rows: u32, accepted: u32| {
        let mut seen = Seen {
            decodes: rows,
            depth: 3,
            ..Seen::default()
        };
        (0..rows).for_each(|_| seen.count(3, accepted));
        Row {
            step: 1,
            seen,
            ..Row::default()
        }
    };
    let told = told(0, &[], 1, &[row(2, 1), row(3, 3), row(0, 0)]);
    assert_eq!(told.taken, 12);
}

/// Prompts are left out, and so are tokens that only one rank runs.
#[test]
fn policies_are_told_how_tokens_lie_and_who_waits_for_prompts() {
    let row = |tokens: u32, unfinished: u32| Row {
        step: 1,
        decodes: tokens / 4,
        unfinished,
        seen: Seen {
            decodes: tokens / 4,
            tokens: tokens + 40,
            prompt_tokens: 40,
            depth: 3,
            ..Seen::default()
        },
        ..Row::default()
    };
    let uneven = [row(16, 0), row(8, 2), row(0, 0), row(0, 0)];
    for (rows, balance, ranks) in [
        (&uneven[..], 24 * (1 << 16) / 64, 1),
        (&[row(8, 1); 4], 1 << 16, 4),
        (&uneven[1..2], 1 << 16, 0),
    ] {
        let What {
            loads,
            long_prompts,
            ..
        } = told(7, &[], 1, rows);
        let shared_part = 7;
        assert_eq!(
            loads,
            Loads {
                balance,
                shared_part
            }
        );
        assert_eq!(long_prompts.ranks, ranks);
    }
    let told_of = |steps: &[&[Row]]| told_in_turn(7, &[], steps);
    let then = told_of(&[&uneven]);
    assert_eq!((then.long_prompts.rows, then.long_prompts.waiting), (4, 4));
    // If no rank had anything to do, tokens are taken to lie as before.
    let idle = told_of(&[&uneven, &[row(0, 0); 4]]);
    assert_eq!(idle.loads, then.loads);
}

/// All ranks wait for the rank with most rows, wherever it stands. Rows that join are a part of
/// all rows.
#[test]
fn policies_are_told_the_rows_of_the_fullest_rank_and_of_all() {
    let row = |decoded: u32, decodes, joined| Row {
        step: 1,
        decodes,
        joined,
        seen: Seen {
            decodes: decoded,
            ..Seen::default()
        },
        ..Row::default()
    };
    let mut rows = [row(3, 2, 1), row(7, 1, 0), row(1, 9, 4), row(0, 0, 0)];
    for _ in 0..rows.len() {
        rows.rotate_left(1);
        assert_eq!(told(0, &[], 1, &rows).rows, [7, 9, 12, 5]);
    }
}

/// Returns a drafting step with equally many tokens on each rank, whose rows accept one draft
/// each.
fn drafting(rows: u32, slow: u32) -> Row {
    let mut seen = Seen {
        depth: 3,
        decodes: rows,
        tokens: 16,
        draft_us: 3_000 * slow,
        verify_us: 20_000,
        extend_us: 900 * slow,
        ..Seen::default()
    };
    (0..rows).for_each(|_| seen.count(3, 1));
    Row {
        step: 1,
        seen,
        ..Row::default()
    }
}

#[test]
fn costs_are_learnt_by_the_rank_that_has_most_to_do() {
    let alone = told(0, &[], 30, &[drafting(4, 1)]);
    assert!(alone.drafting.is_some());
    for others in [&[drafting(2, 1)][..], &[drafting(3, 1), drafting(2, 1)]] {
        let rows = [&[drafting(4, 1)], others].concat();
        assert_eq!(told(0, &[], 30, &rows).drafting, alone.drafting);
    }
}

/// In the first step after a pause a drafter takes in what it has missed.
#[test]
fn a_step_that_drafts_again_corrects_no_cost() {
    let idle = Row {
        seen: Seen {
            depth: 0,
            tokens: 4,
            draft_us: 0,
            extend_us: 0,
            ..drafting(4, 1).seen
        },
        ..drafting(4, 1)
    };
    let (usual, idle, slow) = ([drafting(4, 1)], [idle], [drafting(4, 9)]);
    let after = |then: &[&[Row]]| {
        let steps = [&[&usual[..]; 30][..], then].concat();
        told_in_turn(0, &[], &steps).drafting.unwrap()
    };
    let before = after(&[&idle]);
    assert_eq!(after(&[&idle, &slow]), before);
    // A step that goes on drafting corrects the costs.
    assert!(after(&[&idle, &slow, &slow]) > before);
}

/// Costs are those of ranks with equal loads. Steps with other loads correct them relative to
/// the expected time of such steps.
#[test]
fn uneven_steps_that_last_as_expected_correct_nothing() {
    let seen = |tokens: u32, verify_us| Seen {
        decodes: tokens,
        tokens,
        verify_us,
        ..Seen::default()
    };
    let profile = [seen(1, 100_000), seen(16, 100_000), seen(32, 132_000)];
    let row = |tokens, verify_us| Row {
        step: 1,
        decodes: tokens,
        seen: seen(tokens, verify_us),
        ..Row::default()
    };
    let half = 1 << 15;
    let after = |verify_us| {
        let rows = [row(32, verify_us), row(0, verify_us)];
        told(half, &profile, 500, &rows).even.unwrap() / 1_000
    };
    // Half of the pass is as with 32 tokens, half as with 16.
    assert_eq!(after(116_000), 132_000);
    assert!(after(128_000) > 138_000 && after(106_000) < 126_000);
}
