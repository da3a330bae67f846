//! Tokens of several ranks. Columns of logits come only to the ranks that choose, and the
//! chosen tokens to their DP ranks, in the same pass.

use std::{ops::Range, sync::mpsc, time::Duration};

use lockstep_backend::{
    AttentionShape, Axis, Batch, Choice, ChoiceBatch, ChoiceRow, CollectiveCall, DeviceSampler,
    DraftedRow, Exchange as _, FAILED, Holds, InputLimits, KvShape, Memory as _, NoteShape,
    Ops as _, Owners, PassKey, PassPlan, PassRecords as _, Passes as _, Row,
};
use lockstep_backend_cuda::{
    CollectiveOptions, CudaBackend, CudaOptions, CudaPasses, Gpu, PagedCache,
};
use lockstep_fake_cuda::calls;
use lockstep_types::{CollectiveBackend, Dtype, KvCacheDtype, sampling::SamplingParams};

use crate::ranks::{PATIENCE, tensor, with_options};
use crate::support::{noise, options, read, staged};

/// Columns of logits of each rank; two of the ranks lead.
const WIDTHS: [usize; 4] = [10, 6, 3, 5];
const VOCAB: usize = 24;
/// Rows of logits of a DP rank: two requests without drafts, and one with two drafts that both
/// follow its last token.
const ROWS: usize = 5;
/// Words with the outcomes of a DP rank's requests.
const WORDS: usize = 18;
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
    latent: None,
    group: 0,
    layers: 1,
    kv_heads: 1,
    head_dim: 16,
    pages: 2 * ROWS,
    page_size: 1,
    dtype: KvCacheDtype::Float32,
};
const HEADS: AttentionShape = AttentionShape::dense(1, 1, CACHE.head_dim, 1.0);
/// For each pass, the word of rank 3's note that is wrong, if any.
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

/// Words that the lead of a DP rank tells. They differ between the two DP ranks: the second
/// draft is accepted in the first one only.
fn wanted(pass: usize, dp_rank: usize) -> [u32; WORDS] {
    let [a, b, c, d] = [0, 1, 2, 4].map(|row| likeliest(pass, dp_rank * ROWS + row));
    let last = match dp_rank {
        0 => [2, c, d, 0, 2, 0],
        _ => [1, c, 0, 0, 0, 0],
    };
    let [first, second] = [a, b].map(|token| [1, token, 0, 0, 0, 0]);
    [first, second, last].concat().try_into().unwrap()
}

/// Words of requests that all fail.
fn nothing() -> [u32; WORDS] {
    [[1, FAILED, 0, 0, 0, 0]; 3].concat().try_into().unwrap()
}

