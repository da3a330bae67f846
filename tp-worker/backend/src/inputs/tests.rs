use crate::{Choice, ChoiceBatch, ChoiceMethod, ChoiceRow, DraftedRow, Row};

use super::*;

const PAGE_SIZE: usize = 4;

/// Two rows: three tokens in a tree after two cached tokens, then one token after three.
const ROWS: [Row; 2] = [
    Row {
        start: 0,
        q_len: 3,
        kv_len: 2,
        pages_start: 1,
        mask: Some(2),
    },
    Row {
        start: 3,
        q_len: 1,
        kv_len: 3,
        pages_start: 0,
        mask: None,
    },
];

const GREEDY: Choice = Choice {
    how: ChoiceMethod::Greedy,
    seed: 0,
    position: 0,
};
const USE: ChoiceRow = ChoiceRow {
    request: 0,
    depth: 0,
};
const DRAFTED: DraftedRow = DraftedRow {
    logits: 1,
    token: 3,
    nodes: 0,
    parents: None,
};

fn batch() -> Batch<'static> {
    Batch {
        tokens: &[9; 4],
        positions: &[2, 3, 3, 3],
        cells: &[14, 15, 16, 7],
        rows: &ROWS,
        pages: &[1, 3, 4],
        logit_tokens: &[0, 3],
        masks: &[0, 0, 1, 3, 5],
        states: &[],
        adapters: &[],
        replays: &[],
        keeps: &[],
        choices: ChoiceBatch {
            choices: &[GREEDY],
            rows: &[ChoiceRow::HOST, USE],
            drafted: &[DRAFTED],
            parents: &[],
        },
        chain: None,
        told: None,
    }
}

#[test]
fn a_batch_takes_what_its_rows_name() {
    let found = InputLimits::of(&batch(), PAGE_SIZE);
    let expected = InputLimits {
        tokens: 4,
        requests: 2,
        groups: 1,
        pages: 3,
        page_size: PAGE_SIZE,
        mask_words: 5,
        replays: 0,
        choices: ChoiceLimits {
            requests: 1,
            rows: 2,
            parents: 0,
            most: 1,
        },
        chain: ChainLimits::default(),
    };
    assert_eq!(found, expected);
    expected.expect(&batch());
    expected.expect(&Batch::default());
}

#[test]
fn each_limit_holds_alone() {
    let fits = InputLimits::of(&batch(), PAGE_SIZE);
    let less: [fn(&mut InputLimits) -> &mut usize; 6] = [
        |limits| &mut limits.tokens,
        |limits| &mut limits.requests,
        |limits| &mut limits.pages,
        |limits| &mut limits.mask_words,
        |limits| &mut limits.choices.requests,
        |limits| &mut limits.choices.rows,
    ];
    for field in less {
        let mut limits = fits;
        *field(&mut limits) -= 1;
        assert!(!limits.hold(&fits), "{limits:?}");
        *field(&mut limits) += 2;
        assert!(limits.hold(&fits), "{limits:?}");
    }
}

#[test]
#[should_panic(expected = "is staged where")]
fn a_batch_larger_than_its_room_is_refused() {
    let limits = InputLimits {
        requests: 1,
        ..InputLimits::of(&batch(), PAGE_SIZE)
    };
    limits.expect(&batch());
}

#[test]
#[should_panic(expected = "every token has a position")]
fn a_batch_without_positions_is_refused() {
    let batch = Batch {
        positions: &[2, 3],
        ..batch()
    };
    InputLimits::of(&batch, PAGE_SIZE).expect(&batch);
}

