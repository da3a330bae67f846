use lockstep_backend_cpu::CpuBackend;
use proptest::prelude::*;

use super::*;

const CONFIG: NgramConfig = NgramConfig {
    min_match: 1,
    max_match: 6,
    capacity: 4000,
    private: false,
};

fn drafter() -> NgramDrafter {
    NgramDrafter::new(CONFIG, 4, 2, Corpora::default())
}

fn row(steps: usize, topk: usize, most: usize) -> DraftRow {
    DraftRow {
        slot: 0,
        pages_start: 0,
        kv_len: 0,
        steps,
        topk,
        most,
        room: 100,
        may_stop: false,
    }
}

/// Returns the drafted tokens and parents.
fn propose(drafter: &mut NgramDrafter, row: DraftRow, text: &[u32]) -> Vec<(u32, u32)> {
    let mut drafts = Drafts::new(1, row.most, 0);
    drafts.begin(1);
    drafter.propose(&row, text, &mut drafts, 0);
    assert!(crate::depth(drafts.nodes(0)) as usize <= row.steps);
    let nodes = drafts.nodes(0).iter();
    nodes.map(|node| (node.token, node.parent)).collect()
}

fn chain(tokens: &[u32]) -> Vec<(u32, u32)> {
    tokens.iter().copied().zip(0..).collect()
}

#[test]
fn a_request_s_own_text_is_copied_and_repetition_goes_on() {
    let mut drafter = drafter();
    let text = [5, 6, 7, 8, 9, 5, 6];
    drafter.begin(0, &text);
    assert_eq!(
        propose(&mut drafter, row(3, 1, 3), &text),
        chain(&[7, 8, 9])
    );
    assert_eq!(propose(&mut drafter, row(3, 1, 2), &text), chain(&[7, 8]));
    let loops = [1, 2, 3, 1, 2, 3];
    drafter.begin(0, &loops);
    let on = chain(&[1, 2, 3, 1]);
    assert_eq!(propose(&mut drafter, row(4, 1, 4), &loops), on);
    assert_eq!(propose(&mut drafter, row(4, 1, 4), &[4]), []);
}

#[test]
fn a_tree_has_what_is_most_frequent_after_the_longest_match_first() {
    let mut drafter = drafter();
    let text = [2, 1, 8, 9, 1, 7, 9, 1, 7, 2, 1];
    drafter.begin(0, &text);
    let tree = propose(&mut drafter, row(1, 2, 3), &text);
    // "2 1" was followed by 8; "1" alone was followed more often by 7.
    assert_eq!(tree, [(8, 0), (7, 0)]);
}

#[test]
fn what_was_served_is_drafted_for_others() {
    let mut drafter = drafter();
    let (prompt, answer) = ([1, 2, 3], [10, 11, 12, 13]);
    let text = [&prompt[..], &answer].concat();
    drafter.begin(1, &prompt);
    for len in 4..=text.len() {
        drafter.serve(1, &text[..len], false);
    }
    drafter.serve(1, &text, true);
    let other = [9, 2, 3];
    drafter.begin(0, &other);
    let drafted = propose(&mut drafter, row(4, 1, 4), &other);
    assert_eq!(drafted, chain(&answer));
}

/// However many steps a text takes, each of its windows is served once.
#[test]
fn a_text_counts_once_however_often_it_is_looked_at() {
    let mut drafter = drafter();
    let text = |first: u32| [&[1, 2, 3][..], &Vec::from_iter(first..first + 14)].concat();
    let long = text(100);
    drafter.begin(0, &long[..3]);
    for len in 4..=long.len() {
        drafter.serve(0, &long[..len], false);
    }
    drafter.serve(0, &long, true);
    // Another text that was served twice follows more often.
    for _ in 0..2 {
        drafter.begin(1, &text(200)[..3]);
        drafter.serve(1, &text(200), true);
    }
    let other = [9, 2, 3];
    drafter.begin(0, &other);
    let drafted = propose(&mut drafter, row(2, 1, 2), &other);
    assert_eq!(drafted, chain(&[200, 201]));
}

