//! Notes that ranks exchange as a pass begins. The device gathers and compares them in the
//! pass's own order, and the host has them when it has waited for the pass.

use lockstep_backend::{Axis, NoteShape, Notes};

use bytemuck::{Pod, Zeroable};

use super::Planes;
use crate::error::CudaError;
use crate::kernels::{self, Source};
use crate::runtime::{Buffer, Compiler, Kernel, Module, Pinned, Stream};

/// Room for the notes of all ranks, and the kernel that compares them. Recorded passes name the
/// room, so it lives as long as they may be repeated.
pub(crate) struct NoteRoom {
    shape: NoteShape,
    ranks: usize,
    dp_rank_size: usize,
    compare: Kernel<CompareNotes>,
    // Dropped before the pinned memory of their copies: freeing device memory waits for the
    // device.
    sent: Buffer<u32>,
    /// Notes of all ranks, and behind them a word that says whether they differ.
    all: Buffer<u32>,
    /// This rank's note, from where a pass copies it.
    own: Pinned<u32>,
    came: Pinned<u32>,
    /// True from when a note was brought until its result is read.
    on_its_way: bool,
}

impl NoteRoom {
    /// Makes room for the ranks of `planes`.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the errors of compiling the kernel.
    pub(crate) fn new(
        stream: &Stream,
        compiler: &Compiler,
        planes: &Planes,
        shape: NoteShape,
    ) -> Result<Self, CudaError> {
        let context = stream.context();
        let (_, ranks) = planes.rank_and_size(Axis::World);
        let (_, dp_rank_size) = planes.rank_and_size(Axis::Attention);
        let module = Module::load(context, &compiler.compile(SOURCE, &[])?)?;
        let len = ranks * shape.words + 1;
        let mut all = Buffer::new(context, len, WHAT)?;
        // Notes don't differ before a pass has brought any.
        stream.fill(&mut all, 0)?;
        Ok(Self {
            shape,
            ranks,
            dp_rank_size,
            compare: module.kernel("compare_notes", 32, 0)?,
            sent: Buffer::new(context, shape.words, WHAT)?,
            all,
            own: Pinned::new(context, shape.words, WHAT)?,
            came: Pinned::new(context, len, WHAT)?,
            on_its_way: false,
        })
    }

    pub(crate) fn shape(&self) -> NoteShape {
        self.shape
    }

    /// Sets this rank's note. After a failed pass it waits first, since that pass may still be
    /// copying the last note.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Peers`].
    ///
    /// # Panics
    /// Panics if the note has another length.
    pub(crate) fn bring(&mut self, stream: &Stream, words: &[u32]) -> Result<(), CudaError> {
        if self.on_its_way {
            stream.synchronize()?;
        }
        self.on_its_way = true;
        self.own.as_mut_slice().copy_from_slice(words);
        Ok(())
    }

    /// Device address of the word that says whether the notes of the last pass differ.
    pub(crate) fn differs(&self) -> u64 {
        self.all.address() + 4 * (self.ranks * self.shape.words) as u64
    }

    /// Queues the copies, the gather and the comparison.
    ///
    /// # Errors
    /// [`CudaError::Nccl`], [`CudaError::Driver`].
    pub(crate) fn exchange(&mut self, stream: &Stream, planes: &Planes) -> Result<(), CudaError> {
        let (shape, ranks, differs) = (self.shape, self.ranks, self.differs());
        // SAFETY: the host changes its note, and looks at the result, only after it has waited
        // for the stream; both live as long as passes that name them are repeated.
        unsafe { stream.repeat_upload(&self.own, &mut self.sent) }?;
        planes.gather_words(stream, &self.sent, &mut self.all)?;
        let parameters = CompareNotes {
            all: self.all.address(),
            differs,
            ranks: ranks as u32,
            words: shape.words as u32,
            shared: shape.shared as u32,
            of_dp_rank: shape.of_dp_rank as u32,
            dp_rank_size: self.dp_rank_size as u32,
            pad: 0,
        };
        // SAFETY: there are the notes of all ranks, and a word behind them.
        unsafe { self.compare.launch(stream, [1, 1, 1], &parameters) }?;
        // SAFETY: as above.
        unsafe { stream.repeat_download(&self.all, &mut self.came) }
    }

    /// The notes of the last pass, after the wait for it.
    pub(crate) fn came(&mut self) -> Notes<'_> {
        self.on_its_way = false;
        let came = self.came.as_slice();
        let (words, differs) = came.split_at(self.ranks * self.shape.words);
        Notes {
            words,
            differ: differs != [0],
        }
    }
}

const WHAT: &str = "ranks' notes";

/// Source to compile.
pub(crate) const SOURCE: &Source = &kernels::NOTES;

/// `Notes` of `notes.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct CompareNotes {
    all: u64,
    differs: u64,
    ranks: u32,
    words: u32,
    shared: u32,
    of_dp_rank: u32,
    dp_rank_size: u32,
    pad: u32,
}
