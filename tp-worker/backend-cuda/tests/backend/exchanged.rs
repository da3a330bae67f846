//! GPU memory of exchanges: its charge before the start, compared with the memory that
//! communicators and their connections take.

use std::time::{Duration, Instant};

use lockstep_backend::{
    AttentionShape, Axis, DeviceMemory, Exchange as _, Holds, Owners, PassShape, RankLayout,
};
use lockstep_backend_cuda::{Context, CudaBackend, CudaMemory};
use lockstep_types::{CollectiveBackend, Dtype};

use crate::ranks::{brought, by_way, tensor};

/// Numbers of ranks, and of the DP ranks that they form.
const SPLITS: [(usize, usize); 5] = [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4)];
/// Columns of a rank's logits (`COLUMNS`), and rows of a DP rank in a block.
const COLUMNS: usize = 70_001;
const ROWS: usize = 3;
/// Bytes charged for code, which the fake device does not have: code of kernels, and memory of
/// NCCL that does not grow with channels.
const CODE: u64 = (64 + 352) << 20;
/// Longer than the end of any communicator takes.
const LIMIT: Duration = Duration::from_secs(60);

fn pass(place: RankLayout) -> PassShape {
    let gathered = if place.leads() {
        place.ranks * COLUMNS
    } else {
        0
    };
    PassShape {
        latent: Vec::new(),
        tokens: ROWS,
        positions: 16,
        attention: vec![AttentionShape::dense(1, 1, 16, 1.0)],
        recurrences: Vec::new(),
        products: Vec::new(),
        experts: Vec::new(),
        adapted: Vec::new(),
        gathered: gathered * ROWS * place.dp_ranks,
    }
}

/// Uses every exchange of ranks once.
fn exchange(gpu: &mut CudaBackend, place: RankLayout) {
    let RankLayout {
        rank,
        ranks,
        dp_ranks,
    } = place;
    let mut x = tensor(gpu, &brought(rank, 64), 8, Holds::Sum);
    gpu.all_reduce(Axis::World, &mut x).unwrap();
    if place.near() > 1 {
        gpu.all_reduce(Axis::Attention, &mut x).unwrap();
    }
    let height = ROWS * dp_ranks;
    let logits = tensor(gpu, &vec![0.5; height * COLUMNS], COLUMNS, Holds::Logits);
    let near = place.near();
    let owned = |rank: usize| match rank % near {
        0 => rank / near * ROWS..(rank / near + 1) * ROWS,
        _ => 0..0,
    };
    let rows: Vec<_> = (0..ranks).map(owned).collect();
    let owners = Owners {
        widths: &vec![COLUMNS; ranks],
        rows: &rows,
    };
    let mut space = Vec::new();
    let found = gpu.gather_to_host(Axis::World, &logits, owners, &mut space);
    assert_eq!(found.unwrap().len(), rows[rank].len() * ranks * COLUMNS);
}

/// Used bytes of a GPU.
fn taken(device: usize) -> u64 {
    let (free, all) = Context::open(device).unwrap().memory().unwrap();
    (all - free) as u64
}

/// Waits until nothing of the GPUs is used, since earlier communicators end in their own time.
/// Otherwise the memory of `next` could not be measured.
fn given_back(next: &str) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let all: Vec<_> = (0..4).map(taken).collect();
        if all.iter().all(|taken| *taken == 0) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "before {next}, what was there is to give back its memory, and after {LIMIT:?} GPUs \
             still hold {all:?} bytes"
        );
        std::thread::yield_now();
    }
}

/// No other test takes memory of the GPUs meanwhile.
#[test]
#[ignore = "a process of its own, which another test starts"]
fn exchanges() {
    for (ranks, dp_ranks) in SPLITS {
        given_back(&format!("{ranks} ranks of {dp_ranks} DP ranks begin"));
        by_way(
            CollectiveBackend::Nccl,
            (ranks, dp_ranks),
            Dtype::Float32,
            move |gpu, rank| {
                let place = RankLayout {
                    rank,
                    ranks,
                    dp_ranks,
                };
                assert!(gpu.exchanged() > 0);
                exchange(gpu, place);
                let memory = CudaMemory::new(Dtype::Float32, CollectiveBackend::Nccl);
                let passes = [pass(place)];
                let gathered = memory.gathered_bytes(&passes, place);
                let charged = memory.exchange_bytes(place) + gathered;
                let charged = charged + memory.scratch_bytes(&passes) - CODE;
                let used = taken(rank);
                assert!(
                    used <= charged,
                    "{place:?}: {charged} charged, {used} taken"
                );
                assert!(4 * used > 3 * charged, "{place:?}: {charged} for {used}");
            },
        );
    }
}

/// Runs the test `name` in a process of its own, with `environment` added.
fn process(name: &str, environment: &[(&str, &str)]) -> std::process::Output {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--ignored", "--nocapture"]);
    child.envs(environment.iter().copied());
    child.output().unwrap()
}

#[test]
fn what_ranks_exchange_by_is_within_what_is_charged() {
    if !lockstep_fake_cuda::seed(1) {
        return; // Nobody tells who takes memory of a real GPU.
    }
    // With NCCL's variable set, another number of channels is charged.
    for environment in [&[][..], &[("NCCL_MAX_CTAS", "3")]] {
        let output = process("exchanged::exchanges", environment);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{environment:?}: {told}");
    }
    // Shows that the test can fail: more channels are connected than charged.
    let output = process("exchanged::exchanges", &[("NCCL_MIN_CTAS", "32")]);
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("charged"), "{told}");
}
