//! Checks of all our text files: forbidden words, and the last newline.

use crate::{Finding, Tree};

/// Endings of files that are written by hand.
const OURS: [&str; 15] = [
    ".rs",
    ".cu",
    ".cuh",
    ".h",
    ".toml",
    ".md",
    ".proto",
    ".py",
    ".sh",
    ".yml",
    ".yaml",
    "Containerfile",
    ".ci/run",
    ".ci/lanes",
    ".gitignore",
];

/// Copied or generated data, which must stay byte for byte.
const DATA: [&str; 2] = ["/fixtures/", "/goldens/"];

/// Marks of unfinished work, split so that this file does not contain them.
const MARKS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Macros for missing code, and paths that exist on one machine only.
const PHRASES: [(&str, &str); 5] = [
    (concat!("todo", "!("), "write the code"),
    (
        concat!("unimple", "mented!("),
        "write the code, or return an error that names the remedy",
    ),
    (concat!("/wo", "rk/"), "a path of somebody's machine"),
    (concat!("/ro", "ot/"), "a path of somebody's machine"),
    (concat!("../sh", "ared"), "a path outside the repository"),
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| is_ours(path)) {
        for (index, line) in text.lines().enumerate() {
            let mut report =
                |message: String| findings.push(Finding::new(path, index + 1, message));
            for mark in MARKS.iter().filter(|mark| has_word(line, mark)) {
                report(format!(
                    "{mark}: finish it, or describe the limit where users see it"
                ));
            }
            for (phrase, reason) in PHRASES.iter().filter(|(phrase, _)| line.contains(phrase)) {
                report(format!("`{phrase}`: {reason}"));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            findings.push(Finding::new(
                path,
                text.lines().count(),
                "no newline at the end",
            ));
        }
    }
    findings
}

fn is_ours(path: &str) -> bool {
    OURS.iter().any(|ending| path.ends_with(ending)) && !DATA.iter().any(|data| path.contains(data))
}

/// Returns true if `line` contains `word` with no letter, digit or `_` next to it.
fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

#[cfg(test)]
mod tests {
    use super::{MARKS, PHRASES, check};
    use crate::Tree;

    fn findings(path: &str, text: &str) -> Vec<(usize, String)> {
        let findings = check(&Tree::of(&[(path, text)]));
        findings
            .into_iter()
            .map(|finding| (finding.line, finding.message))
            .collect()
    }

    #[test]
    fn finds_marks_and_phrases() {
        let words = MARKS
            .iter()
            .copied()
            .chain(PHRASES.iter().map(|(phrase, _)| *phrase));
        for word in words {
            let found = findings("a/b.rs", &format!("fine\n// {word} later\n"));
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            assert!(found[0].0 == 2 && found[0].1.contains(word), "{found:?}");
        }
    }

    #[test]
    fn finds_a_missing_newline() {
        assert_eq!(
            findings("a.md", "one\ntwo"),
            [(2, "no newline at the end".to_owned())]
        );
    }

    #[test]
    fn accepts_words_that_only_look_like_marks() {
        let text = format!(
            "mktemp -t a.{}{}\nlet A{}B = 1;\n",
            MARKS[2], MARKS[2], MARKS[0]
        );
        assert_eq!(findings("a.rs", &text), []);
    }

    #[test]
    fn leaves_data_alone() {
        assert_eq!(findings("tests/fixtures/a.md", "no newline"), []);
        assert_eq!(findings("a.jinja", "no newline"), []);
    }
}
