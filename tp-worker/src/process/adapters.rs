//! Adapters of the process: read on a thread of its own, while plans go on.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockstep_backend::Backend;
use lockstep_files::{Kept, within};
use lockstep_model::{AdapterReader, ReadAdapter};
use lockstep_process::RoleContext;
use lockstep_proto::pb::lockstep::{
    self as wire, AdapterOrder, AdapterRead, WorkerMessage, adapter_order::Kind as Order,
    adapter_read, worker_message,
};
use lockstep_types::{NamedAdapter, adapter::Adapter};
use tokio::sync::mpsc::WeakSender;

use super::stream::message;
use crate::{RunError, worker::Worker};

/// The adapter that was read last, until it is placed or not wanted.
#[derive(Clone, Default)]
pub struct ReadAside(Arc<Mutex<Option<ReadAdapter>>>);

impl ReadAside {
    fn adapter(&self) -> MutexGuard<'_, Option<ReadAdapter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Folders that this node's options allow.
struct Allowed {
    at_start: Vec<NamedAdapter>,
    dir: Option<PathBuf>,
}

/// Follows an order about adapters. The answer to an order to read leaves by `outgoing` later,
/// while that channel is open.
///
/// # Errors
/// An order that makes no sense, or a place that there is no room for. Both end the worker.
pub fn follow<B: Backend + 'static>(
    worker: &mut Worker<B>,
    ctx: &RoleContext,
    order: AdapterOrder,
    read: &ReadAside,
    outgoing: WeakSender<WorkerMessage>,
) -> Result<(), RunError> {
    let unread = || RunError::Scheduler("it placed an adapter that was not read".to_owned());
    let place = |place: u32| {
        let no_place = |_| RunError::Scheduler(format!("it named a place {place} of adapters"));
        u16::try_from(place).map_err(no_place)
    };
    match order.kind {
        Some(Order::Read(wanted)) => {
            let limit = Duration::from_secs(ctx.engine.timeouts.weight_update_s);
            let allowed = Allowed {
                at_start: ctx.node.lora_paths.clone(),
                dir: ctx.node.lora_dir.clone(),
            };
            let reader = worker.adapter_reader();
            begin((reader, allowed), wanted, limit, read.clone(), outgoing);
        }
        Some(Order::Place(at)) => {
            let adapter = read.adapter().take().ok_or_else(unread)?;
            worker.place_adapter(place(at)?, &adapter)?;
        }
        Some(Order::Clear(at)) => worker.clear_adapter(place(at)?),
        Some(Order::Forget(_)) => drop(read.adapter().take()),
        None => {}
    }
    Ok(())
}

/// Begins to read an adapter.
fn begin(
    (reader, allowed): (AdapterReader, Allowed),
    wanted: wire::ReadAdapter,
    limit: Duration,
    read: ReadAside,
    outgoing: WeakSender<WorkerMessage>,
) {
    std::thread::spawn(move || {
        read.adapter().take();
        let look = move || look(&reader, &allowed, &wanted);
        let kind = match within(limit, look) {
            Ok(Ok(adapter)) => {
                let content = adapter.content();
                *read.adapter() = Some(adapter);
                adapter_read::Kind::Adapter(Adapter { place: 0, content }.into())
            }
            Ok(Err(reason)) => adapter_read::Kind::Error(reason),
            Err(error) => adapter_read::Kind::Error(error.to_string()),
        };
        if let Some(outgoing) = outgoing.upgrade() {
            let read = AdapterRead { kind: Some(kind) };
            // The stream may have ended meanwhile.
            let _ = outgoing.blocking_send(message(worker_message::Kind::Adapter(read)));
        }
    });
}

/// Reads the wanted adapter, or returns the reason why it can't be served.
fn look(
    reader: &AdapterReader,
    allowed: &Allowed,
    wanted: &wire::ReadAdapter,
) -> Result<ReadAdapter, String> {
    let folder = Path::new(&wanted.path);
    let read = |folder: &Path| reader.read(folder).map_err(|error| error.to_string());
    if wanted.at_start {
        let is_wanted =
            |adapter: &NamedAdapter| adapter.name == wanted.name && adapter.path == folder;
        return match allowed.at_start.iter().any(is_wanted) {
            true => read(folder),
            false => Err(format!(
                "this node was started without --lora-paths {}={}; give it there too",
                wanted.name, wanted.path
            )),
        };
    }
    let dir = allowed
        .dir
        .as_ref()
        .ok_or("this node was started without --lora-dir; give it there too")?;
    let kept = Kept::below(dir, folder).map_err(|error| format!("{}: {error}", wanted.path))?;
    let adapter = read(kept.path())?;
    kept.check().map_err(|error| error.to_string())?;
    Ok(adapter)
}

#[cfg(test)]
mod tests {
    use lockstep_model::{Shard, Topology};
    use lockstep_types::AdapterLimits;

    use super::*;

    fn repository() -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        root.canonicalize().expect("the repository")
    }

    fn reader() -> AdapterReader {
        let folder = repository().join("models/lockstep-demo-7m");
        let model = lockstep_model_folder::load(&folder).expect("the demo model");
        let shard = Shard::new(&model, Topology::new(0, 1, 1)).expect("one rank");
        AdapterReader::new(&model, &shard, AdapterLimits { places: 1, rank: 4 })
    }

    #[test]
    fn a_rank_reads_what_its_own_node_allows() {
        let adapters = repository().join("tests/fixtures/adapters");
        let one = adapters.join("demo_one");
        let named = |name: &str, path: &Path| NamedAdapter {
            name: name.to_owned(),
            path: path.to_owned(),
        };
        let dir = |path: &Path| Some(path.to_owned());
        let [at_start, asked] = [true, false].map(|at_start| wire::ReadAdapter {
            name: "a".to_owned(),
            path: one.to_str().expect("UTF-8").to_owned(),
            at_start,
        });
        for (wanted, names, dir, why) in [
            (&at_start, vec![named("a", &one)], None, ""),
            (&at_start, vec![], dir(&adapters), "--lora-paths a="),
            (&at_start, vec![named("b", &one)], None, "--lora-paths a="),
            (
                &at_start,
                vec![named("a", &adapters)],
                None,
                "--lora-paths a=",
            ),
            (&asked, vec![], dir(&adapters), ""),
            (&asked, vec![named("a", &one)], None, "--lora-dir"),
            (&asked, vec![], dir(&one), "it is not inside"),
            (
                &asked,
                vec![],
                dir(&adapters.join("demo_two")),
                "it is not inside",
            ),
        ] {
            let at_start = names;
            let read = look(&reader(), &Allowed { at_start, dir }, wanted);
            let error = read.err().unwrap_or_default();
            assert!(
                error.contains(why) && error.is_empty() == why.is_empty(),
                "{why}: {error}"
            );
        }
    }
}
