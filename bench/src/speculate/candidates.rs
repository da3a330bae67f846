//! The algorithms that are measured, and the folders that they draft with.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lockstep_config::args::SpeculationArgs;
use lockstep_model_folder::Described;
use lockstep_types::ConfigError;

/// An algorithm and the folder it drafts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the algorithm, in the form of `--speculative-algorithm`.
    pub name: String,
    /// Folder of the draft model; `None` if the algorithm needs none, or it lies beside the
    /// model.
    pub folder: Option<PathBuf>,
}

/// The algorithm that drafts with a layer of the model's own.
const OWN: &str = "NEXTN";

/// Algorithms that draft with a folder, and the ending of its name after the model's name.
const BESIDE: [(&str, &str); 4] = [
    ("EAGLE3", "-eagle3"),
    ("EAGLE", "-eagle"),
    ("STANDALONE", "-draft"),
    ("DFLASH", "-dflash"),
];

impl FromStr for Candidate {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (name, folder) = match text.split_once('=') {
            Some((name, folder)) => (name, Some(PathBuf::from(folder))),
            None => (text, None),
        };
        Ok(Self {
            name: name.to_ascii_uppercase(),
            folder,
        })
    }
}

/// The algorithm that the options of speculation name.
pub fn named(args: &SpeculationArgs) -> Option<Candidate> {
    let name = args.speculative_algorithm.as_ref()?.to_ascii_uppercase();
    let folder = args.speculative_draft_model_path.clone();
    Some(Candidate { name, folder })
}

/// The algorithms to measure: `named`, if it is given, else the `asked` ones, else the model's
/// own draft layer, if it has one, and all algorithms with a folder beside the model.
///
/// # Errors
/// Fails when a folder is not in its place, or there is nothing to draft with at all.
pub fn choose(
    asked: &[Candidate],
    named: Option<Candidate>,
    model: &Path,
) -> Result<Vec<Candidate>, ConfigError> {
    if let Some(candidate) = named {
        return Ok(vec![candidate]);
    }
    let found = |(name, suffix): (&str, &str)| {
        let folder = beside(model, suffix);
        folder.is_dir().then(|| Candidate {
            name: name.to_owned(),
            folder: Some(folder),
        })
    };
    if asked.is_empty() {
        let own = Described::of(model).is_ok_and(|described| described.own_draft);
        let own = own.then(|| Candidate {
            name: OWN.to_owned(),
            folder: None,
        });
        let beside = BESIDE.into_iter().filter_map(found);
        let all: Vec<Candidate> = own.into_iter().chain(beside).collect();
        if all.is_empty() {
            return Err(ConfigError::Usage(format!(
                "nothing beside {} to draft with; name it: --algorithms eagle3=FOLDER",
                model.display()
            )));
        }
        return Ok(all);
    }
    let complete = |asked: &Candidate| {
        let known = BESIDE.into_iter().find(|(name, _)| *name == asked.name);
        match (known, &asked.folder) {
            (Some(known), None) => found(known).ok_or_else(|| {
                ConfigError::Usage(format!(
                    "{} has no folder {}; name it: --algorithms {}=FOLDER",
                    asked.name,
                    beside(model, known.1).display(),
                    asked.name.to_ascii_lowercase()
                ))
            }),
            _ => Ok(asked.clone()),
        }
    };
    asked.iter().map(complete).collect()
}

fn beside(model: &Path, suffix: &str) -> PathBuf {
    let mut name = model.file_name().map_or_else(OsString::new, OsString::from);
    name.push(suffix);
    model.with_file_name(name)
}
