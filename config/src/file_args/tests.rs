use std::path::Path;

use lockstep_types::OptionValues;

use super::with_config_file;
use crate::args::ServeArgs;
use crate::testing::Program;

/// Parses a command line with a `--config` file of this content.
fn parse(line: &[&str], content: &str) -> Result<ServeArgs, String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), content).expect("written");
    let mut words = vec!["lockstep".into(), "--config".into(), file.path().into()];
    words.extend(line.iter().map(Into::into));
    let words =
        with_config_file(&Program::definition(), words).map_err(|error| error.to_string())?;
    Program::parse_words(words)
        .map(|program| program.args)
        .map_err(|error| error.to_string())
}

#[test]
fn keys_are_flags() {
    let args = parse(
        &[],
        "# comment\nport = 9000\nhost = '0.0.0.0'\nmem-fraction-static = 0.5\nlog-json = true\n\
         disable-radix-cache = false\nchunked-prefill-size = -1\ndtype = 'float32'\n",
    )
    .expect("good");
    assert_eq!(
        (args.server.port, args.server.host.as_deref()),
        (Some(9000), Some("0.0.0.0"))
    );
    assert_eq!(args.memory.mem_fraction_static, Some(0.5));
    assert_eq!(
        (args.process.log_json, args.memory.disable_radix_cache),
        (true, false)
    );
    assert_eq!(args.schedule.chunked_prefill_size, Some(-1));
}

#[test]
fn flags_win() {
    let args = parse(
        &["--port", "1", "--log-json"],
        "port = 2\nlog-json = false\n",
    )
    .expect("good");
    assert_eq!((args.server.port, args.process.log_json), (Some(1), true));
}

/// Uses a variable that every test run has.
#[test]
fn the_environment_wins_over_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "home = 'of the file'\nother = 'of the file'\n").expect("written");
    let config = clap::value_parser!(std::path::PathBuf);
    let command = clap::Command::new("p")
        .arg(clap::Arg::new("config").long("config").value_parser(config))
        .arg(clap::Arg::new("home").long("home").env("PATH"))
        .arg(clap::Arg::new("other").long("other"));
    let words = vec!["p".into(), "--config".into(), file.into()];
    let all = with_config_file(&command, words.clone()).expect("good");
    assert_eq!(all[words.len()..], ["--other=of the file"]);
}

#[test]
fn values_are_checked_as_flags_are() {
    let error = parse(&[], "page-size = 0").expect_err("not a size");
    for part in ["--config", "--page-size", "at least 1"] {
        assert!(error.contains(part), "{error}");
    }
    let error = parse(&[], "dtype = 'int4'").expect_err("not a type");
    assert!(
        error.contains("--config") && error.contains("float32"),
        "{error}"
    );
}

#[test]
fn relative_paths_begin_at_the_files_folder() {
    let args = parse(
        &[],
        "model-path = 'm'\napi-key-file = '/k'\nspeculative-draft-model-path = './d/e'\n\
         weight-update-dir = 'w'\nadmin-api-key-file = 'op'\n\
         speculative-algorithm = 'EAGLE'\nspeculative-num-steps = 4\n\
         speculative-adaptive = true\nspeculative-adaptive-config = 'a.json'\n\
         lora-dir = 'l'\nlora-paths = ['a=l/a', 'b=/b']\n",
    )
    .expect("good");
    let (speculation, here) = (&args.speculation, std::env::temp_dir());
    assert_eq!(
        speculation.speculative_draft_model_path,
        Some(here.join("d/e"))
    );
    assert_eq!(speculation.speculative_algorithm.as_deref(), Some("EAGLE"));
    assert_eq!(speculation.speculative_num_steps, Some(4));
    assert_eq!(speculation.speculative_adaptive, Some(true));
    assert_eq!(
        speculation.speculative_adaptive_config,
        Some(here.join("a.json"))
    );
    let model = args.model.model_path.expect("given");
    assert_eq!(model, std::env::temp_dir().join("m"));
    assert_eq!(args.server.api_key_file, Some("/k".into()));
    assert_eq!(args.server.admin_api_key_file, Some(here.join("op")));
    let updates = std::env::temp_dir().join("w");
    assert_eq!(args.server.weight_update_dir, Some(updates));
    assert_eq!(args.lora.lora_dir, Some(here.join("l")));
    let adapters = args.lora.lora_paths.iter().map(|adapter| &adapter.path);
    assert_eq!(
        adapters.collect::<Vec<_>>(),
        [&here.join("l/a"), Path::new("/b")]
    );
}

