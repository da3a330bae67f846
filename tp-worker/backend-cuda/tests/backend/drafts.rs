//! Drafts of several ranks. The device of a DP rank's lead drafts. As a pass begins, the
//! devices of the DP rank's other ranks get the drafts, and no others do.

use lockstep_backend::{
    Axis, BackendError, Batch, ChainBatch, ChainLimits, Choice, ChoiceBatch, ChoiceLimits,
    ChoiceRow, CollectiveCall, DraftShape, DraftedRow, Holds, InputLimits, Memory as _, Ops as _,
    PassKey, PassPlan, PassRecords as _, Passes as _, Row, WeightFormat,
};
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions, CudaPasses, Gpu};
use lockstep_fake_cuda::calls;
use lockstep_types::{CollectiveBackend, Dtype, sampling::SamplingParams};

use crate::ranks::{PATIENCE, tensor, with_options};
use crate::support::{host_matrix, matrix, noise, options, read};

const RANKS: usize = 4;
const VOCAB: usize = 40;
/// Tokens of the recorded pass, more than in any batch.
const TOKENS: usize = 5;
const KEY: PassKey = PassKey {
    requests: TOKENS,
    tokens: TOKENS,
    max_q_len: TOKENS,
};
/// Size of a pass of the one chain.
const CHAIN: PassKey = PassKey {
    requests: 1,
    tokens: 1,
    max_q_len: 1,
};
/// For each pass: true if the device drafts, and the number of drafts.
const PASSES: [(bool, usize); 5] = [(true, 2), (false, 2), (true, 1), (true, 3), (false, 0)];
const LIMITS: InputLimits = InputLimits {
    tokens: TOKENS,
    requests: TOKENS,
    groups: 1,
    pages: TOKENS,
    page_size: 16,
    mask_words: 0,
    replays: 0,
    choices: ChoiceLimits {
        requests: TOKENS,
        rows: TOKENS,
        parents: 0,
        most: 4,
    },
    chain: ChainLimits {
        chains: 1,
        tokens: 1,
        pages: 1,
        trees: 0,
    },
};

fn logits(pass: usize, dp_rank: usize, level: usize) -> Vec<f32> {
    noise((100 * pass + 10 * dp_rank + level) as u64, VOCAB)
}

fn likeliest(pass: usize, dp_rank: usize, level: usize) -> u32 {
    let row = logits(pass, dp_rank, level);
    let best = (0..VOCAB).reduce(|best, at| if row[at] > row[best] { at } else { best });
    best.unwrap() as u32
}

/// Tokens of a pass before the device drafts: the last known token, and the host's drafts, if
/// it drafts.
fn known(pass: usize, dp_rank: usize) -> Vec<u32> {
    let (on_device, drafts) = PASSES[pass];
    let token = |at: usize| (1 + 7 * pass + 3 * dp_rank + at) as u32;
    let draft = |at| if on_device { 0 } else { token(at) };
    std::iter::once(token(0))
        .chain((1..=drafts).map(draft))
        .collect()
}

/// Tokens of a pass's batch with all drafts.
fn whole(pass: usize, dp_rank: usize) -> Vec<u32> {
    let (on_device, drafts) = PASSES[pass];
    let mut tokens = known(pass, dp_rank);
    if on_device {
        for level in 0..drafts {
            tokens[1 + level] = likeliest(pass, dp_rank, level);
        }
    }
    tokens
}

