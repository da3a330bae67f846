//! The start of the exchange from device to device, and the agreement of all ranks on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_backend::{Axis, Groups};
use lockstep_types::CollectiveBackend;

use super::library::{Library, UniqueId};
use super::{Communicator, Plane};
use crate::error::CudaError;
use crate::exchange::watch::Way as _;
use crate::runtime::{Context, Stream};

/// Pause between two checks whether all ranks have joined.
const PAUSE: Duration = Duration::from_millis(1);

/// Options for the exchange of ranks' data; equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectiveOptions {
    /// Requested backend.
    pub backend: CollectiveBackend,
    /// Path of NCCL's library; `None` to look in the search path of libraries.
    pub nccl: Option<PathBuf>,
    /// Time limit for joining each of a rank's groups.
    pub joining: Duration,
    /// Time for which data may be on its way before its peers are given up.
    pub patience: Duration,
}

impl Default for CollectiveOptions {
    fn default() -> Self {
        Self {
            backend: CollectiveBackend::Auto,
            nccl: None,
            joining: Duration::from_secs(60),
            patience: Duration::from_secs(300),
        }
    }
}

/// Words that a rank tells the others before any of them starts NCCL: the version, 0 if it has
/// no NCCL, and the UUID of its GPU.
type Words = [u32; 5];

/// The exchange from device to device, if all ranks have NCCL and have used it once; otherwise
/// the reason why there is none. All ranks call this together and get the same answer. If there
/// is such an exchange, `stream` is watched from then on.
///
/// # Errors
/// [`CudaError`]: a peer is gone; or NCCL can't be used, and no other backend is wanted.
pub(crate) fn agreed(
    stream: &mut Stream,
    groups: &mut Groups,
    options: &CollectiveOptions,
) -> Result<Result<Plane, String>, CudaError> {
    let context = &stream.context().clone();
    let (_, size) = groups.rank_and_size(Axis::World);
    if size == 1 || options.backend == CollectiveBackend::Host {
        return Ok(Err("as --collective-backend host says".to_owned()));
    }
    let found = Library::find(options.nccl.as_deref());
    let version = found.as_ref().map_or(0, |found| found.number());
    let [a, b, c, d] = context.gpu().identity()?;
    let mut all: Vec<Words> = vec![[0; 5]; size];
    let world = groups.of(Axis::World);
    world.exchange(&[version, a, b, c, d], all.as_flattened_mut())?;
    let library = match (obstacle(&all), found) {
        (None, Ok(library)) => library,
        (Some(why), Err(error)) if version == 0 => {
            return refused(options, format!("{why}: here {error}"));
        }
        (Some(why), _) => return refused(options, why),
        (None, Err(error)) => return Err(error),
    };
    let plane = match join(context, groups, &library, options)? {
        Ok(plane) => plane,
        Err(why) => return refused(options, why),
    };
    stream.watched_by(plane.watched().clone());
    if options.backend == CollectiveBackend::Nccl {
        plane.warm_up(stream, options, |axis| groups.rank_and_size(axis))?;
        return Ok(Ok(plane));
    }
    let Some(why) = unusable(&plane, stream, groups, options)? else {
        return Ok(Ok(plane));
    };
    stream.watched_by_nobody();
    plane.abort();
    Ok(Err(why))
}

/// Uses the communicators once and lets the ranks vote on whether they work. Returns the reason
/// if they don't. A rank ends its communicators by itself if a peer does not come or says that
/// it failed, so that all ranks come to vote. The vote goes through the hosts' group, which
/// does not end with the communicators yet.
fn unusable(
    plane: &Plane,
    stream: &Stream,
    groups: &mut Groups,
    options: &CollectiveOptions,
) -> Result<Option<String>, CudaError> {
    let watched = plane.watched();
    watched.try_out();
    let used = plane.warm_up(stream, options, |axis| groups.rank_and_size(axis));
    if used.is_err() {
        watched.give_up();
    }
    let why = missing(groups, &used)?;
    if why.is_none() {
        watched.adopt()?;
    }
    Ok(why)
}

/// Returns `why` as the reason against NCCL, or as an error if NCCL was requested.
fn refused(options: &CollectiveOptions, why: String) -> Result<Result<Plane, String>, CudaError> {
    match options.backend {
        CollectiveBackend::Nccl => Err(CudaError::Unsupported(format!(
            "ranks can't exchange by NCCL: {why}; leave --collective-backend out, so that their data passes through the host's memory where it has to"
        ))),
        CollectiveBackend::Auto | CollectiveBackend::Host => Ok(Err(why)),
    }
}

