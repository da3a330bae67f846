//! Models and files of the loopback hub.

use std::collections::BTreeMap;
use std::fmt::Write;

use bytes::Bytes;
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// Files by model.
#[derive(Default)]
pub(crate) struct Models {
    files: BTreeMap<String, BTreeMap<String, Bytes>>,
    /// Sizes that the hub claims for files.
    claimed: BTreeMap<String, u64>,
}

/// The commit of a model's branch `main`.
pub fn commit(name: &str) -> String {
    hex(&Sha1::digest(name))
}

/// Returns true if a file lies in large storage, on the other port.
pub(crate) fn is_large(file: &str) -> bool {
    file.ends_with(".safetensors")
}

impl Models {
    pub(crate) fn add(&mut self, name: &str, files: &[(&str, &[u8])]) {
        let owned =
            |(name, content): &(&str, &[u8])| ((*name).to_owned(), Bytes::copy_from_slice(content));
        self.files
            .insert(name.to_owned(), files.iter().map(owned).collect());
    }

    pub(crate) fn claim(&mut self, file: &str, size: u64) {
        self.claimed.insert(file.to_owned(), size);
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    pub(crate) fn file(&self, name: &str, file: &str) -> Option<Bytes> {
        self.files.get(name)?.get(file).cloned()
    }

    /// The list of a model's files, in the hub's format with `blobs=true`.
    pub(crate) fn list(&self, name: &str) -> Option<Value> {
        let sibling = |(file, content): (&String, &Bytes)| {
            let git = hex(&Sha1::digest(
                [format!("blob {}\0", content.len()).as_bytes(), content].concat(),
            ));
            let claimed = self.claimed.get(file).copied();
            let size = claimed.unwrap_or(content.len() as u64);
            let mut sibling = json!({"rfilename": file, "size": size, "blobId": git});
            if is_large(file) {
                let sha256 = hex(&Sha256::digest(content));
                sibling["lfs"] = json!({"sha256": sha256, "size": size, "pointerSize": 1});
            }
            sibling
        };
        let files = self.files.get(name)?;
        let siblings: Vec<_> = files.iter().map(sibling).collect();
        Some(json!({"id": name, "sha": commit(name), "gated": false, "siblings": siblings}))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
