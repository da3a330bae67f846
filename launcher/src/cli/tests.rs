use std::ffi::OsString;

use lockstep_hub::HubError;
use lockstep_process::Role;

use super::{Command, definition, hints, parse, source, with_default_command};
use crate::error::LaunchError;
use crate::settings::tests::algorithms;
use crate::{generate, pack};

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(Into::into).collect()
}

fn program() -> clap::Command {
    definition(&algorithms()).expect("flags that differ")
}

fn parsed(words: Vec<OsString>) -> Result<Command, std::process::ExitCode> {
    parse(words, &algorithms())
}

#[test]
fn the_definition_is_consistent() {
    program().debug_assert();
}

#[test]
fn serve_is_the_default_command() {
    for (line, expected) in [
        ("lockstep", "lockstep serve"),
        ("lockstep --port 1", "lockstep serve --port 1"),
        (
            "lockstep models/m --port 1",
            "lockstep serve --model-path models/m --port 1",
        ),
        ("lockstep m.gguf", "lockstep serve --model-path m.gguf"),
        ("lockstep serve --port 1", "lockstep serve --port 1"),
        ("lockstep config", "lockstep config"),
        ("lockstep --help", "lockstep --help"),
        ("lockstep -V", "lockstep -V"),
        (
            "lockstep serve m --tp 2",
            "lockstep serve --model-path m --tp 2",
        ),
        ("lockstep config m", "lockstep config --model-path m"),
        (
            "lockstep pack m --weight-cache w",
            "lockstep pack --model-path m --weight-cache w",
        ),
        ("lockstep help --help", "lockstep help"),
        ("lockstep help serve", "lockstep help serve"),
        ("", "serve"),
    ] {
        assert_eq!(
            with_default_command(words(line)),
            words(expected),
            "{line:?}"
        );
    }
}

/// Commands without a server have a server's ranks.
#[test]
fn dp_ranks_arrive() {
    for (command, rest) in [
        ("serve", ""),
        ("config", ""),
        ("generate", " hi"),
        ("pack", ""),
    ] {
        for (dp, expected) in [
            (" --dp-size 2 --enable-dp-attention", (2, true)),
            (" --dp-size 2 --enable-dp-attention=true", (2, true)),
            (" --dp 1", (1, false)),
            (" --dp 1 --enable-dp-attention=false", (1, false)),
        ] {
            let line = format!("lockstep {command} --tp 4 --ep 2{dp}{rest}");
            let serve = match parsed(words(&line)).expect("parses") {
                Command::Serve(args) | Command::Config(args) => *args,
                Command::Generate(args) => generate::serve_args(&args),
                Command::Pack(args) => pack::serve_args(&args),
                _ => panic!("{line}"),
            };
            let parallel = serve.parallel;
            let found = (parallel.dp_size, parallel.enable_dp_attention);
            assert_eq!(found, (Some(expected.0), expected.1), "{line}");
            assert_eq!(parallel.ep_size, Some(2), "{line}");
        }
    }
}

#[test]
fn commands_and_roles() {
    assert!(
        matches!(parsed(words("lockstep --port 1")), Ok(Command::Serve(args)) if args.server.port == Some(1))
    );
    assert!(matches!(
        parsed(words("lockstep config --tp 2")),
        Ok(Command::Config(_))
    ));
    for line in [
        "generate -p hello --raw",
        "generate hello --tp 2 --stop a --stop b",
    ] {
        let parsed = parsed(words(&format!("lockstep {line}")));
        assert!(matches!(parsed, Ok(Command::Generate(_))), "{line}");
    }
    assert!(parsed(words("lockstep generate")).is_err());
    assert!(parsed(words("lockstep generate a -p b")).is_err());
    let model = parsed(words("lockstep serve m"));
    assert!(matches!(model, Ok(Command::Serve(args))
        if args.model.model_path.as_deref() == Some("m".as_ref())));
    assert!(matches!(
        parsed(words("lockstep doctor")),
        Ok(Command::Doctor(_))
    ));
    for (line, expected) in [
        ("scheduler", Role::Scheduler),
        ("worker --index 3", Role::Worker(3)),
        ("tokenizer-manager --index 1", Role::TokenizerManager(1)),
    ] {
        let parsed = parsed(words(&format!("lockstep {line} --run-dir /run/x")));
        assert!(
            matches!(parsed, Ok(Command::Role(role, dir))
            if role == expected && dir.as_os_str() == "/run/x"),
            "{line}"
        );
    }
}

#[test]
fn a_file_gives_options_to_the_command_it_is_named_for() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "port = 7").expect("written");
    let line = format!("lockstep --config {}", file.path().display());
    assert!(
        matches!(parsed(words(&line)), Ok(Command::Serve(args)) if args.server.port == Some(7))
    );
    std::fs::write(file.path(), "prot = 7").expect("written");
    assert!(parsed(words(&line)).is_err());
}