/// Covers all options whose values are paths, except the library with a search path of its own.
#[test]
fn every_path_of_a_file_begins_at_its_folder() {
    let command = Program::definition();
    let of_path = |argument: &&clap::Arg| {
        argument.get_value_parser().type_id() == std::any::TypeId::of::<std::path::PathBuf>()
    };
    let paths = command.get_arguments().filter(of_path);
    let paths: Vec<_> = paths.filter_map(clap::Arg::get_long).collect();
    let known = super::PATHS.iter().copied().chain(["config", "nccl-path"]);
    let (mut paths, mut known) = (paths, known.collect::<Vec<_>>());
    paths.sort_unstable();
    known.sort_unstable();
    assert_eq!(paths, known);
}

#[test]
fn a_models_name_stays_one_unless_a_folder_has_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.toml");
    let located = |key, text| super::located(&file, key, text);
    let there = |text| folder.path().join(text);
    for key in ["model-path", "speculative-draft-model-path"] {
        assert_eq!(located(key, "owner/name"), Path::new("owner/name"));
        for text in [
            "name",
            "./owner/name",
            "../name",
            "a/b/c",
            "owner/",
            "/name",
        ] {
            assert_eq!(located(key, text), there(text), "{text}");
        }
    }
    assert_eq!(located("weight-cache", "owner/name"), there("owner/name"));
    std::fs::create_dir_all(there("owner/name")).expect("made");
    // A mistyped name counts, too.
    for name in ["owner/name", "owner/nmae"] {
        assert_eq!(located("model-path", name), there(name));
    }
}

/// All switches are written alike, in every place.
#[test]
fn a_switch_is_on_alone_and_may_say_its_state() {
    for (file, flags, expected) in [
        ("", &[][..], false),
        ("", &["--log-json"], true),
        ("", &["--log-json=true"], true),
        ("", &["--log-json=false"], false),
        ("", &["--log-json", "--port", "1"], true),
        ("log-json = true", &["--log-json=false"], false),
        ("log-json = 'on'", &[], true),
    ] {
        let args = parse(flags, file).expect(file);
        assert_eq!(args.process.log_json, expected, "{file} {flags:?}");
    }
    let error = parse(&["--log-json=perhaps"], "").expect_err("neither");
    assert!(error.contains("--log-json[=<true|false>]"), "{error}");
    let private = |flag: &str| {
        let args = parse(&[flag], "").expect(flag);
        args.speculation.algorithm.0
    };
    let flag = "--speculative-window-private";
    assert_ne!(private(flag), OptionValues::default());
    assert_eq!(private(&format!("{flag}=true")), private(flag));
    assert_eq!(private(&format!("{flag}=false")), OptionValues::default());
}

/// A switch that is on by default in some cases can be set to off.
#[test]
fn a_switch_may_be_off() {
    for (file, flags, expected) in [
        ("", &[][..], None),
        ("speculative-adaptive = false", &[], Some(false)),
        ("speculative-adaptive = true", &[], Some(true)),
        (
            "speculative-adaptive = false",
            &["--speculative-adaptive"],
            Some(true),
        ),
        (
            "speculative-adaptive = true",
            &["--speculative-adaptive=false"],
            Some(false),
        ),
        ("speculative-adaptive = 'off'", &[], Some(false)),
    ] {
        let args = parse(flags, file).expect(file);
        assert_eq!(
            args.speculation.speculative_adaptive, expected,
            "{file} {flags:?}"
        );
    }
    let args = parse(&[], "enable-dp-attention = true\ndp-size = 2\n").expect("good");
    assert!(args.parallel.enable_dp_attention);
    assert_eq!(args.parallel.dp_size, Some(2));
    let error = parse(&[], "speculative-adaptive = 'perhaps'").expect_err("neither");
    assert!(error.contains("--speculative-adaptive"), "{error}");
    let error = parse(&[], "dp-size = true").expect_err("no number");
    assert!(error.contains("must be a text or a number"), "{error}");
}

