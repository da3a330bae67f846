use std::path::Path;

use lockstep_config::args::DeviceArg;
use lockstep_config::{ConfigFile, Hardware, ServeArgs, resolve};
use lockstep_devices::Registry;
use lockstep_types::{Algorithms, ConfigError, EngineConfig, NodeConfig};

use crate::cli::{self, Command};

/// A configuration of the demo model, for tests of other modules.
pub(crate) fn config_file() -> ConfigFile {
    config_of(ServeArgs::default())
}

/// The reason why a configuration of some options is refused.
pub(crate) fn refusal(args: ServeArgs) -> String {
    resolved(args).expect_err("refused").to_string()
}

/// A configuration of some options.
pub(crate) fn config_of(args: ServeArgs) -> ConfigFile {
    let (engine, node) = resolved(args).expect("a good configuration");
    ConfigFile::new(engine, node)
}

fn resolved(mut args: ServeArgs) -> Result<(EngineConfig, NodeConfig), ConfigError> {
    // Cargo puts fakes of CUDA's libraries where programs look for them.
    args.parallel.device.get_or_insert(DeviceArg::Cpu);
    let parent = tempfile::tempdir().expect("a temporary folder");
    let known = algorithms();
    if args.speculation.speculative_algorithm.is_some() {
        crate::demo::speculate(&mut args.speculation, &known, parent.path()).expect("unpacked");
    }
    args.model.model_path = Some(crate::demo::unpack(parent.path()).expect("unpacked"));
    resolve(
        &args,
        &machine(),
        &known,
        &lockstep_devices::DeviceFootprint,
    )
    .map(|resolved| resolved.value)
}

fn machine() -> Hardware {
    Hardware {
        cores: vec![0, 1],
        total_memory: 8 << 30,
        available_memory: 8 << 30,
        memory_limit: None,
    }
}

/// The algorithms that the program comes with.
pub(crate) fn algorithms() -> Algorithms {
    Registry::builtin().algorithms()
}

/// The examples of docs/speculation.md, with the demo models in the place of their folders.
#[test]
fn the_documented_examples_are_good_configurations() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let folder = |name: &str| models.join(name).display().to_string();
    let text = include_str!("../../../docs/speculation.md").replace("\\\n", "");
    let mut found = Vec::new();
    for line in text
        .lines()
        .filter(|line| line.contains("--speculative-algorithm"))
    {
        let Some(rest) = line.strip_prefix("lockstep serve DIR ") else {
            continue;
        };
        let words = rest.split_whitespace().map(|word| match word {
            "HEAD" if rest.contains("EAGLE3") => folder("lockstep-demo-7m-eagle3"),
            "HEAD" => folder("lockstep-demo-7m-eagle"),
            "DFLASH-MODEL" => folder("lockstep-demo-7m-dflash"),
            "SMALLER-MODEL" => folder("lockstep-demo-1m-draft"),
            word => word.to_owned(),
        });
        let words = [
            "lockstep".into(),
            "serve".into(),
            folder("lockstep-demo-7m"),
        ]
        .into_iter()
        .chain(words)
        .map(Into::into)
        .collect();
        let Ok(Command::Serve(mut args)) = cli::parse(words, &algorithms()) else {
            panic!("{line}: does not parse");
        };
        args.parallel.device = Some(DeviceArg::Cpu);
        let resolved = resolve(
            &args,
            &machine(),
            &algorithms(),
            &lockstep_devices::DeviceFootprint,
        );
        let speculation = resolved.expect(line).value.0.speculation;
        found.push((speculation.algorithm.expect(line), speculation.topk));
    }
    let expected = [
        ("EAGLE3", 1),
        ("EAGLE", 1),
        ("DFLASH", 1),
        ("STANDALONE", 1),
        ("NGRAM", 1),
        ("JUMP_FORWARD", 1),
        ("EAGLE3", 4),
    ];
    let expected = expected.map(|(name, topk)| (name.to_owned(), topk));
    assert_eq!(found, expected);
}

/// An option that is given has an effect or is an error.
#[test]
fn a_weight_cache_can_be_written_or_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    for good in [folder.path().to_owned(), folder.path().join("new/one")] {
        assert!(super::check_cache(&good).is_ok(), "{}", good.display());
        assert!(!folder.path().join("new").exists(), "nothing is made yet");
    }
    for wrong in [file.clone(), file.join("below")] {
        let error = super::check_cache(&wrong)
            .expect_err("no folder")
            .to_string();
        let begin = format!(
            "--weight-cache {}: {} is no",
            wrong.display(),
            file.display()
        );
        assert!(error.starts_with(&begin), "{error}");
    }
    // Root may write anywhere.
    let (closed, filled) = (folder.path().join("closed"), folder.path().join("filled"));
    for (path, files) in [(&closed, 0), (&filled, 1)] {
        std::fs::create_dir(path).expect("made");
        for file in 0..files {
            std::fs::write(path.join(file.to_string()), "").expect("written");
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o500);
        std::fs::set_permissions(path, mode).expect("closed");
    }
    assert!(super::check_cache(&filled).is_ok());
    if !rustix::process::geteuid().is_root() {
        let error = super::check_cache(&closed).expect_err("closed").to_string();
        assert!(error.contains("nothing can be written"), "{error}");
    }
}