#[test]
fn a_folder_that_is_missing_is_traced_to_the_file_that_names_it() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "model-path = '/no/folder'").expect("written");
    let error = LaunchError::Hub(HubError::NoFolder {
        option: "--model-path",
        path: "/no/folder".into(),
        why: String::new(),
    });
    let hint = |line: &str| hints(&error, words(line), &algorithms()).concat();
    let line = format!("lockstep serve --config {}", file.path().display());
    assert!(hint(&line).contains("--config"), "{}", hint(&line));
    assert_eq!(hint("lockstep serve /no/folder"), "");
}

/// The meaning of a stray word depends on the options of its command.
#[test]
fn a_stray_word_gets_a_hint_of_its_own_command() {
    let command = program();
    for (line, expected) in [
        ("serve --port 1 m", Some("lockstep serve MODEL")),
        ("pack --weight-cache w m", Some("lockstep pack MODEL")),
        (
            "generate m --prompt text",
            Some("a model is --model-path MODEL"),
        ),
        (
            "generate two words",
            Some("quotes; a model is --model-path MODEL"),
        ),
        (
            "bench offline m",
            Some("an option here: --model-path MODEL"),
        ),
        ("bench planner m", None),
        ("models m", None),
    ] {
        let line = words(&format!("lockstep {line}"));
        let error = command.clone().try_get_matches_from(&line);
        let found = source::hint(&command, &line, &error.expect_err("a stray word"));
        match expected {
            None => assert_eq!(found, None, "{line:?}"),
            Some(part) => assert!(
                found.as_ref().is_some_and(|hint| hint.contains(part)),
                "{line:?}: {found:?}"
            ),
        }
    }
}

/// Roles are started only by the program itself.
#[test]
fn only_public_commands_are_suggested() {
    let command = program();
    for (word, expected) in [
        ("server", Some("similar subcommand exists: 'serve'")),
        ("schedule", None),
        ("workr", None),
        ("generat", Some("'generate'")),
    ] {
        let error = command.clone().try_get_matches_from(["lockstep", word]);
        let mut error = error.expect_err("none of that name");
        source::suggest_public(&command, &mut error);
        let text = error.to_string();
        match expected {
            None => assert!(!text.contains("tip"), "{text}"),
            Some(part) => assert!(text.contains(part), "{text}"),
        }
    }
}

/// Variables of `serve` also set the options that `generate` and `pack` share with it. No
/// variable sets options that one of them refuses.
#[test]
fn commands_share_the_servers_variables() {
    let program = program();
    let serve = program.find_subcommand("serve").expect("a command");
    for (name, refused) in [
        ("generate", &["served_model_name"][..]),
        ("pack", &["served_model_name", "context_length"]),
    ] {
        let command = program.find_subcommand(name).expect("a command");
        for own in command.get_arguments() {
            let mut names = own
                .get_long()
                .into_iter()
                .chain(own.get_all_aliases().into_iter().flatten());
            let known = names.find_map(|name| {
                serve
                    .get_arguments()
                    .find(|arg| arg.get_long() == Some(name) && !arg.is_hide_set())
            });
            let Some(servers) = known.filter(|arg| arg.get_id() != "help") else {
                continue;
            };
            let is_refused = refused.contains(&own.get_id().as_str());
            let expected = servers.get_env().filter(|_| !is_refused);
            assert_eq!(own.get_env(), expected, "{name}: {own}");
        }
    }
}

/// Only requests name folders of other weights.
#[test]
fn a_folder_of_updates_is_a_servers() {
    for (command, known) in [
        ("serve", true),
        ("generate hi", false),
        ("pack", false),
        ("bench offline", false),
    ] {
        let line = format!("lockstep {command} --weight-update-dir /tmp");
        assert_eq!(parsed(words(&line)).is_ok(), known, "{line}");
    }
}

#[test]
fn help_says_where_a_folder_may_stand() {
    let help = program()
        .find_subcommand_mut("serve")
        .map(|serve| serve.render_help());
    let help = help.expect("serve is a command").to_string();
    assert!(help.contains("lockstep serve [MODEL]"), "{help}");
}

