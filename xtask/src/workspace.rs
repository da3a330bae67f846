//! Checks of the crates: their roots, their manifests, and the lock file.

use crate::{Finding, Tree};

/// Crates that may hold unsafe code, for calls of the allocator, kernels, shared
/// memory, mapped weights, and the fake driver.
const MAY_BE_UNSAFE: [&str; 6] = [
    "process",
    "tests/fake-cuda",
    "tp-worker/backend-cpu",
    "tp-worker/backend-cuda",
    "tp-worker/collective",
    "tp-worker/model",
];

const FORBID: &str = "#![forbid(unsafe_code)]";

/// Returns the paths of the workspace's crates, or the error in the manifest.
pub(crate) fn members(tree: &Tree) -> Result<Vec<String>, Finding> {
    let manifest = parse(tree, "Cargo.toml")?;
    let members = manifest
        .get("workspace")
        .and_then(|table| table.get("members"));
    let members = members.and_then(toml::Value::as_array);
    let members = members.ok_or_else(|| Finding::new("Cargo.toml", 0, "no workspace members"))?;
    Ok(members
        .iter()
        .filter_map(|member| member.as_str().map(str::to_owned))
        .collect())
}

/// Parses the TOML file at `path`.
pub(crate) fn parse(tree: &Tree, path: &str) -> Result<toml::Table, Finding> {
    let text = tree
        .text(path)
        .ok_or_else(|| Finding::new(path, 0, "missing"))?;
    text.parse()
        .map_err(|error| Finding::new(path, 0, format!("not TOML: {error}")))
}

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = lock_file(tree);
    match members(tree) {
        Ok(members) => {
            findings.extend(members.iter().flat_map(|member| check_member(tree, member)));
        }
        Err(finding) => findings.push(finding),
    }
    findings
}

fn lock_file(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    if tree.text("Cargo.lock").is_none() {
        findings.push(Finding::new("Cargo.lock", 0, "missing: commit it"));
    }
    let ignored = tree.text(".gitignore").unwrap_or_default().lines();
    for (index, _) in ignored
        .enumerate()
        .filter(|(_, line)| line.contains("Cargo.lock"))
    {
        findings.push(Finding::new(
            ".gitignore",
            index + 1,
            "Cargo.lock has to be committed",
        ));
    }
    findings
}

fn check_member(tree: &Tree, member: &str) -> Vec<Finding> {
    let manifest = format!("{member}/Cargo.toml");
    let mut findings = Vec::new();
    match parse(tree, &manifest) {
        Ok(table) => {
            let lints = table.get("lints").and_then(|lints| lints.get("workspace"));
            if lints.and_then(toml::Value::as_bool) != Some(true) {
                let message = "does not inherit the lints: add `[lints] workspace = true`";
                findings.push(Finding::new(&manifest, 0, message));
            }
        }
        Err(finding) => findings.push(finding),
    }
    let roots = ["lib.rs", "main.rs"].map(|name| format!("{member}/src/{name}"));
    for (path, text) in roots
        .iter()
        .filter_map(|path| tree.text(path).map(|text| (path, text)))
    {
        if !text.starts_with("//!") {
            let message = "a crate root starts with a `//!` line that says what the crate is for";
            findings.push(Finding::new(path, 1, message));
        }
        if !MAY_BE_UNSAFE.contains(&member) && !text.lines().any(|line| line == FORBID) {
            findings.push(Finding::new(path, 1, format!("no `{FORBID}`")));
        }
    }
    if roots.iter().all(|path| tree.text(path).is_none()) {
        findings.push(Finding::new(&manifest, 0, "the crate has no root in src"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{FORBID, check};
    use crate::Tree;

    const GOOD: [(&str, &str); 5] = [
        ("Cargo.toml", "[workspace]\nmembers = [\"a\"]\n"),
        ("Cargo.lock", ""),
        (".gitignore", "/target\n"),
        ("a/Cargo.toml", "[lints]\nworkspace = true\n"),
        (
            "a/src/lib.rs",
            "//! What it is.\n\n#![forbid(unsafe_code)]\n",
        ),
    ];

    fn messages(path: &str, text: Option<&str>) -> Vec<String> {
        Tree::changed(&GOOD, path, text, check)
    }

    #[test]
    fn accepts_a_good_crate() {
        assert_eq!(messages("unrelated", None), [""; 0]);
    }

    #[test]
    fn finds_what_is_missing_or_wrong() {
        for (path, text, expected) in [
            ("Cargo.toml", None, "Cargo.toml: missing"),
            ("Cargo.toml", Some("[workspace]\n"), "no workspace members"),
            ("Cargo.toml", Some("[["), "not TOML"),
            ("Cargo.lock", None, "Cargo.lock: missing"),
            (
                ".gitignore",
                Some("/target\n*Cargo.lock\n"),
                ".gitignore:2: Cargo.lock",
            ),
            ("a/Cargo.toml", None, "a/Cargo.toml: missing"),
            (
                "a/Cargo.toml",
                Some("[lints.rust]\n"),
                "does not inherit the lints",
            ),
            (
                "a/Cargo.toml",
                Some("[lints]\nworkspace = false\n"),
                "does not inherit the lints",
            ),
            ("a/src/lib.rs", None, "no root in src"),
            ("a/src/lib.rs", Some(FORBID), "starts with a `//!` line"),
            (
                "a/src/lib.rs",
                Some("//! What it is.\n"),
                "no `#![forbid(unsafe_code)]`",
            ),
            (
                "a/src/main.rs",
                Some("//! What it is.\n"),
                "a/src/main.rs:1: no `#![forbid",
            ),
        ] {
            let found = messages(path, text);
            assert!(
                found.len() == 1 && found[0].contains(expected),
                "{path} {text:?}: {found:?}"
            );
        }
    }

    #[test]
    fn allows_unsafe_code_where_it_belongs() {
        let kernels = [
            (
                "Cargo.toml",
                "[workspace]\nmembers = [\"tp-worker/backend-cpu\"]\n",
            ),
            ("Cargo.lock", ""),
            (
                "tp-worker/backend-cpu/Cargo.toml",
                "[lints]\nworkspace = true\n",
            ),
            ("tp-worker/backend-cpu/src/lib.rs", "//! Kernels.\n"),
        ];
        assert_eq!(check(&Tree::of(&kernels)), []);
    }
}
