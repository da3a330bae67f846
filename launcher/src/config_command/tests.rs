use lockstep_config::{ServeArgs, args::DeviceArg};

use super::describe;
use crate::settings::{Settings, tests::algorithms};

#[test]
fn shows_everything_but_secrets() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let mut args = ServeArgs::default();
    args.process.run_dir = Some(parent.path().to_owned());
    args.parallel.device = Some(DeviceArg::Cpu);
    args.server.api_key = Some("hunter2".into());
    let settings = Settings::of_server(&args, &algorithms()).expect("good");
    let text = describe(&settings).to_string();
    assert!(text.contains(&settings.file.hash));
    assert!(text.contains("(inside the program)") && text.contains("set, not shown"));
    assert!(!text.contains("hunter2"));
    assert!(!text.contains(&parent.path().display().to_string()));
    assert_eq!(
        settings.file.engine.speculation.algorithm.as_deref(),
        Some("EAGLE3"),
        "the demo model speculates"
    );
    assert_eq!(
        settings.file.engine.parallel.tp_size, 2,
        "the demo model shows two ranks"
    );
}

#[test]
fn certificates_are_looked_at() {
    let mut args = ServeArgs::default();
    args.server.ssl_certfile = Some("missing.pem".into());
    args.server.ssl_keyfile = Some("missing.key".into());
    let error = super::run(&args, &algorithms()).expect_err("no such files");
    assert!(error.to_string().contains("missing.pem"), "{error}");
}
