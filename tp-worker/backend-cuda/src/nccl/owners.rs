//! What some ranks alone get of what all have: columns of logits, and from one of them
//! what became of these.

use std::ops::Range;

use lockstep_backend::{Axis, BackendError, Exchanged, Owners, host};
use lockstep_collective::Parts;

use super::library::{Code, DONE, F32, Library};
use super::plane::Plane;
use crate::error::CudaError;
use crate::floats::{Element, Floats};
use crate::memory::Buffer;
use crate::stream::Stream;

/// A part of a rank's columns, on its way.
struct Part {
    /// It comes from the peer, or else goes there.
    comes: bool,
    peer: usize,
    at: u64,
    count: usize,
}

impl Plane {
    /// Brings rows of all ranks' columns, of which `x` are this one's, to those that own
    /// them: to `parts`, `[rows, columns]` of one rank behind the other. Its own, which it
    /// has, are left out there.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    ///
    /// # Panics
    /// If there is no room, or none for a rank that owns rows.
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
        // SAFETY: as was checked just now.
        unsafe { self.pass(stream, (axis, rank), x.address(), owners, to) }
    }

    /// # Safety
    /// There are this rank's columns at the first place, and where it owns rows there is
    /// room for those of all ranks at the second.
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
            // All are taken down, whether they are run or not.
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
                    // SAFETY: the caller's.
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

    /// Gives all ranks of `axis` those of the words of its first one that are to be `told`.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    ///
    /// # Panics
    /// If there are not as many.
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
        // They go as floats, of which a broadcast changes no bit.
        // SAFETY: as was checked just now.
        let ask =
            |nccl: &Library, group| unsafe { nccl.broadcast(group, (at, at), (len, F32), 0, raw) };
        self.of(axis).ask("ncclBroadcast", ask)
    }

    /// See [`lockstep_backend::Backend::gather_to_host`]; the first rows of `x`, as
    /// many as `owners` name, are what logits are gathered from, and it has `capacity`
    /// rows. All ranks wait.
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
        // SAFETY: there is room for as many, as was seen to just now.
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

/// What rank `rank`, which has its columns at the first place, sends to those that own
/// rows, and receives at the second.
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