/// The reason why the ranks can't use NCCL, if any. All ranks see the same `all`, and so the
/// same reason.
fn obstacle(all: &[Words]) -> Option<String> {
    let version = |words: &Words| words[0];
    if let Some(rank) = all.iter().position(|words| version(words) == 0) {
        return Some(format!("rank {rank} has no NCCL"));
    }
    if let Some(rank) = all
        .iter()
        .position(|words| version(words) != version(&all[0]))
    {
        return Some(format!(
            "rank {rank} has another version of NCCL than rank 0"
        ));
    }
    let shares = |rank: &usize| all[..*rank].iter().any(|one| one[1..] == all[*rank][1..]);
    let sharing = (1..all.len()).find(shares)?;
    Some(format!(
        "rank {sharing} shares a GPU with another one, which NCCL refuses"
    ))
}

/// Forms the communicators of this rank's groups. Returns the reason if some rank could not.
fn join(
    context: &Arc<Context>,
    groups: &mut Groups,
    library: &Arc<Library>,
    options: &CollectiveOptions,
) -> Result<Result<Plane, String>, CudaError> {
    let [(_, all), (_, some)] =
        [Axis::World, Axis::Attention].map(|axis| groups.rank_and_size(axis));
    let axes = match some {
        1 => &[Axis::World][..],
        same if same == all => &[Axis::World],
        _ => &[Axis::World, Axis::Attention],
    };
    let mut made = Vec::new();
    for axis in axes {
        let deadline = Instant::now() + options.joining;
        let one = communicator(context, groups, library, *axis, deadline);
        let missing = missing(groups, &one)?;
        made.extend(one);
        if let Some(why) = missing {
            // All ranks abort: a rank that left in order would wait for ranks that don't.
            made.iter().for_each(|one| one.abort());
            return Ok(Err(why));
        }
    }
    let world = made.first().cloned();
    let attention = made.get(1).or(world.as_ref().filter(|_| some > 1)).cloned();
    let plane = Plane::new(groups, library, [world, attention], options.patience);
    match missing(groups, &plane)? {
        None => plane.map(Ok),
        Some(why) => {
            made.iter().for_each(|one| one.abort());
            Ok(Err(why))
        }
    }
}

/// Tells all ranks whether this one has made its part. So no rank goes on to wait for one that
/// gave up. Returns the reason if some rank has failed.
fn missing<T>(
    groups: &mut Groups,
    made: &Result<T, CudaError>,
) -> Result<Option<String>, CudaError> {
    let (_, size) = groups.rank_and_size(Axis::World);
    let mut states = vec![0; size];
    let world = groups.of(Axis::World);
    world.exchange(&[u32::from(made.is_ok())], &mut states)?;
    let rank = states.iter().position(|state| *state == 0);
    Ok(match (made, rank) {
        (Err(error), _) => Some(error.to_string()),
        (Ok(_), Some(rank)) => Some(format!("rank {rank} could not start NCCL")),
        (Ok(_), None) => None,
    })
}

/// Makes the communicator of the ranks of `axis`.
fn communicator(
    context: &Arc<Context>,
    groups: &mut Groups,
    library: &Arc<Library>,
    axis: Axis,
    deadline: Instant,
) -> Result<Arc<Communicator>, CudaError> {
    let (rank, size) = groups.rank_and_size(axis);
    let group = groups.of(axis);
    let made = (rank == 0).then(|| library.unique_id());
    // All ranks have to know if rank 0 fails: the word in front is 1 if it did not.
    let mut words = [0; 33];
    if let Some(Ok(UniqueId(id))) = &made {
        words[0] = 1;
        words[1..].copy_from_slice(id);
    }
    group.broadcast(0, &mut words)?;
    made.transpose()?;
    let [1, id @ ..] = words else {
        let why = "the first rank of a group could not start NCCL".to_owned();
        return Err(CudaError::Unsupported(why));
    };
    let made = Communicator::begin(library, context, UniqueId(id), (rank, size))?;
    let host = group.abort_handle();
    while !made.is_ready()? {
        if host.is_aborted() || Instant::now() >= deadline {
            made.abort();
            return Err(CudaError::Unsupported(
                "its ranks did not all come within a minute, or a quarter of --startup-timeout: look at NCCL_DEBUG=INFO, or give --collective-backend host".to_owned(),
            ));
        }
        std::thread::park_timeout(PAUSE);
    }
    Ok(Arc::new(made))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_found_the_same_see_the_same_obstacle() {
        let none = |all: &[Words]| assert_eq!(obstacle(all), None);
        none(&[[22_803, 1, 2, 3, 4], [22_803, 1, 2, 3, 5]]);
        for (all, why) in [
            (
                [[22_803, 1, 2, 3, 4], [0, 1, 2, 3, 5]],
                "rank 1 has no NCCL",
            ),
            (
                [[22_803, 1, 2, 3, 4], [22_700, 1, 2, 3, 5]],
                "another version",
            ),
            (
                [[22_803, 1, 2, 3, 4], [22_803, 1, 2, 3, 4]],
                "rank 1 shares a GPU",
            ),
        ] {
            let found = obstacle(&all).unwrap_or_default();
            assert!(found.contains(why), "{found}");
        }
    }
}