/// Calls `work` with the batch of a pass.
fn with_batch(pass: usize, dp_rank: usize, work: impl FnOnce(&Batch<'_>)) {
    let token = likeliest(pass, dp_rank * ROWS + 2);
    // In the first DP rank the second draft is right. Its cell moves to the first draft's.
    let drafts = [token ^ 1, token ^ (2 * dp_rank as u32)];
    let all: Vec<u32> = (0..ROWS as u32).collect();
    let row = |start, q_len, mask| Row {
        start,
        q_len,
        kv_len: 0,
        pages_start: start,
        mask,
    };
    let of = |request, depth| ChoiceRow { request, depth };
    let drafted = |at, nodes, parents| DraftedRow {
        logits: at,
        token: at,
        nodes,
        parents,
    };
    let choices = [Choice::of(&SamplingParams::greedy(), 0); 3];
    work(&Batch {
        tokens: &[7, 8, 9, drafts[0], drafts[1]],
        positions: &all,
        cells: &all,
        rows: &[row(0, 1, None), row(1, 1, None), row(2, 3, Some(0))],
        pages: &all,
        logit_tokens: &all,
        masks: &[0b001, 0b011, 0b101],
        choices: ChoiceBatch {
            choices: &choices,
            rows: &[of(0, 0), of(1, 0), of(2, 0), of(2, 1), of(2, 1)],
            drafted: &[
                drafted(0, 0, None),
                drafted(1, 0, None),
                drafted(2, 2, Some(0)),
            ],
            parents: &[0, 0],
        },
        ..Batch::default()
    });
}

fn plan() -> CudaPasses {
    let notes = CollectiveCall::gather(
        Axis::World,
        std::iter::repeat_n(NOTES.words, WIDTHS.len()),
        Dtype::Float32,
    );
    CudaPasses::planned(vec![PassPlan {
        key: KEY,
        exchanges: notes
            .chain(CollectiveCall::collect(Axis::World, OWNERS))
            .chain(CollectiveCall::tell(Axis::Attention, WORDS))
            .collect(),
    }])
}

/// A row of `cells` behind the other pages; each page has one cell. By its mask, its tokens
/// don't see each other.
fn with_cells(pages: &[u32], cells: &[u32], work: impl FnOnce(&Batch<'_>)) {
    let (count, kept) = (cells.len() as u32, pages.len() - cells.len());
    work(&Batch {
        tokens: &vec![0; cells.len()],
        positions: &vec![0; cells.len()],
        cells,
        rows: &[Row {
            start: 0,
            q_len: count,
            kv_len: kept as u32,
            pages_start: 0,
            mask: Some(0),
        }],
        pages,
        masks: &vec![0; cells.len()],
        ..Batch::default()
    });
}

/// Attends with `qkv` over `pages`. The last of them are `cells`, which take in `qkv`.
fn attend(
    gpu: &mut CudaBackend,
    cache: &mut PagedCache,
    (pages, cells): (&[u32], &[u32]),
    qkv: &[f32],
) -> Vec<f32> {
    let mut inputs = None;
    with_cells(pages, cells, |batch| inputs = Some(staged(gpu, batch, 1)));
    let qkv = tensor(gpu, qkv, HEADS.qkv_width(), Holds::Sum);
    let out = gpu.tensor(cells.len(), HEADS.out_width(), Holds::Operand);
    let mut out = out.unwrap();
    gpu.attention(cache, 0, &qkv, &HEADS, None, &inputs.unwrap(), &mut out);
    read(gpu, &out)
}

/// Sets the value of every cell of the batch to the cell's number.
fn fill(gpu: &mut CudaBackend, cache: &mut PagedCache) {
    let cells: Vec<u32> = (0..ROWS as u32).collect();
    let parts = 2 * HEADS.head_dim;
    let qkv = cells.iter().flat_map(|cell| {
        let value = std::iter::repeat_n(*cell as f32, HEADS.head_dim);
        std::iter::repeat_n(0.0, parts).chain(value)
    });
    let qkv: Vec<f32> = qkv.collect();
    attend(gpu, cache, (&cells, &cells), &qkv);
}

/// The value of every cell of the batch, read by a token that sees that cell only.
fn filled(gpu: &mut CudaBackend, cache: &mut PagedCache) -> [f32; ROWS] {
    let behind = ROWS as u32;
    let nothing = vec![0.0; HEADS.qkv_width()];
    std::array::from_fn(|cell| {
        let pages = [cell as u32, behind];
        attend(gpu, cache, (&pages, &[behind]), &nothing)[0]
    })
}

/// Results of a pass: its words, true if notes differed, and the values of cells after it.
type Brought = ([u32; WORDS], bool, [f32; ROWS]);

/// Runs all passes of a rank, which rests before the last one.
fn passes(gpu: &mut CudaBackend, rank: usize, rest: Duration) -> Vec<Brought> {
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
        fill(gpu, &mut cache);
        let asked = || calls(c"ncclSend").map(|sent| sent + calls(c"ncclRecv").unwrap_or(0));
        let before = asked();
        let mut work = |gpu: &mut CudaBackend| {
            gpu.notes().unwrap().exchange()?;
            let [rows, space] = &mut whole;
            let own = leads.then_some((&mut *rows, space));
            let device = gpu.sampler().unwrap();
            device.gather(Axis::World, &x, OWNERS, own)?;
            if leads {
                device.choose(rows, 0, &mut inputs);
            }
            device.accept(&mut inputs, std::slice::from_mut(&mut cache));
            Ok(())
        };
        gpu.pass(&mut recorded, KEY, &mut work).unwrap();
        if let (Some(before), Some(now), 1..) = (before, asked(), pass) {
            assert_eq!(now, before, "a pass that is repeated asks for nothing");
        }
        let words = gpu.outcomes(&mut inputs).unwrap().words;
        let words = words.try_into().unwrap();
        let differ = gpu.notes().unwrap().came().differ;
        found.push((words, differ, filled(gpu, &mut cache)));
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

/// If ranks differ, no token of the pass counts.
#[test]
fn what_one_rank_chooses_all_ranks_of_its_dp_rank_know() {
    if Gpu::count().unwrap() < WIDTHS.len() {
        return;
    }
    let all = |gpu: &mut _, rank| passes(gpu, rank, Duration::ZERO);
    let found = with_options(with_patience(PATIENCE), (WIDTHS.len(), 2), all);
    for (rank, found) in found.into_iter().enumerate() {
        for (pass, (words, differ, cells)) in found.into_iter().enumerate() {
            // The last word of a note is each rank's own.
            let differs = matches!(PASSES[pass], Some(0..3));
            assert_eq!(differ, differs, "pass {pass}");
            let expected = match differs {
                true => nothing(),
                false => wanted(pass, rank / 2),
            };
            assert_eq!(words, expected, "rank {rank} in pass {pass}");
            let cells_expected = match differs || rank / 2 == 1 {
                true => [0.0, 1.0, 2.0, 3.0, 4.0],
                false => [0.0, 1.0, 2.0, 4.0, 4.0],
            };
            assert_eq!(cells, cells_expected, "rank {rank} in pass {pass}");
        }
    }
}

/// A group without operations waits for nothing, however long that takes: the wait for outcomes
/// covers everything that peers had to bring.
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
