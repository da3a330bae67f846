use std::path::Path;
use std::sync::Arc;

use lockstep_config::{
    Algorithm, Algorithms, Capabilities, ConfigError, ConfigFile, DraftKv, DraftModel, Hardware,
    ModelConfig, ServeArgs, resolve,
};

/// A configuration of the demo model, for tests of other modules.
pub(crate) fn config_file() -> ConfigFile {
    config_of(ServeArgs::default())
}

/// That of some options.
pub(crate) fn config_of(mut args: ServeArgs) -> ConfigFile {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let known = algorithms();
    if args.speculation.speculative_algorithm.is_some() {
        crate::demo::speculate(&mut args.speculation, &known, parent.path()).expect("unpacked");
    }
    args.model.model_path = Some(crate::demo::unpack(parent.path()).expect("unpacked"));
    let hardware = Hardware {
        cores: vec![0, 1],
        total_memory: 8 << 30,
        available_memory: 8 << 30,
        memory_limit: None,
    };
    let (engine, node) = resolve(&args, &hardware, &known)
        .expect("a good configuration")
        .value;
    ConfigFile::new(engine, node)
}

/// EAGLE3 as configuration sees it, and an algorithm without a model.
pub(crate) fn algorithms() -> Algorithms {
    let mut algorithms = Algorithms::default();
    algorithms.add(Arc::new(Known("EAGLE3")));
    algorithms.add(Arc::new(Known("NGRAM")));
    algorithms
}

#[derive(Debug)]
struct Known(&'static str);

impl Algorithm for Known {
    fn name(&self) -> &str {
        self.0
    }

    fn summary(&self) -> &str {
        "for tests"
    }

    fn capabilities(&self) -> Capabilities {
        let head = self.0 == "EAGLE3";
        Capabilities {
            needs_draft_model: head,
            draft_kv: if head { DraftKv::Pairs } else { DraftKv::None },
            supports_tree: true,
            supports_target_verify_for_draft: false,
            draft_probabilities: head,
            carries_hidden_states: head,
            adaptive: false,
        }
    }

    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        path.map(|path| DraftModel::load_eagle3(path, target))
            .transpose()
    }
}
