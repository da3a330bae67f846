//! File with the depths that an operator allows. The file is in the launcher's private folder,
//! which lives as long as the server, whichever process is started anew.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use lockstep_adaptive::DepthRange;

/// The file with the range.
pub struct DepthRangeFile {
    path: PathBuf,
}

impl DepthRangeFile {
    /// Makes the file's handle; reads nothing.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads the last stored range. Returns every depth if none was stored.
    ///
    /// # Errors
    /// An error if the file can't be read.
    pub fn load(&self) -> io::Result<DepthRange> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DepthRange::default()),
            Err(error) => Err(error),
        }
    }

    /// Stores `range`, whole or not at all.
    ///
    /// # Errors
    /// An error if the file can't be written. The range stored before stays then.
    pub fn store(&self, range: DepthRange) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(&range)?)?;
        fs::rename(&fresh, &self.path)
    }

    /// Returns the path, for people.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_last_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = DepthRangeFile::new(folder.path().join("depth-range.json"));
        assert_eq!(kept.load().expect("nothing"), DepthRange::default());
        for (least, most) in [(2, 2), (0, 3), (0, u32::MAX)] {
            let range = DepthRange { least, most };
            kept.store(range).expect("written");
            assert_eq!(kept.load().expect("kept"), range);
        }
        fs::write(kept.path(), "{").expect("written");
        assert!(kept.load().is_err());
        let nowhere = DepthRangeFile::new(folder.path().join("none").join("such"));
        assert!(nowhere.store(DepthRange::default()).is_err());
    }
}
