//! Meaning of a path on the command line that leads to no folder.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::Name;

/// A model of the hub.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HubModel {
    pub(crate) name: Name,
    /// True if there is a folder called like the model's owner: a folder inside may be
    /// meant.
    pub(crate) owner_is_here: bool,
}

impl HubModel {
    /// The model that `path` may name. The path leads to no folder, seen from the folder
    /// `here`.
    ///
    /// # Errors
    /// The reason why `path` is no name, in words, and the part of it that is missing or
    /// can't be looked at.
    pub(crate) fn by(path: &Path, here: &Path) -> Result<Self, String> {
        if here.join(path).exists() {
            return Err(
                "it is a file, and a model is a folder with config.json, safetensors and \
                 tokenizer.json. Name the folder."
                    .to_owned(),
            );
        }
        if let Some((part, error)) = unseen(path, here) {
            return Err(format!(
                "the system says of {}: {error}. Let this user look there, or name another folder.",
                part.display()
            ));
        }
        let text = path.to_string_lossy();
        let Some(name) = path.to_str().and_then(Name::parse) else {
            let is_tilde = text.starts_with('~');
            let tilde = if is_tilde {
                " A shell puts the home folder in place of ~ at the beginning of a word alone: \
                 write it out."
            } else {
                ""
            };
            return Err(format!(
                "{}. It is taken for a path, as {}, and not for a model of the hub, which is named \
                 OWNER/NAME.{tilde}",
                not_there(path, here),
                why_path(&text)
            ));
        };
        let owner_is_here = here.join(name.owner()).is_dir();
        Ok(Self {
            name,
            owner_is_here,
        })
    }

    /// The message for a path that is taken for a folder.
    pub(crate) fn but_a_folder(&self) -> String {
        let (name, owner) = (&self.name, self.name.owner());
        format!(
            "there is no such folder. It is taken for a path, as there is a folder {owner}; if \
             the model {name} of the hub is meant, `lockstep pull {name}` loads it, and from then \
             on this is its name."
        )
    }
}

/// A path and the folders above it, the outermost first.
fn parts(path: &Path) -> impl Iterator<Item = &Path> {
    let parts: Vec<_> = path.ancestors().collect();
    let parts = parts.into_iter().rev();
    parts.filter(|part| !part.as_os_str().is_empty())
}

/// The part of a path that can't be looked at, and the system's error. If nobody may look
/// from `here`, a name stands for no folder.
fn unseen<'a>(path: &'a Path, here: &Path) -> Option<(&'a Path, io::Error)> {
    let (part, error) = parts(path).find_map(|part| {
        let error = here.join(part).metadata().err()?;
        let is_missing = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
        (!is_missing).then_some((part, error))
    })?;
    let name = path.to_str().and_then(Name::parse);
    let is_owner = name.is_some_and(|name| part == Path::new(name.owner()));
    let is_there = here.join(part).symlink_metadata().is_ok();
    (is_there || !is_owner).then_some((part, error))
}

/// Message about the part of a path that is missing.
fn not_there(path: &Path, here: &Path) -> String {
    let missing = parts(path).find(|part| !here.join(part).exists());
    match missing.filter(|missing| *missing != path) {
        Some(missing) => {
            let missing: PathBuf = missing.components().collect();
            format!(
                "there is no such folder, for there is no {}",
                missing.display()
            )
        }
        None => "there is no such folder".to_owned(),
    }
}

/// The reason why a text is no name of the hub.
fn why_path(text: &str) -> String {
    let begins = ["/", "./", "../", "~"];
    let begin = begins.iter().find(|begin| text.starts_with(**begin));
    match (begin, text.matches('/').count()) {
        (Some(begin), _) => format!("it begins with {begin}"),
        (_, _) if text.ends_with('/') => "it ends in /".to_owned(),
        (_, 0) => "it has no /".to_owned(),
        (_, 1) => "it has what no name of the hub has".to_owned(),
        (_, _) => "it has more than one /".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn what_can_be_no_name_is_a_folder_that_is_missing() {
        let here = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(here.path().join("models")).expect("made");
        std::fs::write(here.path().join("model.gguf"), "").expect("written");
        for (path, words) in [
            (
                "./modls/foo",
                ["for there is no ./modls.", "begins with ./,"],
            ),
            ("./models/foo", ["no such folder. ", "begins with ./,"]),
            ("../modls/foo", ["no ../modls.", "begins with ../,"]),
            ("/no-models/foo", ["no /no-models.", "begins with /,"]),
            ("~/models/foo", ["for there is no ~.", "write it out"]),
            ("models/foo/", ["no such folder. ", "ends in /,"]),
            ("foo", ["no such folder. ", "has no /,"]),
            (
                "models/a/b",
                ["for there is no models/a.", "more than one /,"],
            ),
            ("models/a b", ["no such folder. ", "no name of the hub has"]),
            ("model.gguf", ["it is a file", "Name the folder"]),
        ] {
            let why = HubModel::by(Path::new(path), here.path()).expect_err(path);
            assert!(words.iter().all(|word| why.contains(word)), "{path}: {why}");
        }
    }

    #[test]
    fn what_may_not_be_looked_at_is_not_called_missing() {
        let here = tempfile::tempdir().expect("a folder");
        symlink("loop", here.path().join("loop")).expect("linked");
        let locked = here.path().join("locked");
        std::fs::create_dir(&locked).expect("made");
        std::fs::set_permissions(&locked, Permissions::from_mode(0o0)).expect("set");
        let long = format!("./{}", "n".repeat(300));
        let mut rows = vec![
            ("./loop/foo", "of ./loop: Too many levels"),
            ("loop/foo", "of loop: Too many levels"),
            (&long, "File name too long"),
        ];
        // Root may look into every folder.
        if std::fs::read_dir(&locked).is_err() {
            rows.push(("./locked/a/b", "of ./locked/a: Permission denied"));
            rows.push(("locked/foo", "of locked/foo: Permission denied"));
        }
        for (path, words) in rows {
            let why = HubModel::by(Path::new(path), here.path()).expect_err(path);
            assert!(why.contains(words), "{path}: {why}");
            assert!(!why.contains("no such folder"), "{path}: {why}");
        }
        // If nobody may look, a name is the hub's.
        if std::fs::read_dir(&locked).is_err() {
            let meant = HubModel::by(Path::new("owner/name"), &locked).expect("a name");
            assert!(!meant.owner_is_here);
        }
    }

    #[test]
    fn a_name_may_be_that_of_a_folder_too() {
        let here = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(here.path().join("models")).expect("made");
        for (path, owner_is_here) in [("models/foo", true), ("others/foo", false)] {
            let meant = HubModel::by(Path::new(path), here.path()).expect("a name");
            assert_eq!(
                (meant.name.as_str(), meant.owner_is_here),
                (path, owner_is_here)
            );
        }
    }
}