#[test]
fn a_slot_keeps_nothing_of_the_text_before() {
    let mut drafter = drafter();
    let before: Vec<u32> = (0..60).collect();
    drafter.begin(0, &before);
    assert_eq!(propose(&mut drafter, row(2, 1, 2), &before), []);
    let text = [&[70, 71, 72, 73][..], &Vec::from_iter(100..160), &[70, 71]].concat();
    drafter.begin(0, &text);
    let drafted = propose(&mut drafter, row(2, 1, 2), &text);
    assert_eq!(drafted, chain(&[72, 73]));
}

#[test]
fn private_texts_are_drafted_for_no_one_else() {
    let private = NgramConfig {
        private: true,
        ..CONFIG
    };
    let text = [1, 2, 3, 10, 11, 2, 3];
    for (config, others) in [(private, 0), (CONFIG, 1)] {
        let mut drafter = NgramDrafter::new(config, 2, 2, Corpora::default());
        drafter.begin(1, &text[..3]);
        let own = propose(
            &mut drafter,
            DraftRow {
                slot: 1,
                ..row(2, 1, 2)
            },
            &text,
        );
        assert_eq!(own, chain(&[10, 11]), "a request's own text");
        drafter.serve(1, &text, false);
        drafter.serve(1, &text, true);
        let other = [9, 1, 2];
        drafter.begin(0, &other);
        let drafted = propose(&mut drafter, row(1, 1, 1), &other);
        assert_eq!(drafted.len(), others, "{config:?}");
        let corpora = drafter.corpora.corpora().clone();
        corpora.insert("given", vec![9, 1, 2, 70]).unwrap();
        let given = propose(&mut drafter, row(1, 1, 1), &other);
        assert_eq!(given, chain(&[70]), "a given text");
    }
}

/// A client's prompt is no text that others were served.
#[test]
fn of_a_prompt_its_end_alone_is_remembered() {
    let mut drafter = drafter();
    let prompt: Vec<u32> = (100..120).collect();
    let text = [&prompt[..], &[1, 2, 3]].concat();
    drafter.begin(1, &prompt);
    drafter.serve(1, &text, false);
    drafter.serve(1, &text, true);
    for (other, expected) in [([105, 106], &[][..]), ([118, 119], &[1, 2])] {
        drafter.begin(0, &other);
        let drafted = propose(&mut drafter, row(2, 1, 2), &other);
        assert_eq!(drafted, chain(expected), "{other:?}");
    }
}

/// As with weights that were loaded meanwhile.
#[test]
fn what_was_served_is_forgotten_and_what_was_given_is_not() {
    let mut drafter = drafter();
    let corpora = drafter.corpora.corpora().clone();
    corpora.insert("given", vec![4, 5, 6]).unwrap();
    drafter.begin(1, &[1]);
    drafter.serve(1, &[1, 2, 3], true);
    Drafter::<CpuBackend>::forget(&mut drafter);
    for (text, expected) in [(&[1][..], &[][..]), (&[4], &[5]), (&[7, 8, 7], &[8])] {
        drafter.begin(0, text);
        let drafted = propose(&mut drafter, row(1, 1, 1), text);
        assert_eq!(drafted, chain(expected), "{text:?}");
    }
}

#[test]
fn what_is_not_remembered_takes_no_memory() {
    let target = lockstep_model_folder::load(&demo()).unwrap();
    let mut speculation = SpeculationConfig {
        num_steps: 4,
        options: NgramConfig {
            capacity: 1,
            private: true,
            ..CONFIG
        }
        .write(),
        ..SpeculationConfig::none()
    };
    let ngram = Ngram::default();
    ngram.validate(&speculation, &target).unwrap();
    assert_eq!(ngram.memory_bytes(&speculation), 0);
    speculation.options = NgramConfig {
        capacity: 1,
        ..CONFIG
    }
    .write();
    assert_eq!(ngram.memory_bytes(&speculation), Trie::bytes(1));
}

