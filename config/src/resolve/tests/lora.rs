//! Adapters: limits, folders and names.

use lockstep_types::{AdapterLimits, NamedAdapter};

use crate::testing::resolve_line;

#[test]
fn adapters_come_with_limits_and_folders() {
    let (engine, node) = resolve_line("").expect("good");
    assert_eq!(engine.adapters, AdapterLimits::default());
    assert!(node.lora_paths.is_empty() && node.lora_dir.is_none());
    let adapter = |name: &str, path: &str| NamedAdapter {
        name: name.to_owned(),
        path: path.into(),
    };
    for (line, places, rank, named, dir) in [
        ("--enable-lora --lora-dir .", 8, 16, vec![], Some(".")),
        ("--lora-paths a=.", 8, 16, vec![adapter("a", ".")], None),
        (
            "--enable-lora --lora-paths org/a=. b=/ --max-loras 2 --max-lora-rank 64",
            2,
            64,
            vec![adapter("org/a", "."), adapter("b", "/")],
            None,
        ),
    ] {
        let (engine, node) = resolve_line(line).expect(line);
        assert_eq!(engine.adapters, AdapterLimits { places, rank }, "{line}");
        assert_eq!(
            (node.lora_paths, node.lora_dir),
            (named, dir.map(Into::into)),
            "{line}"
        );
    }
}

/// Command lines that cannot be served, and texts in the error.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "--enable-lora",
        &["--enable-lora", "--lora-paths", "--lora-dir"],
    ),
    ("--lora-dir .", &["--lora-dir", "--enable-lora"]),
    ("--max-loras 2", &["--max-loras-per-batch", "--enable-lora"]),
    ("--max-lora-rank 2", &["--max-lora-rank", "--enable-lora"]),
    (
        "--lora-paths a=. --device cuda",
        &["--lora-paths", "--device", "processors alone"],
    ),
    (
        "--lora-paths a=. --enable-lora=false",
        &["--enable-lora=false", "--lora-paths"],
    ),
    (
        "--lora-paths a=. b=. a=.",
        &["--lora-paths a", "named twice"],
    ),
    (
        "--lora-paths a=. b=. --max-loras-per-batch 1",
        &["--max-loras-per-batch 1", "--lora-paths names 2"],
    ),
    (
        "--lora-paths default=.",
        &["--lora-paths default", "a name of the model"],
    ),
    (
        "--lora-paths a=none",
        &["--lora-paths none", "no such folder"],
    ),
    (
        "--enable-lora --lora-dir none",
        &["--lora-dir none", "no such folder"],
    ),
    (
        "--max-loaded-loras 4",
        &["--max-loaded-loras", "--max-loras-per-batch"],
    ),
];

#[test]
fn what_no_adapter_can_be_served_with_is_refused() {
    for (line, texts) in REFUSED {
        let error = resolve_line(line).map(|_| ()).expect_err(line).to_string();
        for text in *texts {
            assert!(error.contains(text), "{line}: {text:?} is not in: {error}");
        }
    }
}
