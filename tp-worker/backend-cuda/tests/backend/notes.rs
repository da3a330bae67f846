//! Notes that ranks exchange as a pass begins.

use lockstep_backend::{
    Axis, CollectiveCall, Exchange as _, NoteShape, PassKey, PassPlan, PassRecords as _,
    Passes as _,
};
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions, CudaPasses, Gpu};
use lockstep_fake_cuda::calls;
use lockstep_types::{CollectiveBackend, Dtype};

use crate::ranks::{by_way, with_options};
use crate::support::{gpu, options};

const SHAPE: NoteShape = NoteShape {
    words: 40,
    shared: 3,
    of_dp_rank: 35,
};

const KEY: PassKey = PassKey {
    requests: 1,
    tokens: 1,
    max_q_len: 1,
};

/// For each pass, the word of rank 3's note that is wrong, if any.
const OTHERS: [Option<usize>; 6] = [None, Some(2), Some(3), Some(37), Some(38), None];

/// The note of a rank; there are two DP ranks of two ranks.
fn note(rank: usize, pass: usize) -> Vec<u32> {
    let own = |word: usize| match word {
        0..3 => (word + 1000 * pass) as u32,
        3..38 => (word + 100 * (rank / 2)) as u32,
        _ => (word + 50 * rank) as u32,
    };
    let mut note: Vec<u32> = (0..SHAPE.words).map(own).collect();
    if let Some(word) = OTHERS[pass].filter(|_| rank == 3) {
        note[word] ^= 1 << 31;
    }
    note
}

/// Runs a pass of notes alone, and returns all notes, and true if they differ.
fn exchange(gpu: &mut CudaBackend, passes: &mut CudaPasses, note: &[u32]) -> (Vec<u32>, bool) {
    gpu.notes().unwrap().bring(note).unwrap();
    let mut work = |gpu: &mut CudaBackend| gpu.notes().unwrap().exchange();
    gpu.pass(passes, KEY, &mut work).unwrap();
    gpu.arrive().unwrap();
    let came = gpu.notes().unwrap().came();
    (came.words.to_vec(), came.differ)
}

/// The pass runs anew or repeated, with another word of rank 3's note changed each time.
#[test]
fn notes_come_to_all_ranks_and_are_compared_on_the_way() {
    if Gpu::count().unwrap() < 4 {
        return;
    }
    let recording = |_| CudaOptions {
        graphs: vec![1],
        collectives: CollectiveOptions {
            backend: CollectiveBackend::Nccl,
            ..CollectiveOptions::default()
        },
        ..options(Dtype::Float32)
    };
    with_options(recording, (4, 2), |gpu, rank| {
        gpu.notes().unwrap().prepare(SHAPE).unwrap();
        let lens = std::iter::repeat_n(SHAPE.words, 4);
        let mut passes = CudaPasses::planned(vec![PassPlan {
            key: KEY,
            exchanges: CollectiveCall::gather(Axis::World, lens, Dtype::Float32).collect(),
        }]);
        let launches = || calls(c"cuGraphLaunch").unwrap_or_default();
        for (pass, other) in OTHERS.into_iter().enumerate() {
            let before = launches();
            let (words, differ) = exchange(gpu, &mut passes, &note(rank, pass));
            let expected: Vec<u32> = (0..4).flat_map(|rank| note(rank, pass)).collect();
            assert_eq!(words, expected, "pass {pass}");
            // Words behind the compared ones are each rank's own.
            let differs = other.is_some_and(|word| word < 38);
            assert_eq!(differ, differs, "pass {pass}");
            if calls(c"cuInit").is_some() {
                let repeated = u64::from(pass > 0);
                assert_eq!(launches() - before, repeated, "pass {pass}");
            }
        }
    });
}

#[test]
fn a_rank_alone_and_ranks_that_exchange_through_hosts_have_no_notes() {
    assert!(gpu(Dtype::Float32).notes().is_none());
    let none = |gpu: &mut CudaBackend, _| gpu.notes().is_none();
    let found = by_way(CollectiveBackend::Host, (2, 1), Dtype::Float32, none);
    assert_eq!(found, [true, true]);
}
