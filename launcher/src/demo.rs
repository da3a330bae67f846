//! The demo model inside the program, and the head that drafts for it.

use std::io;
use std::path::{Path, PathBuf};

use lockstep_config::args::SpeculationArgs;
use lockstep_types::Algorithms;

/// The model's name in the API.
pub(crate) const NAME: &str = "lockstep-demo-7m";
/// Ranks that serve the demo model: two, to show the program's purpose.
pub(crate) const TP_SIZE: usize = 2;

/// The algorithm with which the demo model drafts.
const ALGORITHM: &str = "EAGLE3";

macro_rules! file {
    ($folder:literal, $name:literal) => {
        (
            $name,
            include_bytes!(concat!("../../models/", $folder, "/", $name)).as_slice(),
        )
    };
}

/// Name and content of each file of a folder.
type Files = &'static [(&'static str, &'static [u8])];

const MODEL: Files = &[
    file!("lockstep-demo-7m", "config.json"),
    file!("lockstep-demo-7m", "generation_config.json"),
    file!("lockstep-demo-7m", "model.safetensors"),
    file!("lockstep-demo-7m", "tokenizer.json"),
    file!("lockstep-demo-7m", "tokenizer_config.json"),
];

const HEAD: Files = &[
    file!("lockstep-demo-7m-eagle3", "config.json"),
    file!("lockstep-demo-7m-eagle3", "model.safetensors"),
];

/// Writes the model into a folder of its own below `parent` and returns this folder.
///
/// # Errors
/// Fails when a folder or file can't be written below `parent`.
pub(crate) fn unpack(parent: &Path) -> io::Result<PathBuf> {
    write(parent.join(NAME), MODEL)
}

/// Writes the model like [`unpack`], with the head that drafts for it beside it.
///
/// # Errors
/// Fails when a folder or file can't be written below `parent`.
pub(crate) fn unpack_family(parent: &Path) -> io::Result<PathBuf> {
    write(head(parent), HEAD)?;
    unpack(parent)
}

/// Folder of the head, with the name that ties it to the model.
fn head(parent: &Path) -> PathBuf {
    parent.join(format!("{NAME}-eagle3"))
}

/// Lets the demo model speculate with its own EAGLE-3 head if the program knows the
/// algorithm and the user asks for nothing else: either the algorithm's option is missing,
/// or it names EAGLE3 without a head. Unless a depth is asked for, the depth adapts, since
/// drafts of such a small model cost as much as they bring. Writes the head below `parent`;
/// returns true if it did.
///
/// # Errors
/// Fails when a folder or file can't be written below `parent`.
pub(crate) fn speculate(
    args: &mut SpeculationArgs,
    algorithms: &Algorithms,
    parent: &Path,
) -> io::Result<bool> {
    let named = args.speculative_algorithm.as_deref();
    let wanted = named.is_none_or(|name| name.eq_ignore_ascii_case(ALGORITHM));
    if !wanted
        || args.speculative_draft_model_path.is_some()
        || algorithms.find(ALGORITHM).is_none()
    {
        return Ok(false);
    }
    args.speculative_algorithm = Some(ALGORITHM.to_owned());
    if args.speculative_num_steps.is_none() && args.speculative_num_draft_tokens.is_none() {
        args.speculative_adaptive.get_or_insert(true);
    }
    let folder = write(head(parent), HEAD)?;
    args.speculative_draft_model_path = Some(folder);
    Ok(true)
}

fn write(folder: PathBuf, files: Files) -> io::Result<PathBuf> {
    std::fs::create_dir(&folder)?;
    for (name, content) in files {
        std::fs::write(folder.join(name), content)?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use lockstep_config::args::SpeculationArgs;
    use lockstep_types::{Algorithms, DraftKind, Eagle3Norms};

    use crate::settings::tests::algorithms;

    #[test]
    fn the_model_inside_is_complete() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = super::unpack(parent.path()).expect("unpacked");
        let model = lockstep_model_folder::load(&folder).expect("a served model");
        assert_eq!((model.layers.len(), model.vocab_size), (7, 4096));
        assert_eq!(model.eos_token_ids, [2]);
    }

    #[test]
    fn the_head_inside_is_complete_and_the_models_own() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let model = super::unpack(parent.path()).expect("unpacked");
        let model = lockstep_model_folder::load(&model).expect("a served model");
        let mut args = SpeculationArgs::default();
        let done = super::speculate(&mut args, &algorithms(), parent.path()).expect("unpacked");
        assert!(done);
        let folder = args.speculative_draft_model_path.expect("named");
        let head = lockstep_model_folder::draft::eagle3(&folder, &model).expect("a head that fits");
        let expected = DraftKind::Eagle3 {
            draft_vocab_size: 1024,
            capture_layers: vec![2, 3, 4],
            norms: Eagle3Norms::default(),
        };
        assert_eq!(head.kind, expected);
    }

    #[test]
    fn a_depth_that_is_asked_for_stays() {
        for (steps, tokens, switch, adapts) in [
            (None, None, None, Some(true)),
            (None, None, Some(false), Some(false)),
            (Some(2), None, None, None),
            (None, Some(3), None, None),
            (Some(2), None, Some(true), Some(true)),
        ] {
            let parent = tempfile::tempdir().expect("a temporary folder");
            let mut args = SpeculationArgs {
                speculative_num_steps: steps,
                speculative_num_draft_tokens: tokens,
                speculative_adaptive: switch,
                ..SpeculationArgs::default()
            };
            super::speculate(&mut args, &algorithms(), parent.path()).expect("unpacked");
            assert_eq!(args.speculative_adaptive, adapts, "{steps:?} {tokens:?}");
        }
    }

    #[test]
    fn what_is_asked_for_comes_first() {
        let path = || Some(PathBuf::from("head"));
        // (algorithm, head, known algorithms, true if its own head drafts)
        for (name, head, known, own) in [
            (None, None, algorithms(), true),
            (None, None, Algorithms::default(), false),
            (None, path(), algorithms(), false),
            (Some("eagle3"), None, algorithms(), true),
            (Some("EAGLE3"), path(), algorithms(), false),
            (Some("none"), None, algorithms(), false),
            (Some("NGRAM"), None, algorithms(), false),
        ] {
            let parent = tempfile::tempdir().expect("a temporary folder");
            let mut args = SpeculationArgs {
                speculative_algorithm: name.map(str::to_owned),
                speculative_draft_model_path: head.clone(),
                ..SpeculationArgs::default()
            };
            let done = super::speculate(&mut args, &known, parent.path()).expect("unpacked");
            assert_eq!(done, own, "{name:?} {head:?}");
            let expected = if own { Some("EAGLE3") } else { name };
            assert_eq!(args.speculative_algorithm.as_deref(), expected);
            let folder = own
                .then(|| parent.path().join("lockstep-demo-7m-eagle3"))
                .or(head);
            assert_eq!(args.speculative_draft_model_path, folder);
            assert_eq!(args.speculative_adaptive, own.then_some(true));
            assert!(!own || Path::exists(&parent.path().join("lockstep-demo-7m-eagle3")));
        }
    }
}
