//! The repository's text files, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::Context;

/// Directories that hold no source of ours, wherever they are.
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
    /// Files that are no text, such as pictures: documents point to them too.
    others: BTreeSet<String>,
}

/// Something wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path relative to the root.
    pub path: String,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Tree {
    /// Reads all UTF-8 files below `root`, except build output and the like.
    ///
    /// # Errors
    /// When a directory or file can't be read.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        tree.read_below(root, "")?;
        Ok(tree)
    }

    /// A tree of given paths and texts.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Self {
            files: files.iter().map(own).collect(),
            others: BTreeSet::new(),
        }
    }

    /// What `check` says of the files `good` when `path` has `text` instead, or
    /// is missing.
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

    /// All paths and texts, sorted by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The text of the file at `path`.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether there is a file or a folder of them at `path`.
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
    /// A finding at a line (from 1; 0 for the whole file).
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