/// Calls `work` with the batch of a pass, on the rank that `leads` or on another one.
fn with_batch(pass: usize, dp_rank: usize, leads: bool, work: impl FnOnce(&Batch<'_>)) {
    let (on_device, drafts) = PASSES[pass];
    let tokens = known(pass, dp_rank);
    let all: Vec<u32> = (0..tokens.len() as u32).collect();
    let row = |q_len: usize| Row {
        start: 0,
        q_len: q_len as u32,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    };
    let use_of = |depth: &u32| ChoiceRow {
        request: 0,
        depth: *depth,
    };
    let first = Batch {
        tokens: &tokens[..1],
        positions: &[0],
        cells: &[0],
        rows: &[row(1)],
        pages: &[0],
        logit_tokens: &[0],
        ..Batch::default()
    };
    work(&Batch {
        tokens: &tokens,
        positions: &all,
        cells: &all,
        rows: &[row(tokens.len())],
        pages: &[0],
        logit_tokens: &all,
        choices: ChoiceBatch {
            choices: &[Choice::of(&SamplingParams::greedy(), 0)],
            rows: &all.iter().map(use_of).collect::<Vec<_>>(),
            drafted: &[DraftedRow {
                logits: 0,
                token: 0,
                nodes: drafts as u32,
                parents: None,
            }],
            parents: &[],
        },
        chain: (on_device && leads).then_some(ChainBatch {
            first: &first,
            requests: &[0],
            sources: &[],
            trees: &[],
        }),
        told: (on_device && !leads).then_some(DraftShape::Chains),
        ..Batch::default()
    });
}

fn plan(words: usize) -> CudaPasses {
    CudaPasses::planned(vec![PassPlan {
        key: KEY,
        exchanges: CollectiveCall::tell(Axis::Attention, words)
            .into_iter()
            .collect(),
    }])
}

/// The tokens that each pass of a rank looks up. Drafts are `told` between ranks, or not.
fn passes(gpu: &mut CudaBackend, rank: usize, told: bool) -> Vec<Vec<u32>> {
    let (dp_rank, leads) = (rank / 2, rank.is_multiple_of(2));
    let names: Vec<f32> = (0..VOCAB).map(|id| id as f32).collect();
    let names = matrix(&names, 1);
    let ids = gpu.load_matrix(&host_matrix(&names, 1), WeightFormat::Float);
    let ids = ids.unwrap();
    let mut out = gpu.tensor(TOKENS, 1, Holds::Sum).unwrap();
    let [mut inputs, mut drafts] = [(); 2].map(|()| gpu.inputs(&LIMITS).unwrap());
    let mut recorded = match told {
        true => plan(LIMITS.drafted_words(TOKENS)),
        false => plan(0),
    };
    let mut found = Vec::new();
    for (pass, (on_device, depth)) in PASSES.into_iter().enumerate() {
        gpu.upload(&mut out, &[0.0; TOKENS]);
        with_batch(pass, dp_rank, leads, |batch| {
            gpu.stage(batch, &mut inputs).unwrap();
        });
        let drafting = leads && on_device;
        let device = gpu.drafter().unwrap();
        if drafting {
            device.begin(&inputs, &mut drafts, CHAIN, 1);
        }
        for level in (0..depth).filter(|_| drafting) {
            let row = tensor(gpu, &logits(pass, dp_rank, level), VOCAB, Holds::Logits);
            let device = gpu.drafter().unwrap();
            device.advance((&row, None), level, &mut inputs, &mut drafts, CHAIN);
        }
        let before = calls(c"ncclBroadcast");
        let key = gpu.pad(KEY, &mut inputs);
        let mut work = |gpu: &mut CudaBackend| {
            if told {
                let device = gpu.drafter().unwrap();
                device.tell(Axis::Attention, &mut inputs, key.tokens)?;
            }
            gpu.embed(&ids, 0, 1.0, &inputs, &mut out);
            Ok(())
        };
        gpu.pass(&mut recorded, key, &mut work).unwrap();
        if pass > 0 {
            let now = calls(c"ncclBroadcast");
            assert_eq!(now, before, "a pass that is repeated asks for nothing");
        }
        let tokens = read(gpu, &out).into_iter().map(|id| id as u32);
        found.push(tokens.take(known(pass, dp_rank).len()).collect());
    }
    assert_eq!(recorded.noted(), recorded.plans());
    found
}

fn on_ranks<T: Send + 'static>(
    work: impl Fn(&mut CudaBackend, usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    if Gpu::count().unwrap() < RANKS {
        return Vec::new();
    }
    let options = |_| CudaOptions {
        graphs: vec![TOKENS],
        collectives: CollectiveOptions {
            backend: CollectiveBackend::Nccl,
            joining: PATIENCE,
            patience: PATIENCE,
            ..CollectiveOptions::default()
        },
        ..options(Dtype::Float32)
    };
    with_options(options, (RANKS, 2), work)
}

#[test]
fn all_ranks_of_a_dp_rank_read_what_its_lead_has_drafted() {
    for (rank, found) in on_ranks(|gpu, rank| passes(gpu, rank, true))
        .into_iter()
        .enumerate()
    {
        for (pass, tokens) in found.into_iter().enumerate() {
            assert_eq!(tokens, whole(pass, rank / 2), "rank {rank} in pass {pass}");
        }
    }
}

/// Shows that the test above can fail.
#[test]
fn without_being_told_other_ranks_read_what_was_staged() {
    for (rank, found) in on_ranks(|gpu, rank| passes(gpu, rank, false))
        .into_iter()
        .enumerate()
    {
        for (pass, tokens) in found.into_iter().enumerate() {
            let expected = match rank % 2 {
                0 => whole(pass, rank / 2),
                _ => known(pass, rank / 2),
            };
            assert_eq!(tokens, expected, "rank {rank} in pass {pass}");
        }
    }
}

#[test]
fn a_rank_that_tells_nothing_or_too_much_is_refused_before_it_runs() {
    let asked = on_ranks(|gpu, _| {
        let mut inputs = gpu.inputs(&LIMITS).unwrap();
        gpu.stage(&Batch::default(), &mut inputs).unwrap();
        let right = LIMITS.drafted_words(TOKENS);
        let before = calls(c"ncclBroadcast");
        for (planned, told) in [(right, None), (0, Some(TOKENS)), (right, Some(TOKENS - 1))] {
            let mut work = |gpu: &mut CudaBackend| match told {
                Some(tokens) => {
                    let device = gpu.drafter().unwrap();
                    device.tell(Axis::Attention, &mut inputs, tokens)
                }
                None => Ok(()),
            };
            let found = gpu.pass(&mut plan(planned), KEY, &mut work);
            let of = |words: usize| CollectiveCall::tell(Axis::Attention, words);
            let words = told.map_or(0, |tokens| LIMITS.drafted_words(tokens));
            let Err(BackendError::Unplanned {
                asked, planned: by, ..
            }) = found
            else {
                panic!("{found:?}");
            };
            assert_eq!((asked, by), (of(words), of(planned)));
        }
        (before, calls(c"ncclBroadcast"))
    });
    assert!(asked.into_iter().all(|(before, now)| before == now));
}
