//! Layout of a packed file: a header page, the matrices, each at the beginning of a page, the
//! index as JSON, and a footer of fixed size. The footer is last, so a file that was cut off
//! has none.

use blake3::Hash;
use serde::{Deserialize, Serialize};

/// Version of the layout, counted up whenever the layout or the order of matrices changes.
pub(super) const VERSION: u32 = 1;
/// Alignment of matrices, and size of the header, in bytes.
pub(super) const PAGE: u64 = 4096;
/// Bytes under one checksum. One thread reads one segment at a time.
pub(super) const SEGMENT: usize = 4 << 20;
/// Bytes that are read or written, and hashed, while they are in the core's own cache.
pub(super) const PIECE: usize = 256 << 10;
/// Size of the footer.
pub(super) const FOOTER: usize = 64;

const MAGIC: [u8; 16] = *b"lockstep packed\n";

/// Places of the matrices, in the order of loading.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Index {
    pub(super) matrices: Vec<Entry>,
}

/// Size, place and checksums of one matrix.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// BLAKE3 of every [`SEGMENT`] bytes, in hexadecimal.
    pub(super) segments: Vec<String>,
}

/// Place of the index in the file, and the hash of header and index.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) hash: Hash,
}

/// Returns the first page of the file.
pub(super) fn header(key: &Hash) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    page[..16].copy_from_slice(&MAGIC);
    page[16..20].copy_from_slice(&VERSION.to_le_bytes());
    page[32..64].copy_from_slice(key.as_bytes());
    page
}

/// Returns the hash of header and index, which the footer holds.
pub(super) fn hash(key: &Hash, index: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&header(key)).update(index);
    hasher.finalize()
}

impl Footer {
    pub(super) fn to_bytes(&self) -> [u8; FOOTER] {
        let mut bytes = [0; FOOTER];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..48].copy_from_slice(self.hash.as_bytes());
        bytes[48..].copy_from_slice(&MAGIC);
        bytes
    }

    /// Reads a footer. Returns `None` if the magic number is missing.
    pub(super) fn from_bytes(bytes: &[u8; FOOTER]) -> Option<Self> {
        let (offset, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (hash, magic) = rest.split_first_chunk::<32>()?;
        (magic == MAGIC).then(|| Self {
            offset: u64::from_le_bytes(*offset),
            length: u64::from_le_bytes(*length),
            hash: Hash::from_bytes(*hash),
        })
    }
}
