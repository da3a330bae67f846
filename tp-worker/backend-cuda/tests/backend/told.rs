//! Tokens of several ranks: columns of logits come to those alone that choose, and what
//! they have chosen to their DP ranks, in the same pass.

use std::{ops::Range, sync::mpsc, time::Duration};

use lockstep_backend::{
    Axis, Backend, Batch, Choice, ChoiceBatch, ChoiceRow, ChooseTokens, DraftedRow, Exchanged,
    FAILED, Holds, InputLimits, KvShape, NoteShape, Owners, PassKey, PassPlan, PassRecords as _,
    Row,
};
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions, CudaPasses, Gpu};
use lockstep_fake_cuda::calls;
use lockstep_types::{CollectiveBackend, Dtype, KvCacheDtype, sampling::SamplingParams};

use crate::ranks::{PATIENCE, with_options};
use crate::support::{noise, options};

/// Columns of the logits of each rank, of which two lead.
const WIDTHS: [usize; 4] = [10, 6, 3, 5];
const VOCAB: usize = 24;
/// Rows of logits of a DP rank: of two requests without drafts, and one with a draft.
const ROWS: usize = 4;
const OWNED: [Range<usize>; 4] = [0..ROWS, 0..0, ROWS..2 * ROWS, 0..0];
const OWNERS: Owners<'static> = Owners {
    widths: &WIDTHS,
    rows: &OWNED,
};
const NOTES: NoteShape = NoteShape {
    words: 4,
    shared: 2,
    of_dp_rank: 1,
};
const KEY: PassKey = PassKey {
    requests: 3,
    tokens: ROWS,
    max_q_len: ROWS,
};
const CACHE: KvShape = KvShape {
    layers: 1,
    kv_heads: 1,
    head_dim: 16,
    pages: 2 * ROWS,
    page_size: 1,
    dtype: KvCacheDtype::Float32,
};
/// In which of the passes a word of rank 3's note is another than it should be.
const PASSES: [Option<usize>; 5] = [None, Some(1), None, Some(2), Some(3)];

/// Logits of all rows in a pass.
fn logits(pass: usize) -> Vec<f32> {
    noise(40 + pass as u64, 2 * ROWS * VOCAB)
}

fn likeliest(pass: usize, row: usize) -> u32 {
    let all = logits(pass);
    let row = &all[row * VOCAB..][..VOCAB];
    let best = (0..VOCAB).reduce(|best, at| if row[at] > row[best] { at } else { best });
    best.unwrap() as u32
}

/// What the first rank of the second DP rank has to tell differs from the first's: the
/// draft stands in the first one alone.
fn wanted(pass: usize, dp_rank: usize) -> [u32; 12] {
    let [a, b, c, d] = [0, 1, 2, 3].map(|row| likeliest(pass, dp_rank * ROWS + row));
    match dp_rank {
        0 => [1, a, 0, 0, 1, b, 0, 0, 2, c, d, 1],
        _ => [1, a, 0, 0, 1, b, 0, 0, 1, c, 0, 0],
    }
}

const NOTHING: [u32; 12] = [1, FAILED, 0, 0, 1, FAILED, 0, 0, 1, FAILED, 0, 0];