#[test]
fn corpora_yield_to_the_request_s_own_text_and_to_longer_matches() {
    let mut drafter = drafter();
    let corpora = drafter.corpora.corpora().clone();
    let text = [4, 9, 1, 2, 6, 1, 2];
    drafter.begin(0, &text);
    corpora.insert("same", vec![1, 2, 70, 71]).unwrap();
    let own = propose(&mut drafter, row(2, 1, 2), &text);
    assert_eq!(own, chain(&[6, 1]));
    corpora.insert("longer", vec![6, 1, 2, 80, 81]).unwrap();
    let longer = propose(&mut drafter, row(2, 1, 2), &text);
    assert_eq!(longer, chain(&[80, 81]));
    let tree = propose(&mut drafter, row(1, 3, 3), &text);
    assert_eq!(tree, [(80, 0), (6, 0), (70, 0)]);
    corpora.remove("longer").unwrap();
    assert_eq!(propose(&mut drafter, row(2, 1, 2), &text), own);
}

#[test]
fn a_memory_that_holds_no_window_is_refused() {
    let target = lockstep_model_folder::load(&demo()).unwrap();
    let mut speculation = SpeculationConfig {
        num_steps: 4,
        options: NgramConfig {
            capacity: 10,
            ..CONFIG
        }
        .write(),
        ..SpeculationConfig::none()
    };
    let error = Ngram::default()
        .validate(&speculation, &target)
        .unwrap_err();
    assert!(error.to_string().contains("Give at least 11"), "{error}");
    speculation.options = NgramConfig {
        capacity: 11,
        ..CONFIG
    }
    .write();
    Ngram::default().validate(&speculation, &target).unwrap();
}

fn demo() -> std::path::PathBuf {
    let here = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let above = here
        .ancestors()
        .find(|folder| folder.join("models").is_dir());
    above.unwrap().join("models/lockstep-demo-7m")
}

proptest! {
    // Texts short enough for the look-up to see every place.
    #[test]
    fn a_chain_begins_with_the_most_frequent_continuation_of_the_longest_match(
        text in prop::collection::vec(0u32..4, 1..60),
        steps in 1usize..5,
    ) {
        let mut drafter = drafter();
        drafter.begin(0, &text[..1]);
        let drafted = propose(&mut drafter, row(steps, 1, steps), &text);
        let ends: Vec<(usize, usize)> = (1..text.len())
            .map(|end| {
                let pairs = text[..end].iter().rev().zip(text.iter().rev());
                (end, pairs.take(CONFIG.max_match).take_while(|(a, b)| a == b).count())
            })
            .filter(|(_, len)| *len > 0)
            .collect();
        let longest = ends.iter().map(|(_, len)| *len).max();
        // By the definition, the token with most votes wins; among equals, the one with the
        // latest place.
        let places = ends.iter().filter(|(_, len)| Some(*len) == longest);
        let votes = |token: u32| {
            let votes = places.clone().filter(|(end, _)| text[*end] == token);
            (votes.clone().count(), votes.map(|(end, _)| *end).max())
        };
        let expected = (0..4).max_by_key(|token| votes(*token));
        match longest {
            None => prop_assert!(drafted.is_empty()),
            Some(_) => {
                prop_assert_eq!(drafted.len(), steps);
                prop_assert_eq!(Some(drafted[0].0), expected);
            }
        }
    }

    #[test]
    fn drafts_keep_within_their_row_and_depend_on_what_was_fed_alone(
        texts in prop::collection::vec(prop::collection::vec(0u32..3, 1..40), 1..6),
        steps in 0usize..5,
        topk in 1usize..4,
        most in 0usize..9,
        room in 0usize..9,
    ) {
        let row = DraftRow { room, ..row(steps, topk, most) };
        let run = || {
            let mut drafter = drafter();
            let mut all = Vec::new();
            for text in &texts {
                drafter.begin(0, &text[..1]);
                for len in 1..=text.len() {
                    drafter.serve(0, &text[..len], false);
                    all.push(propose(&mut drafter, row, &text[..len]));
                }
                drafter.serve(0, text, true);
            }
            all
        };
        let all = run();
        prop_assert_eq!(&all, &run());
        for nodes in all {
            prop_assert!(nodes.len() <= most.min(room.saturating_sub(1)));
            prop_assert!(nodes.iter().enumerate().all(|(at, node)| node.1 as usize <= at));
        }
    }
}
