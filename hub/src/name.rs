//! Names of a model and its version. Both become parts of paths and addresses.

use std::fmt;
use std::path::{Component, Path};

/// A model of the hub: `OWNER/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

/// The most characters of a name, the hub's own limit.
const LONGEST: usize = 96;

impl Name {
    /// Parses a name by the hub's own rules: two words of letters, digits, `-`, `_` and `.`.
    /// A word neither begins nor ends in `-` or `.`, nor has two of them in a row.
    pub fn parse(text: &str) -> Option<Self> {
        let (owner, name) = text.split_once('/')?;
        let is_word = |word: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let outer = |c| c == '-' || c == '.';
            !word.is_empty()
                && word.chars().all(plain)
                && !word.starts_with(outer)
                && !word.ends_with(outer)
                && !word.contains("--")
                && !word.contains("..")
        };
        let fits = text.len() <= LONGEST && is_word(owner) && is_word(name);
        (fits && !name.ends_with(".git")).then(|| Self(text.to_owned()))
    }

    /// The owner, the first word of the name.
    pub fn owner(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }

    /// The name as `OWNER/NAME`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The model's folder in the cache: `models--OWNER--NAME`.
    pub(crate) fn folder(&self) -> String {
        format!("{PREFIX}{}", self.0.replace('/', "--"))
    }

    /// The name of the model that a folder belongs to.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        let (owner, name) = folder.strip_prefix(PREFIX)?.split_once("--")?;
        Self::parse(&format!("{owner}/{name}"))
    }
}

const PREFIX: &str = "models--";

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A branch, a tag or a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(String);

/// A text that can't be a revision.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is no branch, tag or commit of the hub. Give one as the model's page names it, such as \
     main."
)]
pub struct BadRevision(String);

impl Revision {
    /// Parses a revision.
    ///
    /// # Errors
    /// [`BadRevision`] if the text could be no part of a path.
    pub fn parse(text: &str) -> Result<Self, BadRevision> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+".contains(c);
        let parts = || Path::new(text).components();
        let inside = parts().all(|part| matches!(part, Component::Normal(_)));
        let fits = !text.is_empty() && text.len() <= 255 && text.chars().all(plain);
        match fits && inside && !text.ends_with('/') {
            true => Ok(Self(text.to_owned())),
            false => Err(BadRevision(text.to_owned())),
        }
    }

    /// The revision as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true for a whole commit, which never changes.
    pub(crate) fn is_commit(&self) -> bool {
        is_hex(&self.0, 40)
    }
}

impl Default for Revision {
    fn default() -> Self {
        Self("main".to_owned())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if `text` is a hash of `digits` digits, written as git and the hub do.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    let small = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    text.len() == digits && text.chars().all(small)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_hubs() {
        for (text, folder) in [
            ("Qwen/Qwen2.5-0.5B", Some("models--Qwen--Qwen2.5-0.5B")),
            ("a/b_c", Some("models--a--b_c")),
            ("gpt2", None),
            ("a/b/c", None),
            ("/a", None),
            ("a/", None),
            ("./b", None),
            ("../b", None),
            ("a/..", None),
            ("a/b--c", None),
            ("a/b..c", None),
            ("a/-b", None),
            ("a/b.", None),
            ("a/b.git", None),
            ("a/b?c", None),
            ("a/b%2fc", None),
            ("a/ü", None),
        ] {
            let name = Name::parse(text);
            assert_eq!(name.as_ref().map(Name::folder).as_deref(), folder, "{text}");
            let back = folder.and_then(Name::of_folder);
            assert_eq!(back, name, "{text}");
        }
        let long = format!("a/{}", "b".repeat(LONGEST));
        assert_eq!(Name::parse(&long), None);
    }

    #[test]
    fn revisions_stay_inside() {
        for good in ["main", "v1.0", "refs/pr/1", "feature/x", "0123abc"] {
            assert!(Revision::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "..", "a/../b", "/a", "a/", "./a", "a b", "a\\b", "a%2f"] {
            assert!(Revision::parse(bad).is_err(), "{bad}");
        }
        assert!(Revision::parse(&"a".repeat(40)).is_ok_and(|revision| revision.is_commit()));
    }
}