#[test]
fn options_that_take_several_values_are_lists() {
    let args = parse(
        &[],
        "cors-allowed-origins = ['http://a', 'http://b']\nserved-model-name = ['x', 'y']\n\
         allowed-hosts = 'c'\n",
    )
    .expect("good");
    assert_eq!(args.server.cors_allowed_origins, ["http://a", "http://b"]);
    assert_eq!(args.model.served_model_name, ["x", "y"]);
    assert_eq!(args.server.allowed_hosts, ["c"]);
    let over = parse(
        &["--served-model-name", "z"],
        "served-model-name = ['x', 'y']",
    );
    assert_eq!(over.expect("good").model.served_model_name, ["z"]);
}

#[test]
fn what_is_not_an_option_is_an_error() {
    let table = [
        ("prot = 1", "`prot` is not an option"),
        ("page_size = 1", "write `page-size`"),
        ("config = 'x'", "`config` is not an option"),
        ("help = true", "`help` is not an option"),
        (
            "quantization = 'fp8'",
            "[possible values: none, int8, int4]",
        ),
        ("lora-paths = 'a'", "must be NAME=FOLDER"),
        ("lora-paths = 'a b=c'", "the name before = must be"),
        ("lora-paths = 'a='", "names no folder"),
        ("lora-modules = 'a=b'", "write `lora-paths`"),
        (
            "max-cpu-loras = 1",
            "`max-cpu-loras` is not an option here: leave it out",
        ),
        ("max_num_seqs = 3", "write `max-running-requests`"),
        ("log-json = 'perhaps'", "--log-json[=<true|false>]"),
        ("log-json = 1", "`log-json` is a switch: true or false"),
        ("port = [1]", "a text or a number"),
        ("[port]\nx = 1", "a text or a number"),
        ("port = = 1", "TOML parse error"),
    ];
    for (content, expected) in table {
        let error = parse(&[], content).expect_err(content);
        assert!(error.contains(expected), "{content}: {error}");
        assert!(error.contains("--config"), "{content}: {error}");
    }
}

#[test]
fn a_missing_file_is_an_error_and_no_file_changes_nothing() {
    let line = |words: &[&str]| words.iter().map(Into::into).collect();
    let missing = with_config_file(
        &Program::definition(),
        line(&["lockstep", "--config", "/nowhere"]),
    );
    assert!(missing.is_err());
    let plain: Vec<_> = line(&["lockstep", "--port", "1"]);
    let same = with_config_file(&Program::definition(), plain.clone()).expect("nothing to do");
    assert_eq!(same, plain);
}

/// Every option needs a name in the environment, a heading and a sentence of help, so that none
/// is forgotten in one of the three places.
#[test]
fn every_option_has_its_name_in_the_environment_and_its_help() {
    let command = Program::definition();
    for argument in command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
    {
        let long = argument.get_long().expect("options are long");
        if matches!(long, "help" | "version") {
            continue;
        }
        let env = argument
            .get_env()
            .expect(long)
            .to_string_lossy()
            .into_owned();
        assert_eq!(
            env,
            format!("LOCKSTEP_{}", long.to_uppercase().replace('-', "_"))
        );
        assert!(
            argument.get_help_heading().is_some(),
            "--{long} has no heading"
        );
        assert!(argument.get_help().is_some(), "--{long} has no help");
        let secret = matches!(long, "api-key" | "dist-secret");
        assert_eq!(argument.is_hide_env_values_set(), secret, "--{long}");
    }
    command.debug_assert();
}

#[test]
fn a_kubernetes_service_link_is_explained() {
    let error =
        Program::parse_words(["lockstep", "--port", "tcp://10.0.0.1:80"]).expect_err("no port");
    assert!(error.to_string().contains("enableServiceLinks"), "{error}");
}
