//! Weights that another process writes to while a worker reads them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::LazyLock,
    thread,
    time::{Duration, SystemTime},
};

use lockstep_backend::Backend;
use lockstep_backend_cpu::CpuBackend;
use lockstep_collective::{Collective, Single, local_group};
use lockstep_config::{Hardware, ServeArgs, resolve};
use lockstep_devices::{Device as _, DeviceFootprint, DeviceOptions};
use lockstep_speculation::{
    Build, Device, DraftError, DraftRow, Drafter, DrafterFactory, DrafterRegistry, Drafts,
};
use lockstep_tp_worker::worker::{Folders, Worker, WorkerError, WorkerOptions};
use lockstep_types::{Algorithm, Capabilities};

const FILE: &str = "model.safetensors";

/// An algorithm that drafts nothing. Its drafter is built when the target has been read, and
/// then writes into the target's file in its folder.
#[derive(Debug)]
struct Writer(PathBuf);

struct Idle;

impl Algorithm for Writer {
    fn name(&self) -> &str {
        "WRITER"
    }
    fn summary(&self) -> &str {
        "no drafts"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

impl<B: Backend> DrafterFactory<B> for Writer {
    fn build(&self, build: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        if build.target.path == self.0 {
            let file = OpenOptions::new().write(true).open(self.0.join(FILE));
            let file = file.unwrap();
            let last = file.metadata().unwrap().len() - 1;
            file.write_all_at(&[0], last).unwrap();
        }
        Ok(Box::new(Idle))
    }
}

impl<B: Backend> Drafter<B> for Idle {
    fn draft(
        &mut self,
        _device: &mut Device<'_, B>,
        _rows: &[DraftRow],
        _drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        Ok(())
    }
}

fn demo() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    let root = above.find(|folder| folder.join("models").is_dir());
    root.unwrap().join("models/lockstep-demo-7m")
}

/// Makes a copy of the demo model whose weights were written long ago.
fn copy(folder: &Path) -> PathBuf {
    let copy = folder.join("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(demo()).unwrap().flatten() {
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let file = OpenOptions::new().write(true).open(copy.join(FILE));
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    file.unwrap().set_modified(long_ago).unwrap();
    copy
}

fn load(
    drafters: &DrafterRegistry<CpuBackend>,
    rank: usize,
    collective: Box<dyn Collective>,
    size: usize,
) -> Worker<CpuBackend> {
    let mut args = ServeArgs::default();
    args.model.model_path = Some(demo());
    args.parallel.tp_size = Some(size);
    args.parallel.threads_per_rank = Some(1);
    args.memory.max_total_tokens = Some(2048);
    args.speculation.speculative_algorithm = Some("WRITER".to_owned());
    args.speculation.speculative_num_steps = Some(1);
    args.speculation.speculative_eagle_topk = Some(1);
    args.speculation.speculative_num_draft_tokens = Some(2);
    let known = drafters.algorithms();
    let resolved = resolve(&args, &Hardware::detect(), &known, &DeviceFootprint);
    let (config, _) = resolved.unwrap().value;
    let backend = CpuBackend::open(&DeviceOptions::new(&config), collective);
    let options = WorkerOptions {
        drafters,
        weight_cache: None,
        progress: &mut |_| {},
    };
    Worker::load(&config, rank, backend.unwrap(), options).unwrap()
}

#[test]
fn weights_that_are_written_to_before_all_is_read_are_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let copy = copy(folder.path());
    let drafters = DrafterRegistry::empty().with(Writer(copy.clone()));
    let mut worker = load(&drafters, 0, Box::new(Single::new()), 1);
    let error = worker.reload(Some(&folders(&copy))).unwrap_err();
    let WorkerError::Reload(reason) = &error else {
        panic!("{error}");
    };
    assert!(
        reason.contains(FILE) && reason.contains("changed"),
        "{reason}"
    );
    worker.reload(Some(&demo_folders())).unwrap();
}

/// Opens the folder of a model, as a look does.
fn folders(model: &Path) -> Folders {
    Folders::below(model.parent().unwrap(), model, None).unwrap()
}

/// Returns the folder of the demo model, which a process opens once.
fn demo_folders() -> Folders {
    static OPEN: LazyLock<Folders> = LazyLock::new(|| folders(&demo()));
    OPEN.clone()
}

/// Two ranks open different folders. This happens if a folder is exchanged after one rank has
/// opened it and before the next does.
#[test]
fn ranks_that_found_different_folders_take_none() {
    let folder = tempfile::tempdir().unwrap();
    let folders = [demo_folders(), folders(&copy(folder.path()))];
    let [one, other] = refusals(folders.map(Some));
    for error in [one, other] {
        assert!(error.contains("different folders"), "{error}");
    }
}

#[test]
fn a_rank_that_has_not_looked_reads_nothing_and_says_so() {
    let [one, other] = refusals([Some(demo_folders()), None]);
    assert!(one.contains("1 other ranks have not looked"), "{one}");
    assert!(other.contains("this rank has not looked"), "{other}");
}

/// Returns the errors of two ranks for these folders. Both take the demo model afterwards.
fn refusals(folders: [Option<Folders>; 2]) -> [String; 2] {
    let mut ranks = local_group(2).into_iter().zip(folders).enumerate();
    [(); 2]
        .map(|()| {
            let (rank, (collective, own)) = ranks.next().unwrap();
            thread::spawn(move || {
                let drafters = DrafterRegistry::empty().with(Writer(PathBuf::new()));
                let mut worker = load(&drafters, rank, Box::new(collective), 2);
                let error = worker.reload(own.as_ref()).unwrap_err();
                worker.reload(Some(&demo_folders())).unwrap();
                error.to_string()
            })
        })
        .map(|rank| rank.join().unwrap())
}
