use lockstep_config::{Algorithms, ConfigFile, Hardware, ServeArgs, resolve};

/// A configuration of the demo model, for tests of other modules.
pub(crate) fn config_file() -> ConfigFile {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let mut args = ServeArgs::default();
    args.model.model_path = Some(crate::demo::unpack(parent.path()).expect("unpacked"));
    let hardware = Hardware {
        cores: vec![0, 1],
        total_memory: 8 << 30,
        available_memory: 8 << 30,
        memory_limit: None,
    };
    let (engine, node) = resolve(&args, &hardware, &Algorithms::default())
        .expect("a good configuration")
        .value;
    ConfigFile::new(engine, node)
}