#[test]
fn every_rule_is_looked_at() {
    assert_eq!(broken_rule(&batch(), 1, PAGE_SIZE), None);
    let whole = batch();
    let row = |at: usize, change: fn(&mut Row)| {
        let mut rows = ROWS;
        change(&mut rows[at]);
        rows
    };
    let empty = row(1, |row| row.q_len = 0);
    let overlapping = row(1, |row| row.start = 2);
    let beyond = row(1, |row| row.q_len = 2);
    let [no_table, no_mask] = [
        row(0, |row| row.pages_start = 2),
        row(0, |row| row.mask = Some(3)),
    ];
    let rows = |rows| Batch { rows, ..whole };
    let wanted = |logit_tokens| Batch {
        logit_tokens,
        ..whole
    };
    let cells = Batch {
        cells: &[14, 15, 16],
        ..whole
    };
    let nodes = [DraftedRow {
        nodes: 1,
        ..DRAFTED
    }];
    let drafts = Batch {
        choices: ChoiceBatch {
            drafted: &nodes,
            ..whole.choices
        },
        ..whole
    };
    for (batch, part) in [
        (drafts, "a token and logits"),
        (cells, "a cell"),
        (wanted(&[3, 0]), "ascending"),
        (wanted(&[0, 0]), "ascending"),
        (wanted(&[0, 4]), "ascending"),
        (rows(&empty), "a row has a token"),
        (rows(&overlapping), "lies behind"),
        (rows(&beyond), "tokens of the batch"),
        (rows(&no_table), "page table"),
        (rows(&no_mask), "mask lies"),
    ] {
        let broken = broken_rule(&batch, 1, PAGE_SIZE);
        assert!(broken.is_some_and(|rule| rule.contains(part)), "{broken:?}");
    }
}

#[test]
fn each_group_has_cells_and_page_tables() {
    let one = batch();
    let two = Batch {
        cells: &[14, 15, 16, 7, 22, 23, 24, 11],
        pages: &[1, 3, 4, 2, 5, 6],
        ..one
    };
    assert_eq!(InputLimits::of(&two, PAGE_SIZE).groups, 2);
    InputLimits::of(&two, PAGE_SIZE).expect(&two);
    assert_eq!(
        (two.tables(0, 2), two.tables(1, 2)),
        (&[1, 3, 4][..], &[2, 5, 6][..])
    );
    assert!(broken_rule(&two, 1, PAGE_SIZE).is_some_and(|rule| rule.contains("a cell")));
    assert!(broken_rule(&one, 2, PAGE_SIZE).is_some_and(|rule| rule.contains("a cell")));
    let uneven = Batch {
        pages: &[1, 3, 4, 2, 5],
        ..two
    };
    let short = Batch {
        pages: &[1, 3, 2, 5],
        ..two
    };
    for (batch, part) in [(uneven, "equally long"), (short, "page table")] {
        let broken = broken_rule(&batch, 2, PAGE_SIZE);
        assert!(broken.is_some_and(|rule| rule.contains(part)), "{broken:?}");
    }
}

#[test]
fn what_devices_tell_of_drafts_has_a_size_of_its_own() {
    let chains = InputLimits {
        tokens: 64,
        requests: 2,
        groups: 1,
        pages: 8,
        page_size: 16,
        mask_words: 0,
        replays: 0,
        choices: ChoiceLimits {
            requests: 2,
            rows: 64,
            parents: 0,
            most: 3,
        },
        chain: ChainLimits::default(),
    };
    // Tokens; then for each request the number, three tokens and three nodes, and two drafts.
    assert_eq!(chains.drafted_words(6), 6);
    assert_eq!(chains.choices.outcome_words(2, false), 12);
    assert_eq!(chains.choices.outcome_words(2, true), 16);
    let choices = ChoiceLimits {
        parents: 8,
        ..chains.choices
    };
    let trees = InputLimits {
        mask_words: 10,
        replays: 0,
        choices,
        ..chains
    };
    // Tokens, positions, parents and masks; then for each request four drafts and their
    // parents.
    assert_eq!(trees.drafted_words(6), 12 + 6 + 12);
    assert_eq!(trees.drafted_words(20), 40 + 8 + 20);
    assert_eq!(trees.choices.outcome_words(2, true), 12 + 16);
    assert_eq!(trees.choices.outcome_words(2, false), 12);
    assert!(!trees.drafts());
    let chain = ChainLimits {
        chains: 2,
        ..trees.chain
    };
    assert!(InputLimits { chain, ..trees }.drafts());
}
