//! Bugs that other engines had with recurrent states, drafts and prefix caches, each as a test.
//!
//! | Bug | Reported as | Test |
//! |---|---|---|
//! | records laid out by the tier that runs, instead of by the allocation | sglang#23331 | states by `no_setting_changes_a_bit_of_texts_and_states` in [`crate::recurrent_matrix`], texts by `another_depth_in_every_step_changes_no_bit` in [`crate::hybrid`] |
//! | memory planned without room for what is verified | vllm#57721 | `records_are_charged_for_the_largest_tier` in `lockstep-config` |
//! | all others | named at each test | here |
//!
//! Each text is compared with plain decoding, and so is each recurrent state that a step leaves,
//! wherever plain decoding has that state.

use lockstep_local_engine::Completion;
use lockstep_types::request::Request;

use crate::{
    conversations::{Compared, DENSE, EXPERTS, ONE, Plain, ask, cached, in_turn, plain, words},
    setup::{Algorithm, Form, Setup, Shape},
};

const DRAFTS: [(Algorithm, Shape); 4] = [
    (Algorithm::Nextn, Shape::chain(4)),
    (Algorithm::Nextn, Shape::TREE),
    (Algorithm::Ngram, Shape::chain(5)),
    (Algorithm::Ngram, Shape::TREE),
];

fn drafting(speculation: (Algorithm, Shape), page: usize) -> Setup {
    Setup {
        speculation: Some(speculation),
        page,
        radix: true,
        ..plain(DENSE, ONE)
    }
}

fn answers(plain: &mut Plain, setup: &Setup, requests: &[Request]) -> Vec<Completion> {
    let of = |request| plain.answer(setup, request);
    requests.iter().map(of).collect()
}

/// Outcomes of requests that came one after the other.
#[derive(Debug, Default)]
struct Asked {
    /// Cached tokens of each prompt.
    hits: Vec<u32>,
    /// Drafts that were accepted.
    accepted: u64,
    /// Positions for which rows had drafts and none was accepted. Rows whose request had ended do
    /// not count.
    refused: u64,
    compared: Compared,
}

/// Asks requests one after the other.
fn ask_in_turn(plain: &mut Plain, setup: &Setup, requests: &[Request]) -> Asked {
    let expected = answers(plain, setup, requests);
    let jobs = in_turn(setup, requests.to_vec());
    let mut asked = Asked::default();
    let compared = plain.check(
        setup,
        (&jobs, &expected),
        |_| {},
        |engine, found| {
            let drafts = engine.speculation();
            let [proposed, accepted] =
                [&drafts.proposed, &drafts.accepted].map(|rows| rows.iter().sum::<u64>());
            asked.hits = found.iter().map(cached).collect();
            asked.accepted = drafts.accepted_tokens;
            asked.refused = proposed - accepted;
        },
    );
    asked.compared = compared;
    asked
}

/// A draft layer's constructor changed the configuration that the target shares
/// (sgl-project/sglang#23330).
#[test]
fn a_draft_layer_leaves_its_model_as_it_is() {
    let mut plain = Plain::default();
    for layers in [DENSE, EXPERTS] {
        let setup = Setup {
            layers,
            ..drafting(DRAFTS[0], 16)
        };
        // The layer is loaded for a request without drafts too.
        let requests = [Some(0), None].map(|most| {
            let mut request = ask(&words(1, 40), 24);
            request.generation.max_draft_steps = most;
            request
        });
        let Asked { compared, .. } = ask_in_turn(&mut plain, &setup, &requests);
        assert!(compared.live > 20, "{setup:?} {compared:?}");
    }
}

/// A state of an output was copied to the prefix cache before it was known which drafts are
/// accepted (sgl-project/sglang#36537). The second turn goes on from such a copy.
#[test]
fn cached_states_of_outputs_are_of_accepted_tokens() {
    let mut plain = Plain::default();
    for speculation in DRAFTS {
        let setup = drafting(speculation, 16);
        let turns = [2, 7, 8].map(|seed| {
            let first = ask(&words(seed, 238), 40);
            let text = plain.answer(&setup, &first).token_ids;
            let second = [&first.input_ids[..], &text, &words(2, 9)].concat();
            [first, ask(&second, 8)]
        });
        let asked = ask_in_turn(&mut plain, &setup, &turns.concat());
        assert_eq!(asked.hits, [0, 256].repeat(3), "{setup:?}");
        let met = asked.accepted > 0 && asked.compared.kept > 3;
        assert!(met, "{setup:?} {asked:?}");
    }
}

