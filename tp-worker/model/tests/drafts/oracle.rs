//! Heads of random weights: the CPU backend against plain loops.

use lockstep_backend::Backend;
use lockstep_collective::Single;
use lockstep_model::HiddenSource;
use lockstep_types::{DraftKind, Dtype, Eagle3Norms, KvCacheDtype};

use crate::{
    head::{Rig, Setup},
    naive::Naive,
    pass::Pass,
    support::{Checkpoint, DRAFT_VOCAB, cpu},
};

const SETUP: Setup = Setup {
    page_size: 4,
    chunk: 5,
    kv_dtype: KvCacheDtype::Float32,
    positions: 24,
};

/// Drafts behind the texts of two requests, with roots kept across passes, a chain and a
/// tree. Returns all logits on the way.
fn drafted<B: Backend>(backend: B, checkpoint: &Checkpoint) -> Vec<f32> {
    drafted_in(SETUP, backend, checkpoint)
}

fn drafted_in<B: Backend>(setup: Setup, backend: B, checkpoint: &Checkpoint) -> Vec<f32> {
    let (_folder, draft) = checkpoint.write();
    let mut rig = Rig::new(backend, &checkpoint.target, &draft, setup);
    let mut all = Vec::new();
    rig.prefill(&[9, 8, 7, 6, 5, 4, 3], 2).unwrap();
    rig.prefill(&[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 0).unwrap();
    let (backend, drafting) = rig.drafting();
    let roots = [HiddenSource::Root(0), HiddenSource::Root(2)];
    all.extend(drafting.logits(backend, &roots));
    drafting.next(backend, 11, HiddenSource::Root(0), 17);
    // Roots outlive other requests' passes.
    all.extend(drafting.logits(backend, &[HiddenSource::Root(2), HiddenSource::Output(0)]));
    drafting.next(backend, 12, HiddenSource::Output(0), 18);
    all.extend(drafting.logits(backend, &[HiddenSource::Output(0)]));
    let level = [(20, None), (21, None)];
    drafting.nodes(backend, 11, 0, &level);
    drafting.nodes(
        backend,
        11,
        0,
        &[level[0], level[1], (22, Some(1)), (23, Some(0))],
    );
    let outputs: Vec<_> = (0..4).map(HiddenSource::Output).collect();
    all.extend(drafting.logits(backend, &outputs));
    assert_eq!(all.len(), 9 * drafting.head.vocab());
    all
}

fn compare(checkpoint: &Checkpoint) -> Vec<f32> {
    let exact = drafted(Naive::new(Box::new(Single::new())), checkpoint);
    let found = drafted(cpu(Dtype::Float32, Box::new(Single::new())), checkpoint);
    assert!(exact.iter().all(|logit| logit.is_finite()));
    for (exact, found) in exact.iter().zip(&found) {
        assert!((exact - found).abs() <= 2e-4, "{found} instead of {exact}");
    }
    // Logits that hardly differ would hide a mix-up of rows.
    let (least, most) = exact
        .iter()
        .fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    assert!(most - least > 0.1, "{least} to {most}");
    exact
}

#[test]
fn eagle3_heads_agree() {
    let mut checkpoint = Checkpoint::eagle3();
    let shared = compare(&checkpoint);
    let (hidden, vocab) = (checkpoint.target.hidden_size, checkpoint.target.vocab_size);
    // A table of the head's own takes the target's place.
    checkpoint.random("embed_tokens.weight", &[vocab, hidden]);
    let own = compare(&checkpoint);
    assert!(own != shared);
    assert!(compare(&Checkpoint::eagle3_normed()) != shared);
}

/// For a text, the layer behind its attention runs over roots alone. The roots equal those of
/// a pass over every token.
#[test]
fn what_nobody_reads_is_not_computed() {
    for checkpoint in [
        Checkpoint::eagle(),
        Checkpoint::eagle3(),
        Checkpoint::eagle3_normed(),
    ] {
        let in_chunks = |chunk| {
            let backend = cpu(Dtype::Float32, Box::new(Single::new()));
            drafted_in(Setup { chunk, ..SETUP }, backend, &checkpoint)
        };
        // A chunk of one token wants that token if it is the text's last chunk, and none
        // otherwise.
        let whole = in_chunks(1);
        assert!([2, 5, 11].map(in_chunks) == [(); 3].map(|()| whole.clone()));
        let (_folder, draft) = checkpoint.write();
        let backend = Naive::new(Box::new(Single::new()));
        let mut rig = Rig::new(backend, &checkpoint.target, &draft, SETUP);
        rig.prefill(&[9, 8, 7, 6, 5], 0).unwrap();
        let features = rig.target.features().unwrap();
        let drafting = rig.drafting.as_mut().unwrap();
        let mut pass = Pass::default();
        pass.push(&[8, 7, 6, 5, 4], 0..5, 4, |page| page as u32);
        for (wanted, slots) in [(&[][..], &[][..]), (&[4], &[1]), (&[1, 4], &[2, 0])] {
            let (backend, rows) = (&mut rig.backend, [0, 1, 2, 3, 4]);
            let fed = drafting.head.feed_features(backend, features, &rows);
            fed.unwrap();
            backend.activated = 0;
            drafting.take_in(backend, &pass, wanted, slots).unwrap();
            assert_eq!(backend.activated, wanted.len());
        }
    }
}

/// A device may replay a head's pass, so the pass leaves nothing behind on the host.
#[test]
fn a_pass_can_run_again() {
    for checkpoint in [Checkpoint::eagle(), Checkpoint::eagle3_normed()] {
        let [once, mut again] = [(); 2].map(|()| Naive::new(Box::new(Single::new())));
        again.replays = 1;
        assert!(drafted(again, &checkpoint) == drafted(once, &checkpoint));
    }
}

/// Recorded passes belong to one model, until the model keeps other states.
#[test]
fn models_have_passes_of_their_own() {
    let checkpoint = Checkpoint::eagle();
    let (_folder, draft) = checkpoint.write();
    let backend = Naive::new(Box::new(Single::new()));
    let mut rig = Rig::new(backend, &checkpoint.target, &draft, SETUP);
    // Target and head run passes of one size.
    rig.prefill(&[1], 0).unwrap();
    assert_eq!(rig.backend.recorded, 2);
    rig.prefill(&[2], 1).unwrap();
    assert_eq!(rig.backend.recorded, 2);
    let capture = rig.drafting().1.head.capture();
    rig.target.set_capture(&mut rig.backend, capture).unwrap();
    rig.prefill(&[3], 0).unwrap();
    assert_eq!(rig.backend.recorded, 3);
}

/// A head over the whole vocabulary may use the target's output head.
#[test]
fn eagle3_heads_may_share_the_output_head() {
    let mut checkpoint = Checkpoint::eagle3();
    let vocab = checkpoint.target.vocab_size;
    checkpoint.tensors.remove("lm_head.weight");
    checkpoint.tensors.remove("d2t");
    checkpoint.draft.kind = DraftKind::Eagle3 {
        draft_vocab_size: vocab,
        capture_layers: vec![0, 1, 2],
        norms: Eagle3Norms::default(),
    };
    compare(&checkpoint);
    let (_folder, draft) = checkpoint.write();
    let backend = Naive::new(Box::new(Single::new()));
    let mut rig = Rig::new(backend, &checkpoint.target, &draft, SETUP);
    let (_, drafting) = rig.drafting();
    assert_eq!(drafting.head.vocab(), vocab);
    assert_eq!(drafting.head.own_tables(), (false, false));
    assert_eq!(drafting.head.target_token(330), 330);
}

#[test]
fn eagle_heads_agree() {
    let mut checkpoint = Checkpoint::eagle();
    let plain = compare(&checkpoint);
    let (hidden, vocab) = (checkpoint.target.hidden_size, checkpoint.target.vocab_size);
    checkpoint.random("layers.0.input_layernorm.weight", &[hidden]);
    let normed = compare(&checkpoint);
    assert!(normed != plain);
    checkpoint.tensors.remove("fc.bias");
    let unbiased = compare(&checkpoint);
    assert!(unbiased != normed);
    checkpoint.random("embed_tokens.weight", &[vocab, hidden]);
    assert!(compare(&checkpoint) != unbiased);
}

/// Products of the target's output head become logits as the target's own do.
#[test]
fn logits_of_the_targets_output_head_are_scaled() {
    for (mut checkpoint, shared) in [(Checkpoint::eagle(), true), (Checkpoint::eagle3(), false)] {
        let plain = compare(&checkpoint);
        checkpoint.target.multipliers.logits = 4.0;
        checkpoint.target.multipliers.logit_softcap = Some(0.5);
        let scaled = compare(&checkpoint);
        for (plain, scaled) in plain.iter().zip(scaled) {
            let expected = match shared {
                true => 0.5 * (plain / 4.0 / 0.5).tanh(),
                false => *plain,
            };
            let error = (scaled - expected).abs();
            assert!(error <= 1e-5, "{scaled} instead of {expected}");
        }
    }
}

#[test]
fn a_head_tells_what_it_needs() {
    let checkpoint = Checkpoint::eagle3();
    let (_folder, draft) = checkpoint.write();
    let backend = Naive::new(Box::new(Single::new()));
    let mut rig = Rig::new(backend, &checkpoint.target, &draft, SETUP);
    let (backend, drafting) = rig.drafting();
    let head = &drafting.head;
    assert_eq!(head.vocab(), DRAFT_VOCAB);
    assert_eq!(head.own_tables(), (false, true));
    assert_eq!([0, 1, 49].map(|id| head.target_token(id)), [0, 3, 147]);
    assert_eq!(head.capture().layers, [0, 1, 2]);
    let cache = head
        .kv_cache(backend, 6, 4, KvCacheDtype::Bfloat16)
        .unwrap();
    // Keys and values of two heads of 32 columns.
    let token = 2 * 2 * 32 * 2;
    assert_eq!(
        (cache.bytes_per_token(), cache.bytes()),
        (token, 24 * token)
    );
    // f32 matrices: fc, q, k, v, o, gate, up, down, head.
    let elements = 64 * 192 + 128 * 128 + 2 * 64 * 128 + 64 * 128 + 3 * 64 * 80 + 50 * 64;
    assert_eq!(head.weight_bytes(backend), 4 * elements);
}
