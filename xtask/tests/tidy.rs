//! Runs `cargo xtask tidy` as a test: the repository keeps its rules.

use std::path::Path;

use xtask::Tree;

#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let findings = xtask::check(&Tree::read(&root).expect("readable"));
    let list: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(
        findings.is_empty(),
        "{} findings:\n{}",
        findings.len(),
        list.join("\n")
    );
}

#[test]
fn the_repository_is_seen_whole() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = Tree::read(&root).expect("readable");
    for path in [
        "Cargo.toml",
        ".gitignore",
        "xtask/src/lib.rs",
        "proto/src/lib.rs",
    ] {
        assert!(tree.text(path).is_some(), "{path}");
    }
    assert!(
        !tree
            .files()
            .any(|(path, _)| path.starts_with("target/") || path.starts_with(".git/"))
    );
}