/// Options that NGRAM declares are refused by its own checks, on every command.
#[test]
fn an_algorithms_own_flags_are_its_own() {
    use crate::settings::tests::refusal;
    for (line, expected) in [
        (
            "--speculative-algorithm EAGLE3 --speculative-ngram-private",
            "--speculative-ngram-private and --speculative-algorithm EAGLE3: it looks no texts up. \
             Leave --speculative-ngram-private out, or give --speculative-algorithm NGRAM.",
        ),
        (
            "--speculative-algorithm NGRAM --speculative-ngram-private \
             --speculative-ngram-capacity 9",
            "--speculative-ngram-capacity 9 and --speculative-ngram-private: no served text is \
             remembered. Leave one of them out.",
        ),
        (
            "--speculative-algorithm NGRAM --speculative-ngram-min-match-window-size 65",
            "--speculative-ngram-min-match-window-size 65: at most 64. Give that or less.",
        ),
        (
            "--speculative-algorithm NGRAM --speculative-ngram-min-match-window-size 5 \
             --speculative-ngram-max-match-window-size 4",
            "--speculative-ngram-min-match-window-size 5 and \
             --speculative-ngram-max-match-window-size 4: the shortest suffix would be longer than \
             the longest. Give a --speculative-ngram-max-match-window-size that is no smaller.",
        ),
        (
            "--speculative-algorithm NGRAM --speculative-ngram-capacity 9",
            "--speculative-ngram-capacity 9: the longest match and its continuation are 23 tokens. \
             Give at least 24, or leave it out.",
        ),
    ] {
        let words = words(&format!("lockstep {line}"));
        let Ok(Command::Serve(args)) = parse(words, &algorithms()) else {
            panic!("{line}: it parses");
        };
        assert_eq!(refusal(*args), expected, "{line}");
    }
}

/// Options that users of other engines type, and the name that the error must contain.
#[test]
fn options_of_other_engines_get_an_answer() {
    use crate::settings::tests::refusal;
    for (line, expected) in [
        (
            "--seed 1",
            "--seed is not an option here: give `seed` in each request",
        ),
        ("--seed=-1", "--seed is"),
        ("m --block-size 32", "--page-size"),
        ("--enable-prefix-caching", "--disable-radix-cache"),
        ("--no-enable-prefix-caching", "--disable-radix-cache"),
        ("--max-num-batched-tokens 2048", "--max-prefill-tokens"),
        ("--gpu-memory-utilization 0.9", "--mem-fraction-static"),
        ("--enforce-eager", "--disable-cuda-graph"),
        ("--speculative-config {}", "--speculative-algorithm"),
        ("--n-gpu-layers -1", "--device cuda"),
    ] {
        let words = words(&format!("lockstep serve {line}"));
        let matches = program().try_get_matches_from(super::with_default_command(words));
        let matches = matches.expect("known, to be refused");
        let (_, matches) = matches.subcommand().expect("serve");
        let args = <lockstep_config::ServeArgs as clap::FromArgMatches>::from_arg_matches(matches);
        let args = args.expect("serve's arguments");
        let early = args.check_foreign().expect_err(line).to_string();
        assert!(early.contains(expected), "{line}: {early}");
        assert_eq!(refusal(args), early, "{line}");
    }
    for (line, expected) in [
        (
            "lockstep -c 4096",
            Some("-c is not an option here: use --context-length"),
        ),
        (
            "lockstep serve m -ngl 99",
            Some("-ngl is not an option here: use --device cuda"),
        ),
        ("lockstep config -tp 2", Some("use --tp-size")),
        ("lockstep serve -h", None),
        ("lockstep generate -p x", None),
    ] {
        let words = super::with_default_command(words(line));
        let found = super::check_words(&words).map_err(|error| error.to_string());
        match (found, expected) {
            (Ok(()), None) => {}
            (Err(found), Some(expected)) => assert!(found.contains(expected), "{line}: {found}"),
            (found, _) => panic!("{line}: {found:?}"),
        }
    }
    // Options that change nothing here pass. The others are refused before anything is
    // loaded.
    assert!(
        parsed(words(
            "lockstep serve m --pp-size 1 --trust-remote-code=false"
        ))
        .is_ok()
    );
    assert!(parsed(words("lockstep serve some/model --block-size 32")).is_err());
    assert!(parsed(words("lockstep serve some/model -np 32")).is_err());
}

#[test]
fn variables_that_set_nothing_are_named() {
    let said = |variables: &[(&str, &str)]| {
        let variables = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        source::unknown(&program(), variables)
    };
    let known = [
        ("LOCKSTEP_TP_SIZE", "2"),
        ("LOCKSTEP_SPECULATIVE_ALGORITHM", "NGRAM"),
        ("LOCKSTEP_SERVICE_HOST", "10.0.0.1"),
        ("LOCKSTEP_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("LOCKSTEP_GATEWAY_PORT", "tcp://10.0.0.1:80"),
        ("LOCKSTEP_CONSTRAINT_MASKS", "device"),
        ("LOCKSTEP_CUDA_PDL", "0"),
        ("LOCKSTEP_CUDA_PDL_TRIGGER", "half"),
        ("LOCKSTEP_CUDA_PREFETCH", "1"),
        ("PATH", "/bin"),
    ];
    assert_eq!(said(&known), None);
    let note = said(&[
        ("LOCKSTEP_TPSIZE", "2"),
        ("LOCKSTEP_PORT", "1"),
        ("LOCKSTEP_FOO", ""),
    ]);
    let note = note.expect("two of them");
    assert!(note.contains("LOCKSTEP_FOO, LOCKSTEP_TPSIZE of"), "{note}");
}
