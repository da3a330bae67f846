//! Checks that the documents keep their promises.

use std::collections::BTreeSet;

use crate::{Finding, Tree, workspace};

/// Maximum number of lines of ARCHITECTURE.md.
const ARCHITECTURE_LINES: usize = 200;
/// Maximum number of lines of the README.
const README_LINES: usize = 100;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = architecture(tree);
    findings.extend(test_command(tree));
    findings.extend(readme(tree));
    findings.extend(routes(tree));
    findings
}

fn architecture(tree: &Tree) -> Vec<Finding> {
    const PATH: &str = "ARCHITECTURE.md";
    let Some(text) = tree.text(PATH) else {
        return vec![Finding::new(PATH, 0, "missing")];
    };
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > ARCHITECTURE_LINES {
        let message = format!("{lines} lines, at most {ARCHITECTURE_LINES}: nobody reads more");
        findings.push(Finding::new(PATH, 0, message));
    }
    for member in workspace::members(tree).unwrap_or_default() {
        let name = workspace::parse(tree, &format!("{member}/Cargo.toml")).ok();
        let name =
            name.and_then(|table| Some(table.get("package")?.get("name")?.as_str()?.to_owned()));
        let mentioned = |name: &str| text.contains(&format!("`{name}`"));
        if !mentioned(&member) && !name.as_deref().is_some_and(mentioned) {
            findings.push(Finding::new(
                PATH,
                0,
                format!("does not mention the crate `{member}`"),
            ));
        }
    }
    findings
}

/// Checks the length of the README.
fn readme(tree: &Tree) -> Vec<Finding> {
    const PATH: &str = "README.md";
    let Some(text) = tree.text(PATH) else {
        return Vec::new(); // Named by the check of the test command.
    };
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > README_LINES {
        let message =
            format!("{lines} lines, at most {README_LINES}: the rest belongs under docs/");
        findings.push(Finding::new(PATH, 0, message));
    }
    findings
}

/// Checks that the page of HTTP paths and the router list the same paths.
fn routes(tree: &Tree) -> Vec<Finding> {
    let (page, router) = ("docs/http.md", "tokenizer-manager/src/http/routes.rs");
    let (Some(text), Some(code)) = (tree.text(page), tree.text(router)) else {
        return vec![Finding::new(page, 0, format!("missing, or {router} is"))];
    };
    let plain = |path: &str| path.replace("{*", "{");
    // Each route is a line: method, path, handler.
    let served: BTreeSet<String> = code
        .lines()
        .filter_map(|line| line.trim_start().split_once(" \"/"))
        .filter(|(method, _)| ["get", "post", "delete", "put"].contains(method))
        .filter_map(|(_, rest)| Some(plain(&format!("/{}", rest.split('"').next()?))))
        .collect();
    // These are rows of the table of paths. Other tables name calls, not paths.
    let told: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|word| word.starts_with('/'))
        .map(plain)
        .collect();
    let missing = served.difference(&told);
    let missing = missing.map(|path| format!("does not mention the route {path}"));
    let gone = told.difference(&served);
    let gone = gone.map(|path| format!("names {path}, which is no route"));
    missing
        .chain(gone)
        .map(|message| Finding::new(page, 0, message))
        .collect()
}

/// Checks that the README gives the test command that CI runs.
fn test_command(tree: &Tree) -> Vec<Finding> {
    let (readme, ci) = ("README.md", ".ci/run");
    let Some(text) = tree.text(readme) else {
        return vec![Finding::new(readme, 0, "missing")];
    };
    let Some(script) = tree.text(ci) else {
        return vec![Finding::new(ci, 0, "missing")];
    };
    let Some(command) = text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("cargo test"))
    else {
        return vec![Finding::new(
            readme,
            0,
            "no line that starts with `cargo test`",
        )];
    };
    let command = command.split('#').next().unwrap_or_default().trim();
    if script.lines().any(|line| line.trim() == command) {
        return Vec::new();
    }
    vec![Finding::new(
        ci,
        0,
        format!("does not run the README's `{command}`"),
    )]
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Tree;

    const GOOD: [(&str, &str); 8] = [
        ("Cargo.toml", "[workspace]\nmembers = [\"a\", \"b\"]\n"),
        ("a/Cargo.toml", "[package]\nname = \"lockstep-a\"\n"),
        ("b/Cargo.toml", "[package]\nname = \"lockstep-b\"\n"),
        ("ARCHITECTURE.md", "`a` and `lockstep-b`.\n"),
        (
            "README.md",
            "```sh\ncargo test --workspace   # everything\n```\n",
        ),
        (
            "docs/http.md",
            "| POST `/a`, `/a/{id}` | says `/no` |\n| `Call` | a call |\n",
        ),
        (
            "tokenizer-manager/src/http/routes.rs",
            "    post \"/a\" a, \"Does.\";\n    get \"/a/{*id}\" b, \"Is.\";\n",
        ),
        (".ci/run", "set -e\ncargo test --workspace\n"),
    ];

    fn messages(path: &str, text: Option<&str>) -> Vec<String> {
        Tree::changed(&GOOD, path, text, check)
    }

    #[test]
    fn accepts_promises_that_are_kept() {
        assert_eq!(messages("unrelated", None), [""; 0]);
    }

    #[test]
    fn finds_broken_promises() {
        let long = "`a` and `b`\n".repeat(201);
        let wordy = format!("cargo test --workspace\n{}", "word\n".repeat(100));
        for (path, text, expected) in [
            ("ARCHITECTURE.md", None, "ARCHITECTURE.md: missing"),
            (
                "ARCHITECTURE.md",
                Some(long.as_str()),
                "201 lines, at most 200",
            ),
            (
                "ARCHITECTURE.md",
                Some("`lockstep-b` and a.\n"),
                "does not mention the crate `a`",
            ),
            ("README.md", None, "README.md: missing"),
            (
                "README.md",
                Some("Run the tests.\n"),
                "no line that starts with `cargo test`",
            ),
            ("README.md", Some(wordy.as_str()), "101 lines, at most 100"),
            ("docs/http.md", None, "docs/http.md: missing"),
            (
                "docs/http.md",
                Some("| `/a` | |\n"),
                "does not mention the route /a/{id}",
            ),
            (
                "docs/http.md",
                Some("| `/a`, `/a/{id}`, `/b` | |\n"),
                "names /b, which is no route",
            ),
            (".ci/run", None, ".ci/run: missing"),
            (
                ".ci/run",
                Some("cargo test\n"),
                "does not run the README's `cargo test --workspace`",
            ),
        ] {
            let found = messages(path, text);
            assert!(
                found.len() == 1 && found[0].contains(expected),
                "{path} {text:?}: {found:?}"
            );
        }
    }
}
