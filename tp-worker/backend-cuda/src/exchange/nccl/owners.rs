//! Exchanges whose results go to some ranks only: columns of logits go to the ranks that own
//! the rows, and the outcomes come back from one of these.

use std::ops::Range;

use lockstep_backend::{Axis, BackendError, Exchanged, Owners, host};
use lockstep_collective::Parts;

use super::library::{Code, DONE, F32, Library};
use super::plane::Plane;
use crate::error::CudaError;
use crate::runtime::{Buffer, Stream};
use crate::tensors::{Element, Floats};

/// A message with a part of a rank's columns.
struct Part {
    /// True if the peer sends the part, false if the peer receives it.
    comes: bool,
    peer: usize,
    at: u64,
    count: usize,
}

impl Plane {
    /// Sends this rank's columns `x` of all rows to the ranks that own the rows, and receives
    /// the other ranks' columns of its own rows in `parts`. There, `[rows, columns]` of one
    /// rank lie behind those of another, in rank order. The place of this rank's own columns is
    /// not written.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    ///
    /// # Panics
    /// Panics if `x` or `parts` is too small, or a rank that owns rows has no `parts`.
    pub(crate) fn collect(
        &self,
        stream: &Stream,
        (axis, rank): (Axis, usize),
        x: &Floats,
        owners: Owners<'_>,
        parts: Option<&mut Floats>,
    ) -> Result<(), CudaError> {
        let all = owners.widths.iter().sum::<usize>();
        let (room, to) = parts.map_or((0, 0), |parts| {
            parts.expect(Element::F32, 0, "columns of all ranks");
            (parts.len(), parts.address())
        });
        x.expect(
            Element::F32,
            owners.height() * owners.widths[rank],
            "this rank's columns",
        );
        assert!(
            owners.rows[rank].len() * all <= room,
            "there is room for all columns"
        );
        // SAFETY: the sizes were checked just now.
        unsafe { self.pass(stream, (axis, rank), x.address(), owners, to) }
    }

    /// # Safety
    /// This rank's columns lie at `from`. If this rank owns rows, there is room for the columns
    /// of all ranks at `to`.
    unsafe fn pass(
        &self,
        stream: &Stream,
        (axis, rank): (Axis, usize),
        from: u64,
        owners: Owners<'_>,
        to: u64,
    ) -> Result<(), CudaError> {
        let mut runs = None;
        for one in Exchanged::collect(axis, owners) {
            // All messages are noted, whether they run or not.
            runs = Some(self.note(stream, &one, [from, to]) & runs.unwrap_or(true));
        }
        if runs != Some(true) {
            return Ok(());
        }
        let raw = stream.raw();
        let ask = |nccl: &Library, group| {
            nccl.grouped(|| {
                let mut first = DONE;
                each_part(rank, (from, to), owners, |part| {
                    let Part {
                        comes,
                        peer,
                        at,
                        count,
                    } = part;
                    // SAFETY: the caller answers for this.
                    let code: Code = unsafe {
                        match comes {
                            true => nccl.receive(group, at, count, peer, raw),
                            false => nccl.send(group, at, count, peer, raw),
                        }
                    };
                    first = if first == DONE { code } else { first };
                });
                first
            })
        };
        self.of(axis).ask("ncclSend", ask)
    }

    /// Gives words `told` of the first rank of `axis` to all ranks of it.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    ///
    /// # Panics
    /// Panics if there are fewer words.
    pub(crate) fn tell(
        &self,
        stream: &Stream,
        axis: Axis,
        words: &mut Buffer<u32>,
        told: Range<usize>,
    ) -> Result<(), CudaError> {
        assert!(told.end <= words.len(), "there are words to tell");
        let (at, len) = (words.address() + 4 * told.start as u64, told.len());
        let raw = stream.raw();
        let told = Exchanged::tell(axis, len);
        if !told.is_some_and(|one| self.note(stream, &one, [at, at])) {
            return Ok(());
        }
        // The words go as floats; a broadcast changes no bit of them.
        // SAFETY: the sizes were checked just now.
        let ask =
            |nccl: &Library, group| unsafe { nccl.broadcast(group, (at, at), (len, F32), 0, raw) };
        self.of(axis).ask("ncclBroadcast", ask)
    }

    /// See [`lockstep_backend::Exchange::gather_to_host`]. Logits are gathered from the first
    /// rows of `x`, as many as `owners` name; `x` has `capacity` rows. All ranks wait.
    ///
    /// # Errors
    /// [`BackendError::Collective`], [`BackendError::Device`].
    pub(crate) fn gather_to_host<'a>(
        &mut self,
        stream: &Stream,
        (axis, rank): (Axis, usize),
        (x, capacity): (&Floats, usize),
        owners: Owners<'_>,
        space: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], BackendError> {
        let rows = owners.rows[rank].clone();
        let (width, own) = (owners.widths.iter().sum::<usize>(), owners.widths[rank]);
        x.expect(Element::F32, owners.height() * own, "logits");
        let mut to = 0;
        if !rows.is_empty() {
            self.reserve(stream.context(), capacity.max(rows.len()) * width)?;
            to = self.logits.as_ref().map_or(0, |(all, _)| all.address());
        }
        // SAFETY: room for as many was made just now.
        unsafe { self.pass(stream, (axis, rank), x.address(), owners, to) }?;
        let Some((all, on_host)) = self.logits.as_mut().filter(|_| !rows.is_empty()) else {
            stream.synchronize()?;
            return Ok(&[]);
        };
        let on_host = on_host.as_mut_slice();
        let mut from = 0;
        let mut parts = Vec::with_capacity(owners.widths.len());
        for (peer, &width) in owners.widths.iter().enumerate() {
            let part = from..from + rows.len() * width;
            let to = &mut on_host[part.clone()];
            match peer == rank {
                true => x.download_bytes(
                    stream,
                    rows.start * own * Element::F32.bytes(),
                    bytemuck::cast_slice_mut(to),
                )?,
                false => stream.download_from(all, part.start, to)?,
            }
            from = part.end;
            parts.push(part);
        }
        let parts = Parts::new(parts.len(), |rank| &on_host[parts[rank].clone()]);
        let space = host::grown(space, rows.len() * width);
        for (row, out) in space.chunks_exact_mut(width.max(1)).enumerate() {
            host::copy_row(&parts, owners.widths, row, out);
        }
        Ok(space)
    }
}

/// Calls `ask` with each part that rank `rank` sends or receives. The rank's columns lie at
/// `from`, and received parts are written from `to` on.
fn each_part(rank: usize, (from, to): (u64, u64), owners: Owners<'_>, mut ask: impl FnMut(Part)) {
    let bytes = |floats: usize| (floats * Element::F32.bytes()) as u64;
    for (owner, rows) in owners.rows.iter().enumerate() {
        if owner != rank {
            let width = owners.widths[rank];
            let part = Part {
                comes: false,
                peer: owner,
                at: from + bytes(rows.start * width),
                count: rows.len() * width,
            };
            if part.count > 0 {
                ask(part);
            }
            continue;
        }
        let mut at = to;
        for (peer, width) in owners.widths.iter().enumerate() {
            let count = rows.len() * width;
            let part = Part {
                comes: true,
                peer,
                at,
                count,
            };
            at += bytes(count);
            if peer != rank && count > 0 {
                ask(part);
            }
        }
    }
}
