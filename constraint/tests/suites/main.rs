//! Test suites of others, which are not part of this repository: that of the JSON Schema
//! organisation, and the schemas of MaskBench. Each schema compiles or is refused by name; of its
//! instances the valid ones are accepted, and no invalid one is.
//!
//! `docs/results/constraint-suites.md` says where the data come from, and has the figures.

mod judge;
mod masks;
mod report;
mod text;

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use judge::{Group, Judge};
use report::Report;
use serde_json::Value;

/// Valid instances of the organisation's suite that are not generated, by file and words of the
/// group.
const NARROWER: [(&str, &str); 13] = [
    // Equal numbers have other spellings, such as 1.0 for 1; one is generated.
    (
        "/const",
        "const with 0 does not match other zero-like types",
    ),
    ("/const", "const with 1 does not match true"),
    ("/const", "const with -2.0 matches integer and float types"),
    (
        "/const",
        "float and integers are equal up to 64-bit representation limits",
    ),
    ("/enum", "enum with 0 does not match false"),
    ("/enum", "enum with [0] does not match [false]"),
    ("/enum", "enum with 1 does not match true"),
    ("/enum", "enum with [1] does not match [true]"),
    ("/type", "integer type matches integers"),
    // So have equal objects.
    ("/const", "const with object"),
    // Formats are obeyed, and no mere annotations.
    ("/format", " format"),
    // Keywords of `$schema`'s other vocabularies, and those beside `$ref` in drafts before
    // 2019-09, are obeyed too.
    ("/vocabulary", "no validation vocabulary"),
    ("draft7/ref", "ref overrides any sibling keywords"),
];

/// Returns the folder that an environment variable names.
fn folder(variable: &str) -> PathBuf {
    let folder = env::var_os(variable);
    let folder = folder.unwrap_or_else(|| panic!("set {variable} to the folder of the data"));
    PathBuf::from(folder)
}

/// Returns the JSON files of a folder, in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let files = entries.map(|entry| entry.expect("an entry").path());
    let files: BTreeSet<_> = files
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    assert!(!files.is_empty(), "{folder:?} has no JSON files");
    files.into_iter().collect()
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

fn name(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Set `LOCKSTEP_JSON_SCHEMA_SUITE` to a checkout's folder `tests`.
#[test]
#[ignore = "needs data from outside the repository"]
fn the_json_schema_test_suite_is_obeyed_or_refused_by_name() {
    let root = folder("LOCKSTEP_JSON_SCHEMA_SUITE");
    let mut report = Report::default();
    for draft in ["draft2020-12", "draft7"] {
        for file in files(&root.join(draft)) {
            for group in read(&file).as_array().expect("a list of groups") {
                let place = format!("{draft}/{}", name(&file));
                let mut judge = Judge::default();
                judge.group(&place, &Group::of(group), &mut report);
            }
        }
    }
    println!("{report}");
    assert!(report.schemas > 600, "{} schemas", report.schemas);
    let wrong = &report.accepted_invalid;
    assert!(wrong.is_empty(), "invalid, yet accepted: {wrong:#?}");
    let known = |told: &str| {
        let mut causes = NARROWER.iter();
        causes.any(|(file, words)| told.contains(file) && told.contains(words))
    };
    let unknown = report.refused_valid.iter().filter(|told| !known(told));
    assert_eq!(
        unknown.count(),
        0,
        "valid, yet refused: {:#?}",
        report.refused_valid
    );
}

/// Set `LOCKSTEP_MASKBENCH` to the folder `maskbench/data` of a checkout, and
/// `LOCKSTEP_MASKBENCH_EVERY` to take every n-th schema.
#[test]
#[ignore = "needs data from outside the repository"]
fn maskbench_is_obeyed_or_refused_by_name() {
    let every = env::var("LOCKSTEP_MASKBENCH_EVERY").map_or(4, |text| text.parse().expect("n"));
    let mut report = Report::default();
    for file in files(&folder("LOCKSTEP_MASKBENCH")).iter().step_by(every) {
        let data = read(file);
        let mut judge = Judge::default();
        let group = Group::of(&data);
        judge.group(&name(file), &group, &mut report);
        if let Some(constraint) = &judge.compiled {
            masks::compare(constraint, &group, &mut report);
        }
    }
    println!("{report}");
    let wrong = &report.accepted_invalid;
    assert!(wrong.is_empty(), "invalid, yet accepted: {wrong:#?}");
    assert_eq!(report.unlike_masks, Vec::<String>::new());
}
