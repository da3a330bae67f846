//! Allocations that several weight matrices of one size share.
//!
//! The driver gives memory in units of 2 MiB. A rank's part of an expert is often a few MiB large,
//! so that alone it would waste a third of its memory, and a mixture has thousands of them.

use std::sync::{Arc, Weak};

use crate::error::CudaError;
use crate::runtime::{Buffer, Context};
use crate::tensors::{shared_bytes, sharers};

/// Slabs that have room for more matrices.
#[derive(Default)]
pub(super) struct Slabs {
    open: Vec<Slab>,
}

/// Memory of matrices of one size, one behind the other.
struct Slab {
    /// Gone when all of its matrices are.
    memory: Weak<Buffer<u8>>,
    /// Bytes from matrix to matrix.
    each: usize,
    taken: usize,
}

impl Slabs {
    /// Makes room for a matrix of `bytes` bytes.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn room(&mut self, context: &Arc<Context>, bytes: usize) -> Result<Buffer<u8>, CudaError> {
        const WHAT: &str = "a weight matrix";
        let sharers = sharers(bytes);
        if sharers == 1 {
            return Buffer::new(context, bytes, WHAT);
        }
        let each = shared_bytes(bytes);
        let open = self.open.iter_mut().find(|slab| slab.each == each);
        let open = open.filter(|slab| slab.taken < sharers);
        let used = open.and_then(|slab| {
            let memory = slab.memory.upgrade()?;
            slab.taken += 1;
            Some((memory, slab.taken - 1))
        });
        let (memory, place) = match used {
            Some(used) => used,
            None => {
                let memory = Arc::new(Buffer::new(context, sharers * each, WHAT)?);
                self.open.retain(|slab| slab.each != each);
                self.open.push(Slab {
                    memory: Arc::downgrade(&memory),
                    each,
                    taken: 1,
                });
                (memory, 0)
            }
        };
        Ok(Buffer::part_of(memory, place * each, bytes))
    }

    /// Gives no more room in slabs that are there: a model is loaded, and another model's matrices
    /// would keep its slabs alive.
    pub fn close(&mut self) {
        self.open.clear();
    }
}
