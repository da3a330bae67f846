//! Selection of a model's files to load.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

use lockstep_files::{LARGEST_CONFIG, LARGEST_INDEX, LARGEST_TOKENIZER, MOST_WEIGHT_FILES, shown};
use serde::Deserialize;

use crate::answer::{ListedFile, Listing};
use crate::{HubError, Name, Revision};

/// The file that describes a model; it is loaded first.
pub(crate) const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";

/// Small files that are read if a model has them.
const DESCRIPTIONS: [&str; 11] = [
    CONFIG,
    "generation_config.json",
    "hf_quant_config.json",
    "quant_config.json",
    "quantize_config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Use of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The model is served: it needs a tokenizer.
    Target,
    /// The model drafts for another: a head has no tokenizer.
    Draft,
}

/// A model that a user asks for.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// The model's name.
    pub name: Name,
    /// The model's version.
    pub revision: Revision,
    /// The model's use.
    pub kind: Kind,
}

/// The files that are loaded first: they describe the model.
///
/// # Errors
/// For a model without weights to serve, before anything is loaded.
pub(crate) fn descriptions(
    wanted: &ModelRequest,
    listing: &Listing,
) -> Result<Vec<ListedFile>, HubError> {
    let has = |name: &str| listing.files.iter().any(|listed| listed.file == name);
    let lacks = |file| HubError::Lacks {
        name: wanted.name.clone(),
        file,
    };
    if !has(SINGLE) && !has(INDEX) {
        return Err(no_safetensors(&wanted.name, listing));
    }
    if !has(CONFIG) {
        return Err(lacks(CONFIG));
    }
    if wanted.kind == Kind::Target && !has(TOKENIZER) {
        return Err(lacks(TOKENIZER));
    }
    let is_one =
        |listed: &&ListedFile| DESCRIPTIONS.contains(&listed.file.as_str()) || listed.file == INDEX;
    let mut files: Vec<_> = listing.files.iter().filter(is_one).cloned().collect();
    files.sort_by_key(|listed| listed.file != CONFIG);
    match files.iter().find(|listed| listed.size > most(&listed.file)) {
        Some(large) => Err(HubError::TooLarge {
            name: wanted.name.clone(),
            file: large.file.clone(),
            size: large.size,
            most: most(&large.file),
        }),
        None => Ok(files),
    }
}

/// The most bytes of a small file that are read.
fn most(file: &str) -> u64 {
    match file {
        TOKENIZER => LARGEST_TOKENIZER,
        INDEX => LARGEST_INDEX,
        _ => LARGEST_CONFIG,
    }
}

fn no_safetensors(name: &Name, listing: &Listing) -> HubError {
    let is_weights = |file: &&String| {
        let extension = Path::new(file).extension().and_then(|end| end.to_str());
        let ends = [
            "bin",
            "gguf",
            "pt",
            "pth",
            "safetensors",
            "onnx",
            "h5",
            "msgpack",
        ];
        extension.is_some_and(|extension| ends.contains(&extension))
    };
    let files = listing.files.iter().map(|listed| &listed.file);
    HubError::NoSafetensors {
        name: name.clone(),
        found: files.filter(is_weights).map(|name| shown(name)).collect(),
    }
}

/// The files of weights: the ones that the index in `folder` names, if there is an index.
///
/// # Errors
/// In words, for an index that is damaged, names files that the model lacks, or names more
/// files than are read.
pub(crate) fn weights(folder: &Path, listing: &Listing) -> Result<Vec<ListedFile>, String> {
    let has_index = listing.files.iter().any(|listed| listed.file == INDEX);
    let names = match has_index {
        true => shards(folder)?,
        false => BTreeSet::from([SINGLE.to_owned()]),
    };
    let find = |name: String| {
        let found = listing.files.iter().find(|listed| listed.file == name);
        found
            .cloned()
            .ok_or(format!("{INDEX} names {name}, which is not there"))
    };
    names.into_iter().map(find).collect()
}

/// Names of files that a server needs and the snapshot lacks. A file in a form that no
/// server reads counts as lacking.
pub(crate) fn lacking(folder: &Path, kind: Kind) -> Vec<String> {
    let mut needed = vec![CONFIG.to_owned()];
    if kind == Kind::Target {
        needed.push(TOKENIZER.to_owned());
    }
    let mut unread = None;
    match lockstep_files::open(folder, INDEX) {
        Err(error) if error.kind() == ErrorKind::NotFound => needed.push(SINGLE.to_owned()),
        _ => match shards(folder) {
            Ok(names) => needed.extend(names),
            Err(_) => unread = Some(INDEX.to_owned()),
        },
    }
    needed.retain(|name| lockstep_files::open(folder, name).is_err());
    needed.extend(unread);
    needed
}

/// Returns true if the small files of a complete snapshot are there too. A model may have
/// none of them. Programs that load single files may have left only one of them.
pub(crate) fn is_described(folder: &Path, kind: Kind) -> bool {
    kind == Kind::Draft || lockstep_files::open(folder, "tokenizer_config.json").is_ok()
}

/// Names of the files in a folder's index.
fn shards(folder: &Path) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let wrong = |why: String| format!("{INDEX}: {why}");
    let text = lockstep_files::read(folder, INDEX, LARGEST_INDEX);
    let text = text.map_err(|error| wrong(error.to_string()))?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    let names: BTreeSet<_> = index.weight_map.into_values().collect();
    if let Some(name) = names.iter().find(|name| !is_plain(name)) {
        return Err(wrong(format!("{name:?} is not a file of safetensors")));
    }
    if names.len() > MOST_WEIGHT_FILES {
        let count = names.len();
        return Err(wrong(format!(
            "it names {count} files, more than {MOST_WEIGHT_FILES}"
        )));
    }
    // Some disks with caches take two names for one if only their case differs.
    let mut of_any_case = BTreeSet::new();
    let is_new = |name: &&String| of_any_case.insert(name.to_ascii_lowercase());
    match names.iter().filter(is_new).count() == names.len() {
        true => Ok(names),
        false => Err(wrong("it names files that differ by case alone".to_owned())),
    }
}

/// Returns true for a name of a file of weights: of characters that need no escaping in
/// paths and addresses, and not too long for file systems.
fn is_plain(name: &str) -> bool {
    const LONGEST: usize = 255;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    name.len() <= LONGEST
        && name.ends_with(".safetensors")
        && !name.starts_with('.')
        && name.chars().all(plain)
}
