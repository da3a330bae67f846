//! Notes that ranks exchange as a pass begins.

use lockstep_backend::{BackendError, ExchangeNotes, NoteShape, Notes};

use super::CudaBackend;
use crate::exchange::NoteRoom;

impl ExchangeNotes for CudaBackend {
    fn prepare(&mut self, shape: NoteShape) -> Result<(), BackendError> {
        if self.notes.as_ref().is_none_or(|room| room.shape() != shape) {
            // Recorded passes name the old room.
            self.rooms += 1;
            let (stream, planes) = (&self.stream, &self.exchange);
            self.notes = Some(NoteRoom::new(stream, &self.compiler, planes, shape)?);
        }
        Ok(())
    }

    fn bring(&mut self, words: &[u32]) -> Result<(), BackendError> {
        if let Some(room) = &mut self.notes {
            room.bring(&self.stream, words)?;
        }
        Ok(())
    }

    fn exchange(&mut self) -> Result<(), BackendError> {
        self.failures()?;
        if let Some(room) = &mut self.notes {
            room.exchange(&self.stream, &self.exchange)?;
        }
        Ok(())
    }

    fn came(&mut self) -> Notes<'_> {
        self.notes.as_mut().map_or(Notes::default(), NoteRoom::came)
    }
}