/// A step without drafts went on from a stale state, if drafts had been accepted in the step before
/// (vllm-project/vllm#39273, #52942, #56531).
#[test]
fn a_step_without_drafts_goes_on_behind_accepted_ones() {
    let mut plain = Plain::default();
    let requests = [ask(&words(1, 30), 60), ask(&words(2, 41), 60)];
    for speculation in DRAFTS {
        let setup = drafting(speculation, 16);
        let (jobs, expected) = (
            in_turn(&setup, requests.clone()),
            answers(&mut plain, &setup, &requests),
        );
        let (mut step, mut accepted) = (0, 0);
        let compared = plain.check(
            &setup,
            (&jobs, &expected),
            |engine| {
                step += 1;
                engine.set_draft_steps([4, 0, 4, 4, 0, 0][step % 6]);
            },
            |engine, _| accepted = engine.speculation().accepted_tokens,
        );
        assert!(accepted > 0 && compared.live > 40, "{setup:?} {compared:?}");
    }
}

/// A text was another one once a second text had been asked in between and the first came from the
/// cache, with drafts by the model's own layer (vllm-project/vllm#43559, #53912, #47194,
/// sgl-project/sglang#22908).
#[test]
fn a_text_between_two_others_poisons_no_cache() {
    let mut plain = Plain::default();
    let stem = words(1, 70);
    let [one, other] = [3, 4].map(|seed| ask(&[&stem[..], &words(seed, 20)].concat(), 30));
    let requests = [&one, &other, &one, &other, &one].map(Clone::clone);
    for (speculation, page) in DRAFTS.into_iter().zip([16, 1, 4, 16]) {
        let setup = drafting(speculation, page);
        let Asked { hits, accepted, .. } = ask_in_turn(&mut plain, &setup, &requests);
        assert!(hits[2..].iter().all(|hit| *hit > 70), "{setup:?} {hits:?}");
        assert!(accepted > 0, "{setup:?}");
    }
}

/// A hit was made longer for the sake of the drafts' cache, behind the position of the state that
/// it brought (vllm-project/vllm#45614).
#[test]
fn a_hit_ends_at_its_state() {
    let mut plain = Plain::default();
    let text = words(1, 120);
    let first = ask(&text, 40);
    let answer = plain.answer(&drafting(DRAFTS[0], 16), &first).token_ids;
    // The prompt's state is at 112, the answer's at 128, and pages behind that are cached too. One
    // is kept at 80 from the second time on that texts part behind it.
    let parted = |seed, at: usize| ask(&[&text[..at], &words(seed, 25)].concat(), 6);
    let gone_on = ask(&[&text[..], &answer[..30], &words(9, 10)].concat(), 6);
    let requests = [
        first,
        gone_on,
        parted(3, 113),
        parted(4, 112),
        parted(5, 90),
        parted(6, 91),
        parted(7, 81),
        parted(8, 80),
    ];
    for speculation in [None].into_iter().chain(DRAFTS.map(Some)) {
        let setup = Setup {
            speculation,
            ..drafting(DRAFTS[0], 16)
        };
        let Asked { hits, compared, .. } = ask_in_turn(&mut plain, &setup, &requests);
        // What the own layer keeps of a position depends on the next token too. So a text that
        // parts at a state's very position has one page less, and no state before it.
        let pairs = matches!(speculation, Some((Algorithm::Nextn, _)));
        let at = |position: u32| if pairs { 0 } else { position };
        let expected = [0, 128, 112, at(112), 0, 80, 80, at(80)];
        assert_eq!(hits, expected, "{setup:?}");
        assert!(compared.kept > 0, "{setup:?} {compared:?}");
    }
}

/// No prefix was found any more as soon as there were drafts (vllm-project/vllm#54360, #51250).
#[test]
fn drafts_leave_hits_as_they_are() {
    let mut plain = Plain::default();
    let first = ask(&words(1, 100), 20);
    let text = plain.answer(&drafting(DRAFTS[0], 1), &first).token_ids;
    let second = ask(&[&first.input_ids[..], &text, &words(2, 30)].concat(), 20);
    let other = ask(&[&first.input_ids[..60], &words(3, 30)].concat(), 20);
    let requests = [&first, &second, &other, &first, &second, &other].map(Clone::clone);
    for page in [1, 16] {
        let mut without = None;
        for speculation in [None].into_iter().chain(DRAFTS.map(Some)) {
            let setup = Setup {
                speculation,
                ..drafting(DRAFTS[0], page)
            };
            let Asked { hits, .. } = ask_in_turn(&mut plain, &setup, &requests);
            assert!(hits[3..].iter().all(|hit| *hit > 50), "{setup:?} {hits:?}");
            let without = without.get_or_insert_with(|| hits.clone());
            assert_eq!(hits, *without, "{setup:?}");
        }
    }
}

/// Kernels took all rows of a batch to have as many drafts (vllm-project/vllm#54740,
/// sgl-project/sglang#38897).
#[test]
fn rows_of_a_batch_have_drafts_of_other_lengths() {
    let mut plain = Plain::default();
    let caps = [None, Some(0), Some(1), Some(2)];
    let requests = caps.map(|cap| {
        let mut request = ask(&words(1 + cap.unwrap_or(5), 40), 50);
        request.generation.max_draft_steps = cap;
        request
    });
    for speculation in DRAFTS {
        let setup = drafting(speculation, 16);
        let expected = answers(&mut plain, &setup, &requests);
        let mut jobs = in_turn(&setup, requests.clone());
        jobs.iter_mut().for_each(|job| job.arrival = 0);
        let mut accepted = 0;
        let compared = plain.check(
            &setup,
            (&jobs, &expected),
            |_| {},
            |engine, _| accepted = engine.speculation().accepted_tokens,
        );
        assert!(accepted > 0 && compared.live > 60, "{setup:?} {compared:?}");
    }
}

