//! Checks that links in documents have targets, and that files named in documents
//! exist.

use crate::{Finding, Tree};

/// Endings that mark a word in backticks as a file of this repository.
const FILES: [&str; 7] = [".rs", ".md", ".proto", ".svg", ".py", ".yaml", ".cu"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            let mut report = |what: &str, target: &str| {
                let message = format!("{what} `{target}`, which is not there");
                findings.push(Finding::new(path, index + 1, message));
            };
            for target in links(line) {
                if !tree.has(&resolve(folder, target)) {
                    report("links to", target);
                }
            }
            for file in named_files(line) {
                // The name is relative to the root or to the document's own folder.
                if !tree.has(file) && !tree.has(&resolve(folder, file)) {
                    report("names", file);
                }
            }
        }
    }
    findings
}

/// Returns the targets of links inside the repository, without their fragments.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// Returns the words in backticks that are paths of files: a word with a folder and one
/// of our endings. Words with `*`, `<` and the like name no file.
fn named_files(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split('`').skip(1).step_by(2);
    words.filter(|word| {
        let known = FILES.iter().any(|ending| word.ends_with(ending));
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        known && word.contains('/') && !word.starts_with('/') && word.chars().all(plain)
    })
}

/// Resolves `target` against `folder`. Returns a path relative to the root.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Tree;

    const GOOD: [(&str, &str); 4] = [
        ("a/src/lib.rs", "\n"),
        (
            "docs/one.md",
            "[two](two.md#there), [a](../a/), `../a/src/lib.rs`\n",
        ),
        (
            "docs/two.md",
            "[web](https://example.org/x.md) `foo.rs` `T/path.rs()`\n",
        ),
        (
            "README.md",
            "[one](docs/one.md) `a/src/lib.rs`\n```sh\n[no](where)\n```\n",
        ),
    ];

    fn messages(path: &str, text: Option<&str>) -> Vec<String> {
        Tree::changed(&GOOD, path, text, check)
    }

    #[test]
    fn accepts_documents_that_point_to_what_is_there() {
        assert_eq!(messages("unrelated", None), [""; 0]);
    }

    #[test]
    fn finds_what_is_gone() {
        for (path, text, expected) in [
            ("docs/two.md", None, "docs/one.md:1: links to `two.md`"),
            (
                "README.md",
                Some("\n![picture](docs/three.svg)\n"),
                "README.md:2: links to `docs/three.svg`",
            ),
            (
                "docs/two.md",
                Some("See `a/src/main.rs`.\n"),
                "docs/two.md:1: names `a/src/main.rs`",
            ),
        ] {
            let found = messages(path, text);
            assert!(
                found.len() == 1 && found[0].starts_with(expected),
                "{path}: {found:?}"
            );
        }
    }
}
