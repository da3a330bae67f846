//! Content of files that are read and not mapped.

use std::borrow::Cow;

use lockstep_backend::{HostBlock, HostMatrix};

use super::{Safetensors, mapping::MappedFile};
use crate::ModelError;

impl Safetensors {
    /// Returns the content of the files at the place of `bytes`. Where files are mapped, that
    /// is `bytes` itself.
    ///
    /// # Errors
    /// [`ModelError::Read`].
    pub(super) fn bytes<'a>(&self, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, ModelError> {
        let mut read = Vec::new();
        let block = HostBlock {
            bytes,
            offset: 0,
            stride: bytes.len(),
            rows: 1,
        };
        Ok(match self.read(&block, bytes.len(), &mut read)? {
            true => Cow::Owned(read),
            false => Cow::Borrowed(bytes),
        })
    }

    /// Appends the content of a file at the place of `block` to `into`, `width` bytes of each
    /// row. Returns false and reads nothing where files are mapped.
    fn read(
        &self,
        block: &HostBlock<'_>,
        width: usize,
        into: &mut Vec<u8>,
    ) -> Result<bool, ModelError> {
        for file in self.files.iter().filter(|file| file.is_read()) {
            if let Some(read) = file.read(block, width, into) {
                let file = file.path().to_owned();
                read.map_err(|source| ModelError::Read { file, source })?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the used parts of a matrix into `into`, row after row. Returns `None` where
    /// files are mapped, since the matrix can be accessed then.
    ///
    /// # Errors
    /// [`ModelError::Read`]: the file is shorter now, or its disk fails.
    pub(super) fn fetch_rows<'i>(
        &self,
        matrix: &HostMatrix<'_>,
        into: &'i mut Vec<u8>,
    ) -> Result<Option<HostMatrix<'i>>, ModelError> {
        let form = matrix.form();
        let parts = form.parts();
        if parts.iter().all(|(blocks, _)| blocks.is_empty())
            || !self.files.iter().any(MappedFile::is_read)
        {
            return Ok(None);
        }
        into.clear();
        into.reserve_exact(matrix.bytes() as usize);
        for (blocks, stride) in parts {
            for block in blocks {
                // Rows that lie side by side are read at once.
                let (rows, width) = match block.stride == stride {
                    true => (block.rows.min(1), block.rows * stride),
                    false => (block.rows, stride),
                };
                if !self.read(&HostBlock { rows, ..*block }, width, into)? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(form.with_rows(into)))
    }
}
