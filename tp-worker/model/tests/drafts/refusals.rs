//! A head refuses impossible requests with errors that name the reason.

use lockstep_collective::Single;
use lockstep_model::{EagleHead, FileAccess, ForwardLimits, HiddenSource, ModelError};
use lockstep_types::{DraftKind, KvCacheDtype};

use crate::{
    head::{REQUESTS, Rig, Setup},
    naive::Naive,
    pass::Pass,
    support::Checkpoint,
};

const LIMITS: ForwardLimits = ForwardLimits {
    max_tokens: 8,
    requests: REQUESTS,
    positions: 16,
    groups: 1,
    page_size: 4,
    tree_nodes: 1,
    replays: 0,
    logit_block_rows: 4,
    max_commit: 0,
};

fn refused(checkpoint: &Checkpoint) -> ModelError {
    let (_folder, draft) = checkpoint.write();
    let mut backend = Naive::new(Box::new(Single::new()));
    let (target, silent) = (&checkpoint.target, &mut |_| {});
    let head = EagleHead::load(
        &mut backend,
        &draft,
        target,
        REQUESTS,
        LIMITS,
        FileAccess::Mapped,
        silent,
    );
    head.err().expect("a bad checkpoint is refused")
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    for make in [Checkpoint::eagle, Checkpoint::eagle3_normed] {
        let optional = ["fc.bias"];
        let names: Vec<String> = make().tensors.keys().cloned().collect();
        for name in names {
            if !optional.contains(&name.as_str()) {
                let mut checkpoint = make();
                checkpoint.tensors.remove(&name);
                let error = refused(&checkpoint);
                assert!(
                    matches!(&error, ModelError::MissingTensor { tensor, .. } if *tensor == name),
                    "{name}: {error}"
                );
            }
            let mut checkpoint = make();
            let mut shape = checkpoint.tensors[&name].shape.clone();
            shape[0] += 1;
            checkpoint.random(&name, &shape);
            let error = refused(&checkpoint);
            assert!(
                matches!(&error, ModelError::WrongShape { tensor, .. } if *tensor == name),
                "{name}: {error}"
            );
        }
    }
}

#[test]
fn tables_that_do_not_fit_are_named() {
    let mut floats = Checkpoint::eagle3();
    floats.random("d2t", &[crate::support::DRAFT_VOCAB]);
    assert!(matches!(refused(&floats), ModelError::NotIntegers { tensor, .. } if tensor == "d2t"));
    for wild in [-1, 331, i64::MAX] {
        let mut offsets = vec![0; crate::support::DRAFT_VOCAB];
        offsets[0] = wild;
        let mut checkpoint = Checkpoint::eagle3();
        checkpoint.integers("d2t", &offsets);
        let error = refused(&checkpoint).to_string();
        assert!(error.contains("draft token 0 by"), "{error}");
    }
    let mut table = Checkpoint::eagle();
    table.random("embed_tokens.weight", &[330, 64]);
    let error = refused(&table).to_string();
    assert!(
        error.contains("embed_tokens") && error.contains("[331, 64]"),
        "{error}"
    );
}

#[test]
fn heads_of_other_models_are_refused() {
    let mut narrow = Checkpoint::eagle();
    narrow.target.hidden_size = 128;
    let error = refused(&narrow);
    assert!(matches!(
        error,
        ModelError::HeadWidth {
            found: 64,
            expected: 128,
            ..
        }
    ));
    let mut whole = Checkpoint::eagle();
    whole.draft.kind = DraftKind::Model;
    assert!(refused(&whole).to_string().contains("STANDALONE"));
}

fn rig(checkpoint: &Checkpoint) -> (tempfile::TempDir, Rig<Naive>) {
    let (folder, draft) = checkpoint.write();
    let setup = Setup {
        page_size: 4,
        chunk: 8,
        kv_dtype: KvCacheDtype::Float32,
        positions: 16,
    };
    let backend = Naive::new(Box::new(Single::new()));
    (folder, Rig::new(backend, &checkpoint.target, &draft, setup))
}

#[test]
fn states_that_are_not_there_are_errors() {
    let (_folder, mut rig) = rig(&Checkpoint::eagle3());
    rig.prefill(&[1, 2, 3], 0).unwrap();
    let (backend, drafting) = rig.drafting();
    let (head, tables) = (&mut drafting.head, drafting.tables.tables());
    for (source, what) in [
        (HiddenSource::Root(REQUESTS as u32), "root 3"),
        (HiddenSource::Output(3), "output 3"),
        (HiddenSource::Input(3), "input 3"),
    ] {
        let error = head.feed_hidden(backend, 1, &[source]).unwrap_err();
        assert!(error.to_string().starts_with(what), "{error}");
        assert!(head.logits(backend, tables, &[source]).is_err());
    }
    let sources = [HiddenSource::Root(0); 9];
    let most = head.limits();
    let error = head.feed_hidden(backend, 1, &sources[..most.max_tokens + 1]);
    assert!(matches!(
        error,
        Err(ModelError::TooLarge {
            found: 9,
            limit: 8,
            ..
        })
    ));
    let error = head.logits(backend, tables, &sources[..most.max_tokens + 1]);
    assert!(matches!(
        error,
        Err(ModelError::TooLarge {
            found: 9,
            limit: 8,
            ..
        })
    ));
    assert!(head.logits(backend, tables, &[]).unwrap().is_empty());
}