/// Returns a request whose text has `length` tokens. It ends by `max_new_tokens`, or by a stop
/// token that the text has at its end alone. Each length and each kind of end has another prompt.
/// Returns `None` if no prompt was found whose text has such a token.
fn ending(plain: &mut Plain, setup: &Setup, length: usize, by_stop: bool) -> Option<Request> {
    let seed = 16 * length as u32;
    if !by_stop {
        return Some(ask(&words(seed, 240), length as u32));
    }
    (seed + 1..seed + 9).find_map(|seed| {
        let mut request = ask(&words(seed, 240), 40);
        let text = plain.answer(setup, &request).token_ids;
        let (before, stop) = (&text[..length - 1], text[length - 1]);
        request.generation.sampling.stop_token_ids = vec![stop];
        (!before.contains(&stop)).then_some(request)
    })
}

/// A copy of a state was kept behind the end of a text, whose last drafts were beyond its stop
/// (sgl-project/sglang#35694). Texts end around the position at which states of outputs are kept,
/// by their length and by a stop token. One is so long that its copy is kept.
#[test]
fn texts_that_end_inside_drafts_are_gone_on_with() {
    let mut plain = Plain::default();
    let (of_any, mut requests, mut stopped) = (drafting(DRAFTS[0], 16), Vec::new(), 0);
    let ends = (13..=19).flat_map(|length| [(length, false), (length, true)]);
    for (length, by_stop) in ends.chain([(40, false)]) {
        let Some(first) = ending(&mut plain, &of_any, length, by_stop) else {
            continue;
        };
        let answer = plain.answer(&of_any, &first);
        let end = answer.finish.unwrap().matched_token;
        assert_eq!(answer.token_ids.len(), length);
        assert_eq!(end.is_some(), by_stop, "{length} tokens");
        stopped += u32::from(by_stop);
        let own = words(length as u32, 5);
        let second = [&first.input_ids[..], &answer.token_ids, &own].concat();
        requests.extend([first, ask(&second, 12)]);
    }
    assert!(stopped > 2, "{stopped}");
    let mut accepted = 0;
    for (speculation, page) in DRAFTS.into_iter().zip([16, 1, 1, 16]) {
        let setup = drafting(speculation, page);
        let asked = ask_in_turn(&mut plain, &setup, &requests);
        for hits in asked.hits.chunks_exact(2) {
            assert!(hits[0] == 0 && hits[1] > 200, "{setup:?} {asked:?}");
        }
        if page == 16 {
            // Behind the prompt, whose last copy is at 224.
            assert_eq!(asked.hits.last(), Some(&256), "{setup:?} {asked:?}");
        }
        assert!(asked.compared.kept > 0, "{setup:?} {asked:?}");
        accepted += asked.accepted;
    }
    assert!(accepted > 0);
}

/// The columns of the convolution were not taken back with the state when drafts were refused
/// (ggml-org/llama.cpp#28123): the bits of a state are those of its matrices and of its columns.
#[test]
fn states_behind_refused_drafts_are_those_of_plain_decoding() {
    let mut plain = Plain::default();
    let requests = [1, 2, 3].map(|seed| ask(&words(seed, 9), 40));
    for speculation in DRAFTS {
        let setup = drafting(speculation, 16);
        let asked = ask_in_turn(&mut plain, &setup, &requests);
        let met = asked.accepted > 0 && asked.refused > 0 && asked.compared.live > 30;
        assert!(met, "{setup:?} {asked:?}");
    }
}

/// A DP rank without requests left out an exchange about states that the others make
/// (ROCm/ATOM#1690, sgl-project/sglang#22455), with experts too.
#[test]
fn idle_dp_ranks_take_part() {
    let mut plain = Plain::default();
    let form = Form {
        tp: 2,
        dp: 2,
        ..ONE
    };
    for (layers, speculation) in [
        (DENSE, DRAFTS[1]),
        (EXPERTS, DRAFTS[0]),
        (EXPERTS, DRAFTS[3]),
    ] {
        let setup = Setup {
            layers,
            tp: 2,
            dp: 2,
            ..drafting(speculation, 16)
        };
        assert_eq!(setup.form(), form);
        // One request at a time, so that the other DP rank has none.
        let requests = [1, 2, 1].map(|seed| ask(&words(seed, 40), 24));
        let Asked { compared, .. } = ask_in_turn(&mut plain, &setup, &requests);
        assert!(compared.live > 20, "{setup:?} {compared:?}");
    }
}
