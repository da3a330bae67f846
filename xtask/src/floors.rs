//! Checks the direction of dependencies between crates.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Finding, Tree, workspace};

/// The folders of all crates, floor by floor from the ground up. A crate depends only
/// on crates of lower floors, and so do its tests: no test has needed a higher floor so
/// far.
const FLOORS: [&[&str]; 13] = [
    &[
        "adaptive",
        "files",
        "tests/fake-cuda",
        "tests/loopback-hub",
        "tests/trace-collector",
        "tp-worker/collective",
    ],
    &["tokenizer-manager/text", "types"],
    &[
        "proto",
        "config/model-folder",
        "scheduler/planner",
        "tp-worker/backend",
        "tp-worker/sampling",
    ],
    &[
        "config",
        "constraint",
        "ports",
        "traces",
        "tp-worker/backend-cpu",
        "tp-worker/backend-cuda",
    ],
    &["hub", "process", "tp-worker/model"],
    &["tp-worker/speculation"],
    &["adaptive/proof", "tp-worker/devices"],
    &["tokenizer-manager", "scheduler", "tp-worker"],
    &["launcher/local-engine"],
    &["bench"],
    &["launcher"],
    &["tests", "xtask"],
    &["examples/block-drafter"],
];

/// Crates that only compute. They must not depend on any of [`OUTSIDE`], directly or
/// through our other crates.
const PURE: [&str; 6] = [
    "adaptive",
    "adaptive/proof",
    "scheduler/planner",
    "tp-worker/sampling",
    "tp-worker/speculation",
    "tp-worker/model",
];

/// Crates for the outside world: the wire and the command line.
const OUTSIDE: [&str; 2] = ["tonic", "clap"];

/// Prefix of the folders of concrete backends, and the only crate that may depend on
/// them.
const CONCRETE: (&str, &str) = ("tp-worker/backend-", "tp-worker/devices");

/// Crates for tests. No program ships them, because only tests may depend on them.
const FOR_TESTS: [&str; 3] = [
    "tests/fake-cuda",
    "tests/loopback-hub",
    "tests/trace-collector",
];

/// Names of a crate's dependencies.
struct Crate {
    /// Dependencies of the crate itself and of its build script.
    own: BTreeSet<String>,
    /// Dependencies of the tests.
    tests: BTreeSet<String>,
}

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    // The check `workspace` reports errors in the manifests.
    let members = workspace::members(tree).unwrap_or_default();
    let mut crates = BTreeMap::new();
    let mut folders = BTreeMap::new();
    for member in &members {
        let Ok(manifest) = workspace::parse(tree, &format!("{member}/Cargo.toml")) else {
            continue;
        };
        let name = manifest.get("package").and_then(|table| table.get("name"));
        if let Some(name) = name.and_then(toml::Value::as_str) {
            folders.insert(name.to_owned(), member.as_str());
        }
        let mut own = names(&manifest, "dependencies");
        own.extend(names(&manifest, "build-dependencies"));
        let tests = names(&manifest, "dev-dependencies");
        crates.insert(member.as_str(), Crate { own, tests });
    }
    let mut findings = listed(&crates);
    for (folder, of) in &crates {
        let ours = |name: &String| folders.get(name).copied();
        let mut report = |message| findings.push(Finding::new(&manifest(folder), 0, message));
        for other in of.own.union(&of.tests).filter_map(ours) {
            if floor(other) >= floor(folder) {
                report(format!(
                    "depends on `{other}`, which stands on no lower floor: move what both need down"
                ));
            }
        }
        for other in of.own.iter().filter_map(ours) {
            let (concrete, only) = CONCRETE;
            if FOR_TESTS.contains(&other) {
                report(format!(
                    "builds on `{other}`, which is for tests: name it under [dev-dependencies]"
                ));
            } else if other.starts_with(concrete) && *folder != only {
                report(format!(
                    "builds on `{other}`: only `{only}` knows concrete backends; \
                     be generic over `Device`"
                ));
            }
        }
        if PURE.contains(folder)
            && let Some(path) = way_out(folder, &crates, &folders)
        {
            report(format!("reaches {path}: move the plain data down"));
        }
    }
    findings
}

/// Reports crates without a floor, and floors with crates that are gone.
fn listed(crates: &BTreeMap<&str, Crate>) -> Vec<Finding> {
    let unlisted = crates.keys().filter(|folder| floor(folder).is_none());
    let unlisted = unlisted.map(|folder| {
        let message = "stands on no floor: add it to the list in xtask/src/floors.rs";
        Finding::new(&manifest(folder), 0, message)
    });
    let gone = FLOORS.into_iter().flatten();
    let gone = gone.filter(|folder| !crates.contains_key(*folder));
    let gone = gone.map(|folder| {
        Finding::new(
            "xtask/src/floors.rs",
            0,
            format!("lists `{folder}`, which is no crate"),
        )
    });
    unlisted.chain(gone).collect()
}

/// Returns the index of a crate's floor, from the ground; `None` if the list lacks the
/// crate.
fn floor(folder: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&folder))
}

/// Returns the path from a crate to one of [`OUTSIDE`], such as "tonic through
/// `proto`"; `None` if there is no path.
fn way_out(
    from: &str,
    crates: &BTreeMap<&str, Crate>,
    folders: &BTreeMap<String, &str>,
) -> Option<String> {
    let mut seen = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(folder) = next.pop() {
        for name in &crates.get(folder)?.own {
            let is = |outside: &&str| name == outside || name.starts_with(&format!("{outside}-"));
            if OUTSIDE.iter().any(is) {
                return Some(format!("{name} through `{folder}`"));
            }
            if let Some(below) = folders.get(name).copied()
                && seen.insert(below)
            {
                next.push(below);
            }
        }
    }
    None
}