/// Each root needs a slot of its own among the head's slots.
#[test]
fn roots_without_a_place_are_errors() {
    let (_folder, mut rig) = rig(&Checkpoint::eagle3());
    rig.prefill(&[1, 2, 3, 4, 5], 0).unwrap();
    let (backend, drafting) = rig.drafting();
    let mut pass = Pass::default();
    pass.push(&[0, 0, 0, 0, 0, 5, 6, 7, 8], 5..9, 4, |page| page as u32);
    let sources = [HiddenSource::Root(0); 4];
    drafting.head.feed_hidden(backend, 1, &sources).unwrap();
    for (wanted, slots, what) in [
        (&[0][..], &[3][..], "root 3"),
        (&[0, 1], &[0], "2 roots"),
        (&[0], &[0, 1], "2 slots of roots"),
        (&[0, 1, 2, 3], &[0, 1, 2, 0], "4 roots"),
    ] {
        let error = drafting.take_in(backend, &pass, wanted, slots).unwrap_err();
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
    // The fed states are still there.
    let wanted = drafting.take_in(backend, &pass, &[1, 3], &[0, 2]);
    wanted.unwrap();
    let output = drafting
        .head
        .feed_hidden(backend, 1, &[HiddenSource::Output(0)]);
    assert!(output.is_err(), "what is taken in leaves roots alone");
}

/// Outputs of a failed pass are no states to go on from.
#[test]
fn a_failed_pass_has_no_outputs() {
    let (_folder, mut rig) = rig(&Checkpoint::eagle());
    rig.prefill(&[1, 2, 3], 0).unwrap();
    let (backend, drafting) = rig.drafting();
    let (root, output) = (HiddenSource::Root(0), HiddenSource::Output(0));
    let mut pass = Pass::default();
    pass.push(&[0, 0, 0, 5], 3..4, 4, |page| page as u32);
    drafting.head.feed_hidden(backend, 1, &[root]).unwrap();
    drafting.try_run(backend, &pass).unwrap();
    drafting.head.feed_hidden(backend, 1, &[output]).unwrap();
    backend.failing = true;
    let error = drafting.try_run(backend, &pass).unwrap_err();
    assert!(matches!(error, ModelError::Backend(_)), "{error}");
    let (head, tables) = (&mut drafting.head, drafting.tables.tables());
    assert!(matches!(
        head.logits(backend, tables, &[output]),
        Err(ModelError::NoHiddenState { count: 0, .. })
    ));
    assert!(head.feed_hidden(backend, 1, &[output]).is_err());
    backend.failing = false;
    let error = drafting.try_run(backend, &pass).unwrap_err();
    assert!(matches!(error, ModelError::HiddenInputs { fed: 0, .. }));
    drafting.head.feed_hidden(backend, 1, &[root]).unwrap();
    drafting.try_run(backend, &pass).unwrap();
    assert!(drafting.head.feed_hidden(backend, 1, &[output]).is_ok());
}

#[test]
fn passes_need_as_many_hidden_states_as_tokens() {
    let (_folder, mut rig) = rig(&Checkpoint::eagle());
    rig.prefill(&[1, 2, 3], 0).unwrap();
    let (backend, drafting) = rig.drafting();
    let mut pass = Pass::default();
    pass.push(&[0, 0, 0, 5, 6], 3..5, 4, |page| page as u32);
    for fed in [0, 1] {
        let sources = [HiddenSource::Root(0); 2];
        drafting
            .head
            .feed_hidden(backend, 1, &sources[..fed])
            .unwrap();
        let error = drafting.try_run(backend, &pass).unwrap_err();
        assert!(matches!(error, ModelError::HiddenInputs { tokens: 2, fed: f } if f == fed));
    }
    pass.positions[1] = 16;
    drafting
        .head
        .feed_hidden(backend, 1, &[HiddenSource::Root(0); 2])
        .unwrap();
    let error = drafting.try_run(backend, &pass).unwrap_err();
    assert!(matches!(
        error,
        ModelError::TooLarge {
            what: "positions",
            found: 17,
            limit: 16
        }
    ));
    // The fed states are still there.
    pass.positions[1] = 4;
    drafting.try_run(backend, &pass).unwrap();
}
