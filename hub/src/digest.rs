//! The hashes by which the hub names files.

use std::fmt::Write;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::name::is_hex;

/// A running hash of a file's bytes.
#[derive(Clone)]
pub(crate) enum BlobHash {
    /// Hash of a large file: SHA-256 of its bytes.
    Sha256(Box<Sha256>),
    /// Hash of a file in git: SHA-1 of git's `blob SIZE\0`, then of the file's bytes.
    Git(Box<Sha1>),
}

impl BlobHash {
    /// The hash of the kind of `etag`, for a file of `size` bytes; `None` for other kinds.
    pub(crate) fn for_etag(etag: &str, size: u64) -> Option<Self> {
        if is_hex(etag, 64) {
            return Some(Self::Sha256(Box::default()));
        }
        is_hex(etag, 40).then(|| {
            let mut hash = Sha1::new();
            hash.update(format!("blob {size}\0"));
            Self::Git(Box::new(hash))
        })
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
        }
    }

    /// The hash of the bytes so far, in hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::Git(hash) => hex(&hash.finalize()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hashes that `git hash-object` and `sha256sum` print for `hello\n`.
    #[test]
    fn hashes_are_gits_and_sha256sums() {
        for etag in [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ] {
            let mut hash = BlobHash::for_etag(etag, 6).expect("a hash");
            hash.update(b"hel");
            hash.update(b"lo\n");
            assert_eq!(hash.finish(), etag);
        }
        assert!(BlobHash::for_etag("../../etc", 1).is_none());
        assert!(BlobHash::for_etag(&"A".repeat(40), 1).is_none());
    }
}
