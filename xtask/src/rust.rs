//! Checks of Rust sources: sizes, file names, first words of doc comments, and the reasons of
//! unsafe code.

mod algorithm;
mod functions;
mod openings;
mod safety;

use crate::{Finding, Tree};

/// Maximum number of lines of a file.
const FILE_LINES: usize = 400;
/// Maximum number of lines of a file of tests.
const TEST_FILE_LINES: usize = 600;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".rs")) {
        if path.ends_with("/mod.rs") {
            let message = "use `foo.rs` next to `foo/` instead of `mod.rs`";
            findings.push(Finding::new(path, 0, message));
        }
        let (lines, limit) = (text.lines().count(), file_limit(path));
        if lines > limit {
            let message = format!("{lines} lines, at most {limit}: split it by idea");
            findings.push(Finding::new(path, 0, message));
        }
        findings.extend(openings::check(path, text));
        if !is_test(path) {
            findings.extend(algorithm::check(path, text));
        }
        match syn::parse_file(text) {
            Ok(file) => {
                findings.extend(functions::check(path, &file));
                findings.extend(safety::check(path, text, &file));
            }
            Err(error) => {
                let line = error.span().start().line;
                findings.push(Finding::new(path, line, format!("not Rust: {error}")));
            }
        }
    }
    findings
}

fn file_limit(path: &str) -> usize {
    if is_test(path) {
        TEST_FILE_LINES
    } else {
        FILE_LINES
    }
}

/// Returns true if the file holds only tests. A fake that tests use, such as
/// `tests/fake-cuda/src`, is no test itself.
fn is_test(path: &str) -> bool {
    path.starts_with("tests/src/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Tree;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)]))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn finds_long_files() {
        let lines = |count| "//\n".repeat(count);
        assert_eq!(messages("a/src/b.rs", &lines(400)), [""; 0]);
        assert!(messages("a/src/b.rs", &lines(401))[0].contains("401 lines, at most 400"));
        assert_eq!(messages("a/tests/b.rs", &lines(600)), [""; 0]);
        assert_eq!(messages("a/src/b/tests.rs", &lines(600)), [""; 0]);
        assert!(messages("tests/src/b.rs", &lines(601))[0].contains("601 lines, at most 600"));
        assert!(messages("tests/fake/src/b.rs", &lines(401))[0].contains("401 lines, at most 400"));
    }

    #[test]
    fn finds_old_module_names() {
        assert!(messages("a/src/b/mod.rs", "")[0].contains("`foo.rs`"));
    }

    #[test]
    fn finds_what_does_not_parse() {
        assert!(messages("a.rs", "fn x() {}\nfn {\n")[0].starts_with("a.rs:2: not Rust"));
    }
}
