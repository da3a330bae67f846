//! Checks that a doc comment opens with a noun or a verb, and not with a question word.

use crate::Finding;

/// Words that make a clause of a first sentence: "What a step takes" says less, and later,
/// than "Time of a step".
const QUESTIONS: [&str; 8] = [
    "What", "How", "Who", "Whose", "Which", "Where", "Whether", "When",
];

/// Folders whose comments are help texts, which speak to people at a command line.
const HELP: [&str; 3] = ["config/src/args", "bench/src", "launcher/src"];

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    if HELP.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut inside = None;
    for (index, line) in text.lines().enumerate() {
        let comment = doc_comment(line);
        if let Some((kind, words)) = comment
            && inside != Some(kind)
            && let Some(word) = opening(words)
        {
            let message = format!("opens with `{word}`: name the thing with a noun, or use a verb");
            findings.push(Finding::new(path, index + 1, message));
        }
        inside = comment.map(|(kind, _)| kind);
    }
    findings
}

/// The kind of doc comment that a line is, and its words.
fn doc_comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["///", "//!"]
        .into_iter()
        .find_map(|kind| Some((kind, line.strip_prefix(kind)?.trim_start())))
}

/// The question word that a comment opens with.
fn opening(words: &str) -> Option<&'static str> {
    let first = words.split([' ', ',', '.', '?']).next()?;
    QUESTIONS.into_iter().find(|question| first == *question)
}

#[cfg(test)]
mod tests {
    use super::check;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(path, text)
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn finds_first_words_alone() {
        let text = "//! What it is.\n\n/// Reads a file.\n/// Where it is missing, fails.\n\
                    fn a() {}\n    /// Whether, if so\n    fn b() {}\n// How plain comments go\n";
        assert_eq!(lines("a/src/b.rs", text), [1, 6]);
        assert_eq!(
            lines("a/src/b.rs", "/// Whatever it is.\n/// Whole numbers.\n"),
            [0; 0]
        );
    }

    #[test]
    fn a_comment_behind_another_kind_has_a_first_word() {
        assert_eq!(lines("a/src/b.rs", "//! A crate.\n/// Who calls.\n"), [2]);
    }

    #[test]
    fn leaves_help_texts_alone() {
        assert_eq!(
            lines("config/src/args/model.rs", "/// Where weights are.\n"),
            [0; 0]
        );
    }
}
