//! Comparisons and votes of all ranks outside of steps. All ranks call each of these functions
//! together.

use lockstep_adaptive::{Row, Seen};
use lockstep_backend::{Axis, Backend};
use lockstep_model::{CaptureSpec, Transformer};

use crate::worker::{WorkerError, draft_stage::DraftStage};

/// Checks that every rank prepared the passes with digest `ours`.
///
/// # Errors
/// [`WorkerError::PassesDiffer`] on every rank that differs from another;
/// [`WorkerError::Backend`] when a peer is gone.
pub fn compare_passes<B: Backend>(backend: &mut B, ours: u64) -> Result<(), WorkerError> {
    let (rank, _) = backend.group(Axis::World);
    let all = exchange(backend, [ours as u32, (ours >> 32) as u32])?;
    let digest = |[low, high]: [u32; 2]| u64::from(low) | u64::from(high) << 32;
    let digests = all.into_iter().map(digest).enumerate();
    match { digests }.find(|(_, theirs)| *theirs != ours) {
        None => Ok(()),
        Some((peer, theirs)) => Err(WorkerError::PassesDiffer {
            rank,
            ours,
            peer,
            theirs,
        }),
    }
}

/// Returns the number of ranks on which `yes` is true.
///
/// # Errors
/// [`WorkerError::Backend`] when a peer is gone.
pub fn count<B: Backend>(backend: &mut B, yes: bool) -> Result<usize, WorkerError> {
    Ok(which(backend, yes)?.len())
}

/// Returns the ranks on which `yes` is true.
///
/// # Errors
/// [`WorkerError::Backend`] when a peer is gone.
pub fn which<B: Backend>(backend: &mut B, yes: bool) -> Result<Vec<usize>, WorkerError> {
    let all = exchange(backend, [u32::from(yes)])?.into_iter().enumerate();
    Ok(all
        .filter_map(|(rank, [vote])| (vote != 0).then_some(rank))
        .collect())
}

/// Returns true if the ranks of each node bring the same word. Each node has `ranks_per_node`
/// ranks.
///
/// # Errors
/// [`WorkerError::Backend`] when a peer is gone.
pub fn alike_on_nodes<B: Backend>(
    backend: &mut B,
    own: u64,
    ranks_per_node: usize,
) -> Result<bool, WorkerError> {
    let all = exchange(backend, [own as u32, (own >> 32) as u32])?;
    let mut nodes = all.chunks(ranks_per_node.max(1));
    Ok(nodes.all(|node| node.iter().all(|words| *words == node[0])))
}

/// Makes all ranks of a loaded target follow the drafters, which only the leads have.
///
/// # Errors
/// [`WorkerError::Backend`] when a peer is gone; [`WorkerError::Model`] for want
/// of memory.
pub fn share_drafting<B: Backend>(
    backend: &mut B,
    target: &mut Transformer<B>,
    drafting: &mut DraftStage<B>,
) -> Result<(), WorkerError> {
    share_capture(backend, target, drafting)?;
    share_drafts(backend, target, drafting)
}

/// Makes every rank compute the features that the drafter reads, because the width of the last
/// layer's collectives depends on them.
fn share_capture<B: Backend>(
    backend: &mut B,
    target: &mut Transformer<B>,
    drafting: &DraftStage<B>,
) -> Result<(), WorkerError> {
    let own = drafting.capture().unwrap_or_default();
    let wanted_somewhere = count(backend, own.last_hidden)? > 0;
    if wanted_somewhere && !own.last_hidden {
        let spec = CaptureSpec {
            last_hidden: true,
            ..own
        };
        target.set_capture(backend, spec)?;
    }
    Ok(())
}

/// If all leads draft on their devices, makes passes carry these drafts to the other ranks'
/// devices.
fn share_drafts<B: Backend>(
    backend: &mut B,
    target: &mut Transformer<B>,
    drafting: &mut DraftStage<B>,
) -> Result<(), WorkerError> {
    let leads = backend.group(Axis::World).1 / backend.group(Axis::Attention).1;
    let on_devices = count(backend, drafting.drafts_on_device())?;
    target.tell_drafts(backend, on_devices == leads);
    Ok(())
}

/// Joins the measurements of a step in which every DP rank ran the same requests. The counts
/// are those of rank 0, the times those of the slowest rank.
///
/// # Errors
/// [`WorkerError::Backend`] when a peer is gone.
pub fn join<B: Backend>(backend: &mut B, seen: Seen) -> Result<Seen, WorkerError> {
    let own = Row {
        seen,
        ..Row::default()
    };
    let all = exchange(backend, own.to_words())?;
    let rows: Vec<Row> = all.iter().map(Row::from_words).collect();
    let first = rows.first().map_or(seen, |row| row.seen);
    Ok(Seen {
        decodes: first.decodes,
        at_risk: first.at_risk,
        accepted: first.accepted,
        ..Seen::join(&rows)
    })
}

/// Returns the words of every rank.
fn exchange<B: Backend, const N: usize>(
    backend: &mut B,
    words: [u32; N],
) -> Result<Vec<[u32; N]>, WorkerError> {
    let (_, size) = backend.group(Axis::World);
    let mut all = vec![[0; N]; size];
    backend
        .control(Axis::World)
        .exchange(&words, all.as_flattened_mut())?;
    Ok(all)
}
