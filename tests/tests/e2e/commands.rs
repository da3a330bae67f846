//! Commands that answer and end: their exit codes, also if nobody reads their output.

use std::process::{Command, Stdio};

use lockstep_process::exit;
use lockstep_tests::turns;

fn lockstep(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-under-test"));
    // Cargo puts fakes of CUDA's libraries where programs look for them.
    command.env("LOCKSTEP_DEVICE", "cpu");
    command.args(line.split_whitespace());
    command
}

#[tokio::test]
async fn what_is_wrong_with_the_configuration_has_one_exit_code_in_all_commands() {
    let _turn = turns::shared().await;
    let (usage, failed) = (exit::USAGE, exit::START_FAILED);
    for (line, code, said) in [
        ("serve --tp-size 3", usage, "--tp-size"),
        ("config --tp-size 3", usage, "--tp-size"),
        ("generate hi --tp-size 3", usage, "--tp-size"),
        ("generate hi --temperature 3", usage, "--temperature"),
        ("generate hi --kv-cache-dtype fp8", usage, "int8"),
        ("config --kv-cache-dtype fp8_e5m2", usage, "fp8_e5m2"),
        ("config --load-format gguf", usage, "gguf"),
        ("generate hi --model-path /no/such", usage, "/no/such"),
        ("generate hi --no-such-option", usage, "--no-such-option"),
        ("generate hi --served-model-name a", usage, "lockstep serve"),
        ("generate hi --weight-update-dir .", usage, "unexpected"),
        ("pack --weight-update-dir .", usage, "unexpected"),
        ("pack", usage, "--weight-cache"),
        ("pack --weight-cache w --tp-size 3", usage, "--tp-size"),
        ("pack /no/such --weight-cache w", usage, "/no/such"),
        ("doctor --tp-size 3", exit::PROBLEMS, ""),
        ("server", usage, "'serve'"),
        (
            "serve --host nowhere.invalid",
            failed,
            "--host nowhere.invalid: ",
        ),
        ("serve --host 192.0.2.1", failed, "--host 192.0.2.1: "),
        ("bench offline --tp-size 3", usage, "--tp-size"),
        ("bench offline --repeat 0", usage, "repeat"),
        ("bench kernels --repeat 0", usage, "repeat"),
        ("bench kernels --model-path /no/such", usage, "/no/such"),
        ("bench quality --window 1", usage, "--window"),
        ("bench exchanges --ranks 3", usage, "--ranks 3"),
        ("bench planner --running 0", usage, "--running"),
        ("bench roundtrip --rows 0", usage, "--rows"),
        ("bench serve --concurrency 0", usage, "--concurrency"),
        ("bench serve --base-url foo", usage, "http://"),
        ("bench phases --model-path /no/such", usage, "/no/such"),
        ("bench speculate --model-path /no/such", usage, "/no/such"),
        ("generate hi --threads 0", usage, "--threads"),
        ("bench speculate --algorithms eagle", usage, "--algorithms"),
        ("bench phases --dwell 0", usage, "--dwell"),
        ("bench serve --prompts /no/such", usage, "--prompts"),
        (
            "bench serve --base-url http://127.0.0.1:1",
            failed,
            "127.0.0.1:1",
        ),
    ] {
        let output = lockstep(line).output().expect("it runs");
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code.into()), "{line}:\n{log}");
        assert!(log.contains(said), "{line}:\n{log}");
    }
}

/// A reader that closes the pipe, such as `head` in `git log | head`, has read enough.
#[tokio::test]
async fn a_reader_that_left_ends_no_command_with_an_error() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    let closed = || {
        let (_, writer) = std::io::pipe().expect("a pipe");
        Stdio::from(writer)
    };
    for line in [
        "--version",
        "serve --help",
        "config",
        "doctor",
        "generate hi --max-tokens 2",
        "pack --weight-cache .",
        "bench planner --running 1 --steps 20",
        "bench roundtrip --rows 1 --steps 20",
    ] {
        // Nobody reads the output. In the second case nobody reads the error messages
        // either.
        for (stderr, heard) in [(Stdio::piped(), true), (closed(), false)] {
            let mut command = lockstep(line);
            command.current_dir(&folder).stdout(closed()).stderr(stderr);
            let output = command.output().expect("it runs");
            let log = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            // The exit code of `doctor` depends on the machine and is not the subject
            // here.
            let fine = code == Some(0) || line == "doctor" && code == Some(exit::PROBLEMS.into());
            assert!(fine, "{line}, {heard}: {code:?}\n{log}");
        }
    }
}

/// Each of the commands asks for one request, but each DP rank must run at least one.
#[tokio::test]
async fn commands_without_a_server_run_on_dp_ranks() {
    let _turn = turns::shared().await;
    let folder = tempfile::tempdir().expect("a folder");
    for line in [
        "generate hi --max-tokens 2",
        "pack --weight-cache .",
        "bench speculate --algorithms ngram --domains counting --per-domain 1 --max-tokens 4",
    ] {
        let line = format!("{line} --tp-size 2 --enable-dp-attention --dp-size 2");
        let output = lockstep(&line).current_dir(folder.path()).output();
        let output = output.expect("it runs");
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{line}:\n{log}");
    }
}

/// A server logs this note at its start. Commands without a server must print it too.
#[tokio::test]
async fn what_people_should_know_is_said_by_commands_without_a_server() {
    let _turn = turns::shared().await;
    let output = lockstep("generate hi --max-tokens 2 --load-format dummy").output();
    let output = output.expect("it runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("Note: the weights are random"), "{log}");
}

/// A failed write of the output must not pass for success.
#[tokio::test]
async fn an_answer_that_could_not_be_written_is_an_error() {
    let _turn = turns::shared().await;
    for line in ["config", "bench planner --running 1 --steps 20", "--help"] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let output = lockstep(line).stdout(full.expect("Linux")).output();
        let output = output.expect("it runs");
        let code = Some(i32::from(exit::START_FAILED));
        assert_eq!(output.status.code(), code, "{line}");
    }
}
