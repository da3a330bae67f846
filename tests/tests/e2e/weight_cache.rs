//! Packed weights that outlive a process.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use lockstep_tests::turns;

/// Runs `lockstep generate` with packed weights in `folder`.
fn generate(folder: &Path) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep-under-test"))
        .args(["generate", "--tp-size", "2", "--threads", "1"])
        .arg("--weight-cache")
        .arg(folder)
        .arg("Count from 3 to 12.")
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    output
}

fn packed(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder was made").flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "packed"))
        .collect();
    files.sort();
    files
}

/// Runs `lockstep pack` for two ranks.
fn pack(folder: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-under-test"));
    command.args(["pack", "--tp-size", "2", "--threads", "1"]);
    command.args(["--quantization", "int8"]);
    if let Some(folder) = folder {
        command.arg("--weight-cache").arg(folder);
    }
    command.output().expect("the program runs")
}

#[tokio::test]
async fn pack_fills_the_folder_once_or_says_why_not() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    for expected in ["written", "was there already"] {
        let output = pack(Some(folder.path()));
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said.matches(expected).count(), 2, "{said}");
        for file in packed(folder.path()) {
            assert!(said.contains(&file.display().to_string()), "{said}");
        }
    }
    assert_eq!(packed(folder.path()).len(), 2);
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    for (folder, expected) in [
        (None, "--weight-cache"),
        (Some(file.as_path()), "packed weights"),
    ] {
        let output = pack(folder);
        assert!(!output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{said}");
    }
}

#[tokio::test]
async fn text_does_not_depend_on_where_weights_come_from() {
    let _turn = turns::shared().await;
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("packed");
    let first = generate(&folder);
    let files = packed(&folder);
    assert_eq!(files.len(), 2, "{files:?}");
    let inode = |path: &PathBuf| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).expect("there").ino()
    };
    let written: Vec<_> = files.iter().map(inode).collect();
    let second = generate(&folder);
    assert_eq!(first.stdout, second.stdout);
    let kept: Vec<_> = files.iter().map(inode).collect();
    assert_eq!(kept, written, "nothing was written again");
    let [damaged, _] = &files[..] else {
        panic!("{files:?}");
    };
    let file = fs::OpenOptions::new()
        .write(true)
        .open(damaged)
        .expect("opened");
    file.write_all_at(b"damage", 100_000).expect("written");
    let third = generate(&folder);
    assert_eq!(first.stdout, third.stdout);
    let said = String::from_utf8_lossy(&third.stderr);
    assert!(said.contains("packed anew"), "{said}");
}