/// Returns the package names of the crates in a table of dependencies.
fn names(manifest: &toml::Table, table: &str) -> BTreeSet<String> {
    let table = manifest.get(table).and_then(toml::Value::as_table);
    let name = |(key, value): (&String, &toml::Value)| {
        let renamed = value.get("package").and_then(toml::Value::as_str);
        renamed.unwrap_or(key).to_owned()
    };
    table.into_iter().flatten().map(name).collect()
}

fn manifest(folder: &str) -> String {
    format!("{folder}/Cargo.toml")
}

#[cfg(test)]
mod tests {
    use super::{FLOORS, check};
    use crate::Tree;

    /// Checks a workspace of all listed crates after `change` was added to the manifest
    /// of `folder`. Returns the messages. Each crate has the name of its folder, with
    /// dashes.
    fn messages(folder: &str, change: &str) -> Vec<String> {
        let folders: Vec<&str> = FLOORS.into_iter().flatten().copied().collect();
        let quoted: Vec<String> = folders.iter().map(|path| format!("{path:?}")).collect();
        let root = format!("[workspace]\nmembers = [{}]\n", quoted.join(", "));
        let manifests: Vec<(String, String)> = folders
            .iter()
            .map(|path| {
                let name = path.replace('/', "-");
                let text = format!("[package]\nname = \"{name}\"\n");
                (format!("{path}/Cargo.toml"), text)
            })
            .collect();
        let own = manifests.iter().map(|(path, text)| (&**path, &**text));
        let good: Vec<(&str, &str)> = own.chain([("Cargo.toml", root.as_str())]).collect();
        let path = format!("{folder}/Cargo.toml");
        let text = good.iter().find(|(known, _)| *known == path);
        let text = format!("{}{change}", text.map_or("", |(_, text)| text));
        Tree::changed(&good, &path, Some(&text), check)
    }

    #[test]
    fn accepts_dependencies_that_go_down() {
        for (folder, change) in [
            ("types", ""),
            ("types", "[dependencies]\nserde = \"1\"\n"),
            (
                "proto",
                "[dependencies]\ntypes.workspace = true\ntonic = \"1\"\n",
            ),
            (
                "tp-worker/devices",
                "[dependencies]\ntp-worker-backend-cpu = {}\n",
            ),
            (
                "tp-worker",
                "[dev-dependencies]\ntp-worker-backend-cpu = {}\n",
            ),
            ("tp-worker/model", "[dev-dependencies]\nclap = \"4\"\n"),
            (
                "tp-worker/devices",
                "[dev-dependencies]\ntests-fake-cuda = {}\n",
            ),
        ] {
            assert_eq!(messages(folder, change), [""; 0], "{folder}: {change}");
        }
    }

    #[test]
    fn finds_what_looks_up_or_out() {
        for (folder, change, expected) in [
            (
                "types",
                "[dependencies]\nproto.workspace = true\n",
                "types/Cargo.toml: depends on `proto`",
            ),
            (
                "scheduler",
                "[dependencies]\ntp-worker.workspace = true\n",
                "depends on `tp-worker`, which stands on no lower floor",
            ),
            (
                "config",
                "[dev-dependencies]\nlauncher.workspace = true\n",
                "depends on `launcher`",
            ),
            (
                "proto",
                "[build-dependencies]\nother = { package = \"bench\" }\n",
                "depends on `bench`",
            ),
            (
                "bench",
                "[dependencies]\ntp-worker-backend-cpu.workspace = true\n",
                "builds on `tp-worker/backend-cpu`: only `tp-worker/devices`",
            ),
            (
                "tp-worker/devices",
                "[dependencies]\ntests-fake-cuda = {}\n",
                "builds on `tests/fake-cuda`, which is for tests",
            ),
            (
                "tp-worker/sampling",
                "[dependencies]\nclap = \"4\"\n",
                "reaches clap through `tp-worker/sampling`",
            ),
            (
                "tp-worker/model",
                "[dependencies]\ntonic-build = \"1\"\n",
                "reaches tonic-build",
            ),
        ] {
            let found = messages(folder, change);
            assert!(
                found.len() == 1 && found[0].contains(expected),
                "{folder}: {found:?}"
            );
        }
    }

    #[test]
    fn finds_a_way_out_through_other_crates() {
        let tree = Tree::of(&[
            (
                "Cargo.toml",
                "[workspace]\nmembers = [\"proto\", \"tp-worker/model\"]\n",
            ),
            (
                "proto/Cargo.toml",
                "[package]\nname = \"p\"\n[dependencies]\ntonic = \"1\"\n",
            ),
            (
                "tp-worker/model/Cargo.toml",
                "[package]\nname = \"m\"\n[dependencies]\np = {}\n",
            ),
        ]);
        let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        let out = found.iter().filter(|message| message.contains("reaches"));
        assert_eq!(
            out.collect::<Vec<_>>(),
            ["tp-worker/model/Cargo.toml: reaches tonic through `proto`: move the plain data down"]
        );
        // All other crates of the list are missing here.
        assert!(
            found
                .iter()
                .any(|message| message.contains("lists `types`"))
        );
    }

    #[test]
    fn finds_a_crate_that_stands_nowhere() {
        let root = ("Cargo.toml", "[workspace]\nmembers = [\"new\"]\n");
        let tree = Tree::of(&[root, ("new/Cargo.toml", "[package]\nname = \"new\"\n")]);
        let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        assert!(
            found.contains(
                &"new/Cargo.toml: stands on no floor: add it to the list in xtask/src/floors.rs"
                    .to_owned()
            ),
            "{found:?}"
        );
    }
}
