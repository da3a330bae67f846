//! The hub's answer about a model: its commit and its files.

use std::collections::BTreeSet;
use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};

use crate::client::Client;
use crate::name::is_hex;
use crate::progress::EventSink;
use crate::retries::{RequestContext, Retries};
use crate::{HubError, Settings, TransferLimits};

/// The most bytes of a list of files.
const LARGEST_ANSWER: usize = 64 << 20;

/// The most files of a model, more than the hub advises for any repository.
const MOST_FILES: usize = 200_000;

/// Characters of a revision's name that are encoded in an address: slashes too.
const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// A model at one commit.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The commit.
    pub(crate) commit: String,
    pub(crate) files: Vec<ListedFile>,
}

/// One of the model's files.
#[derive(Debug, Clone)]
pub(crate) struct ListedFile {
    pub(crate) file: String,
    pub(crate) size: u64,
    /// SHA-256 of a file in large storage, or git's SHA-1 of a file in git. The etag is the
    /// name of the file's blob in the cache.
    pub(crate) etag: String,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    #[serde(default, deserialize_with = "bounded_list")]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Asks for a model at a revision.
pub(crate) async fn ask(
    client: &Client,
    limits: TransferLimits,
    settings: &Settings,
    context: &RequestContext,
    events: &EventSink,
) -> Result<Listing, HubError> {
    let revision = utf8_percent_encode(context.revision.as_str(), &ENCODED);
    let address = format!(
        "{}/api/models/{}/revision/{revision}?blobs=true",
        settings.endpoint, context.name
    );
    let mut retries = Retries::at_first(limits, events);
    let bytes = loop {
        match client.read(&address, LARGEST_ANSWER).await {
            Ok(bytes) => break bytes,
            Err(failure) => retries.after(failure, context).await?,
        }
    };
    parse(&bytes).map_err(|why| context.wrong(why))
}

fn parse(bytes: &[u8]) -> Result<Listing, String> {
    let answer: Answer = serde_json::from_slice(bytes)
        .map_err(|error| format!("its list of files can't be read: {error}"))?;
    if !is_hex(&answer.sha, 40) {
        return Err(format!("its commit is {:?}", answer.sha));
    }
    let mut names = BTreeSet::new();
    let mut names_of = answer.siblings.iter().map(|sibling| &sibling.rfilename);
    if let Some(twice) = names_of.find(|name| !names.insert(name.as_str())) {
        return Err(format!("{twice} is in its list of files twice"));
    }
    let files = answer.siblings.into_iter().map(|sibling| {
        let (etag, size) = match (sibling.lfs, sibling.blob_id, sibling.size) {
            (Some(lfs), _, _) => (lfs.sha256, lfs.size),
            (None, Some(blob), Some(size)) => (blob, size),
            _ => return Err(format!("{} has no size or no hash", sibling.rfilename)),
        };
        match is_hex(&etag, 64) || is_hex(&etag, 40) {
            true => Ok(ListedFile {
                file: sibling.rfilename,
                size,
                etag,
            }),
            false => Err(format!("the hash of {} is {etag:?}", sibling.rfilename)),
        }
    });
    Ok(Listing {
        commit: answer.sha,
        files: files.collect::<Result<_, _>>()?,
    })
}

/// Reads a list of at most [`MOST_FILES`] files. Without this limit, files could take more
/// memory than the bytes of their text.
fn bounded_list<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<Sibling>, D::Error> {
    struct FileList;
    impl<'de> Visitor<'de> for FileList {
        type Value = Vec<Sibling>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of files")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(one) = list.next_element()? {
                if all.len() == MOST_FILES {
                    let why = format!("it has more than {MOST_FILES} files");
                    return Err(A::Error::custom(why));
                }
                all.push(one);
            }
            Ok(all)
        }
    }
    list.deserialize_seq(FileList)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_git_and_in_large_storage_are_read() {
        let (commit, git, lfs) = ("a".repeat(40), "b".repeat(40), "c".repeat(64));
        let text = format!(
            r#"{{"id": "a/b", "sha": "{commit}", "siblings": [
                {{"rfilename": "config.json", "size": 3, "blobId": "{git}"}},
                {{"rfilename": "model.safetensors", "size": 9, "blobId": "{git}",
                  "lfs": {{"sha256": "{lfs}", "size": 9, "pointerSize": 134}}}}]}}"#
        );
        let listing = parse(text.as_bytes()).expect("read");
        assert_eq!(listing.commit, commit);
        let found: Vec<_> = listing.files.iter().map(|file| &file.etag).collect();
        assert_eq!(found, [&git, &lfs]);
    }

    #[test]
    fn lists_without_an_end_and_names_that_come_twice_are_refused() {
        let (commit, git) = ("a".repeat(40), "b".repeat(40));
        let list = |names: &mut dyn Iterator<Item = String>| {
            let files: Vec<_> = names
                .map(|name| format!(r#"{{"rfilename":"{name}","size":1,"blobId":"{git}"}}"#))
                .collect();
            let text = format!(r#"{{"sha":"{commit}","siblings":[{}]}}"#, files.join(","));
            parse(text.as_bytes())
        };
        let listing = list(&mut (0..MOST_FILES).map(|at| at.to_string())).expect("read");
        assert_eq!(listing.files.len(), MOST_FILES);
        let why = list(&mut (0..=MOST_FILES).map(|at| at.to_string())).expect_err("many");
        assert!(why.contains("more than 200000 files"), "{why}");
        let why = list(&mut ["a", "b", "a"].map(str::to_owned).into_iter()).expect_err("twice");
        assert!(why.contains("a is in its list of files twice"), "{why}");
    }

    #[test]
    fn hashes_that_are_paths_are_refused() {
        for text in [
            r#"{"sha": "main"}"#.to_owned(),
            format!(r#"{{"sha": "{}/../"}}"#, "a".repeat(36)),
            format!(
                r#"{{"sha": "{}", "siblings": [{{"rfilename": "a", "size": 1, "blobId": "../x"}}]}}"#,
                "a".repeat(40)
            ),
            format!(
                r#"{{"sha": "{}", "siblings": [{{"rfilename": "a"}}]}}"#,
                "a".repeat(40)
            ),
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