/// Has `work` do with the batch of a pass.
fn with_batch(pass: usize, dp_rank: usize, work: impl FnOnce(&Batch<'_>)) {
    let draft = likeliest(pass, dp_rank * ROWS + 2) ^ dp_rank as u32;
    let all: Vec<u32> = (0..ROWS as u32).collect();
    let row = |start, q_len| Row {
        start,
        q_len,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    };
    let of = |request, depth| ChoiceRow { request, depth };
    let drafted = |at, nodes| DraftedRow {
        logits: at,
        token: at,
        nodes,
        parents: None,
    };
    let choices = [Choice::of(&SamplingParams::greedy(), 0); 3];
    work(&Batch {
        tokens: &[7, 8, 9, draft],
        positions: &all,
        cells: &all,
        rows: &[row(0, 1), row(1, 1), row(2, 2)],
        pages: &[0, 1],
        logit_tokens: &all,
        choices: ChoiceBatch {
            choices: &choices,
            rows: &[of(0, 0), of(1, 0), of(2, 0), of(2, 1)],
            drafted: &[drafted(0, 0), drafted(1, 0), drafted(2, 1)],
            parents: &[],
        },
        ..Batch::default()
    });
}

fn plan() -> CudaPasses {
    let notes = Exchanged::gather(
        Axis::World,
        std::iter::repeat_n(NOTES.words, WIDTHS.len()),
        Dtype::Float32,
    );
    CudaPasses::planned(vec![PassPlan {
        key: KEY,
        exchanges: notes
            .chain(Exchanged::collect(Axis::World, OWNERS))
            .chain(Exchanged::tell(Axis::Attention, 12))
            .collect(),
    }])
}

/// All passes of a rank, before the last of which it rests; the words that each brought,
/// and whether notes differed.
fn passes(gpu: &mut CudaBackend, rank: usize, rest: Duration) -> Vec<([u32; 12], bool)> {
    gpu.notes().unwrap().prepare(NOTES).unwrap();
    let (dp_rank, leads) = (rank / 2, rank.is_multiple_of(2));
    let first: usize = WIDTHS[..rank].iter().sum();
    let mut x = gpu.tensor(2 * ROWS, WIDTHS[rank], Holds::Logits).unwrap();
    let mut whole = [(); 2].map(|()| gpu.tensor(ROWS, VOCAB, Holds::Logits).unwrap());
    let mut cache = gpu.kv_cache(&CACHE).unwrap();
    let mut inputs = None;
    with_batch(0, dp_rank, |batch| {
        let limits = InputLimits::of(batch, 1);
        inputs = Some(gpu.inputs(&limits).unwrap());
    });
    let (mut inputs, mut recorded) = (inputs.unwrap(), plan());
    let mut found = Vec::new();
    let (_nobody, news) = mpsc::channel::<()>();
    for (pass, other) in PASSES.into_iter().enumerate() {
        if pass + 1 == PASSES.len() {
            news.recv_timeout(rest).unwrap_err();
        }
        let own: Vec<f32> = logits(pass)
            .chunks(VOCAB)
            .flat_map(|row| row[first..][..WIDTHS[rank]].to_vec())
            .collect();
        gpu.upload(&mut x, &own);
        let mut note = [pass as u32, 5, 6 + dp_rank as u32, rank as u32];
        if let Some(word) = other.filter(|_| rank == 3) {
            note[word] ^= 1 << 30;
        }
        gpu.notes().unwrap().bring(&note).unwrap();
        with_batch(pass, dp_rank, |batch| {
            gpu.stage(batch, &mut inputs).unwrap();
        });
        let asked = || calls(c"ncclSend").map(|sent| sent + calls(c"ncclRecv").unwrap_or(0));
        let before = asked();
        let mut work = |gpu: &mut CudaBackend| {
            gpu.notes().unwrap().exchange()?;
            let [rows, space] = &mut whole;
            let own = leads.then_some((&mut *rows, space));
            let device = gpu.chooser().unwrap();
            device.gather(Axis::World, &x, OWNERS, own)?;
            if leads {
                device.choose(rows, 0, &mut inputs);
            }
            device.accept(&mut inputs, &mut cache);
            Ok(())
        };
        gpu.pass(&mut recorded, KEY, &mut work).unwrap();
        if let (Some(before), Some(now), 1..) = (before, asked(), pass) {
            assert_eq!(now, before, "a pass that is repeated asks for nothing");
        }
        let words = gpu.outcomes(&mut inputs).unwrap().words;
        let words = words.try_into().unwrap();
        found.push((words, gpu.notes().unwrap().came().differ));
    }
    found
}

fn with_patience(patience: Duration) -> impl Fn(usize) -> CudaOptions {
    move |_| CudaOptions {
        graphs: vec![ROWS],
        collectives: CollectiveOptions {
            backend: CollectiveBackend::Nccl,
            joining: PATIENCE,
            patience,
            ..CollectiveOptions::default()
        },
        ..options(Dtype::Float32)
    }
}

/// Where ranks differ, nothing of it is anybody's token.
#[test]
fn what_one_rank_chooses_all_ranks_of_its_dp_rank_know() {
    if Gpu::count().unwrap() < WIDTHS.len() {
        return;
    }
    let all = |gpu: &mut _, rank| passes(gpu, rank, Duration::ZERO);
    let found = with_options(with_patience(PATIENCE), (WIDTHS.len(), 2), all);
    for (rank, found) in found.into_iter().enumerate() {
        for (pass, (words, differ)) in found.into_iter().enumerate() {
            // The last word of a note is each rank's own.
            let differs = matches!(PASSES[pass], Some(0..3));
            assert_eq!(differ, differs, "pass {pass}");
            let expected = match differs {
                true => NOTHING,
                false => wanted(pass, rank / 2),
            };
            assert_eq!(words, expected, "rank {rank} in pass {pass}");
        }
    }
}

/// A group that nobody asks for anything waits for nothing, however long that takes: the
/// wait for outcomes is one for all that peers had to bring.
#[test]
fn ranks_that_have_their_tokens_may_rest_for_longer_than_data_may_take() {
    if Gpu::count().unwrap() < WIDTHS.len() {
        return;
    }
    let patience = Duration::from_secs(3);
    let all = move |gpu: &mut _, rank| passes(gpu, rank, 2 * patience);
    let found = with_options(with_patience(patience), (WIDTHS.len(), 2), all);
    assert!(found.into_iter().all(|found| found.len() == PASSES.len()));
}
