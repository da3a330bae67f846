//! What ranks note as a pass begins: gathered and compared on the device, in the pass's
//! own order, and there on the host when the pass has been waited for.

use lockstep_backend::{Axis, NoteShape, Notes};

use bytemuck::{Pod, Zeroable};

use crate::compiler::Compiler;
use crate::error::CudaError;
use crate::memory::{Buffer, Pinned};
use crate::module::{Kernel, Module};
use crate::planes::Planes;
use crate::sources;
use crate::stream::Stream;

/// Room for the notes of all ranks, and what compares them. Recorded passes name it, so
/// that it stays for as long as they may be repeated.
pub(crate) struct NoteRoom {
    shape: NoteShape,
    ranks: usize,
    dp_rank_size: usize,
    compare: Kernel<CompareNotes>,
    // Before what is copied from and to: giving them back waits for the device.
    sent: Buffer<u32>,
    /// All ranks', and behind them whether they differ.
    all: Buffer<u32>,
    /// This rank's, from where a pass takes it.
    own: Pinned<u32>,
    came: Pinned<u32>,
    /// A note was brought, and nobody has looked at what came of it.
    on_its_way: bool,
}

impl NoteRoom {
    /// Of the ranks of `planes`.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and those of compiling the kernel.
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
        // Before a pass has brought any, they don't differ.
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

    /// Sets this rank's note; waits for a pass that failed, which may be taking the last
    /// one still.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Peers`].
    ///
    /// # Panics
    /// If it has another length.
    pub(crate) fn bring(&mut self, stream: &Stream, words: &[u32]) -> Result<(), CudaError> {
        if self.on_its_way {
            stream.synchronize()?;
        }
        self.on_its_way = true;
        self.own.as_mut_slice().copy_from_slice(words);
        Ok(())
    }

    /// Where the device keeps whether those of the last pass differ: a word.
    pub(crate) fn differs(&self) -> u64 {
        self.all.address() + 4 * (self.ranks * self.shape.words) as u64
    }

    /// Queues all of it.
    ///
    /// # Errors
    /// [`CudaError::Nccl`], [`CudaError::Driver`].
    pub(crate) fn exchange(&mut self, stream: &Stream, planes: &Planes) -> Result<(), CudaError> {
        let (shape, ranks, differs) = (self.shape, self.ranks, self.differs());
        // SAFETY: the host changes a note, and looks at what came, only where the stream
        // has been waited for; both lie as long as passes that name them are repeated.
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

    /// What has come.
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

/// What is compiled.
pub(crate) const SOURCE: &crate::compiler::Source = &sources::NOTES;

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
