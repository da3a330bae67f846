//! The repository's text files, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::Context;

/// Names of directories without our sources, at any depth.
const SKIPPED: [&str; 5] = [
    "target",
    ".git",
    "__pycache__",
    ".venv",
    "proptest-regressions",
];

/// The text files of a repository by their path relative to its root.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
    /// Paths of other files, such as pictures, because documents link to them too.
    others: BTreeSet<String>,
}

/// A broken rule and its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path relative to the root.
    pub path: String,
    /// Line number, from 1; 0 for the file as a whole.
    pub line: usize,
    /// The problem and its remedy.
    pub message: String,
}

impl Tree {
    /// Reads all UTF-8 files below `root`, except in directories such as the build
    /// output.
    ///
    /// # Errors
    ///
    /// Fails if a directory or file can't be read.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        tree.read_below(root, "")?;
        Ok(tree)
    }

    /// Makes a tree of the given paths and texts.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Self {
            files: files.iter().map(own).collect(),
            others: BTreeSet::new(),
        }
    }

    /// Returns the messages of `check` about the files `good`, after `path` was changed
    /// to `text` or removed.
    #[cfg(test)]
    pub(crate) fn changed(
        good: &[(&str, &str)],
        path: &str,
        text: Option<&str>,
        check: impl Fn(&Self) -> Vec<Finding>,
    ) -> Vec<String> {
        let others = good.iter().copied().filter(|(good, _)| *good != path);
        let files: Vec<_> = others.chain(text.map(|text| (path, text))).collect();
        let findings = check(&Self::of(&files));
        findings.iter().map(ToString::to_string).collect()
    }

    /// Returns all paths and texts, sorted by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the text of the file at `path`.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns true if a file is at `path` or below it.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.files
            .keys()
            .chain(&self.others)
            .any(|file| file == path || file.starts_with(&below))
    }

    fn read_below(&mut self, directory: &Path, prefix: &str) -> anyhow::Result<()> {
        let at = || format!("read {}", directory.display());
        for entry in fs::read_dir(directory).with_context(at)? {
            let entry = entry.with_context(at)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type().with_context(at)?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                self.read_below(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                let bytes = fs::read(entry.path()).with_context(|| format!("read {path}"))?;
                match String::from_utf8(bytes) {
                    Ok(text) => {
                        self.files.insert(path, text);
                    }
                    Err(_) => {
                        self.others.insert(path);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Finding {
    /// Makes a finding at a line (from 1; 0 for the whole file).
    pub(crate) fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}
