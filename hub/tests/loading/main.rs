//! Models from a hub on loopback that fails in every way that hubs and networks do.

mod cache;
mod fallback;
mod faults;
mod foreign;
mod lies;
mod limits;
mod refusals;
mod shared;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockstep_hub::{
    Event, Fetched, Hub, HubError, Kind, ModelRequest, Name, Revision, Settings, TransferLimits,
};
use lockstep_loopback_hub::LoopbackHub;
use tempfile::TempDir;

/// Upper bound of the time of everything that ends by itself.
const LIMIT: Duration = Duration::from_secs(120);

/// The model that all tests load.
pub(crate) const NAME: &str = "owner/Some-Model.1";

/// Weights in two files, with the names of the index, each sent in several pieces.
pub(crate) const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

/// A hub with one model, and an empty cache.
pub(crate) struct Scene {
    pub(crate) hub: LoopbackHub,
    pub(crate) settings: Settings,
    pub(crate) notes: Arc<Mutex<Vec<String>>>,
    _folder: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let hub = LoopbackHub::start();
        let files = files();
        let files: Vec<_> = files
            .iter()
            .map(|(name, content)| (*name, content.as_slice()))
            .collect();
        hub.add(NAME, &files);
        let folder = tempfile::tempdir().expect("a folder");
        let settings = Settings {
            cache: folder.path().join("hub"),
            endpoint: hub.endpoint(),
            token: None,
            offline: None,
            limits: TransferLimits {
                stall: Duration::from_secs(5),
                attempts: 3,
                pause: Duration::from_millis(1),
                longest_pause: Duration::from_secs(2),
                window: Duration::from_secs(30),
                least: 20_000,
                described: LIMIT,
                set_by: Some("--startup-timeout"),
                word: LIMIT,
                lock: LIMIT,
            },
        };
        Self {
            hub,
            settings,
            notes: Arc::default(),
            _folder: folder,
        }
    }

    /// Loads the model.
    pub(crate) fn load(&self) -> Result<Fetched, HubError> {
        self.load_as(&wanted(NAME), &|_| Ok(()))
    }

    pub(crate) fn load_as(
        &self,
        wanted: &ModelRequest,
        check: &dyn Fn(&Path) -> Result<(), String>,
    ) -> Result<Fetched, HubError> {
        let notes = self.notes.clone();
        let events = move |event: Event<'_>| {
            if let Event::Note(text) = event {
                notes.lock().expect("notes").push(text.to_owned());
            }
        };
        Hub::new(self.settings.clone(), events).fetch(wanted, check)
    }

    /// Replaces a file of the hub's model.
    pub(crate) fn exchange(&self, name: &str, content: &[u8]) {
        let files = files();
        let others = files.iter().filter(|(file, _)| *file != name);
        let mut files: Vec<_> = others
            .map(|(file, content)| (*file, content.as_slice()))
            .collect();
        files.push((name, content));
        self.hub.add(NAME, &files);
    }

    /// All notes so far.
    pub(crate) fn events(&self) -> String {
        self.notes.lock().expect("notes").join("\n")
    }

    /// The folder of the model in the cache.
    pub(crate) fn repository(&self) -> std::path::PathBuf {
        self.settings.cache.join("models--owner--Some-Model.1")
    }

    /// Checks that all files that a server reads came whole, and no others.
    pub(crate) fn assert_whole(&self, fetched: &Fetched) {
        let mut names: Vec<_> = fs::read_dir(&fetched.folder)
            .expect("a snapshot")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("a name")
            })
            .collect();
        names.sort();
        let mut expected: Vec<_> = files()
            .into_iter()
            .filter(|(name, _)| is_served(name))
            .collect();
        expected.sort();
        assert_eq!(
            names,
            expected.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        );
        for (name, content) in expected {
            let bytes = lockstep_files::read(&fetched.folder, name, 1 << 30).expect("a file");
            assert!(bytes == content, "{name} differs");
        }
        let blobs = fs::read_dir(self.repository().join("blobs")).expect("blobs");
        for blob in blobs {
            let name = blob.expect("a blob").file_name();
            assert!(!name.to_string_lossy().ends_with(".incomplete"), "{name:?}");
        }
    }
}

pub(crate) fn wanted(name: &str) -> ModelRequest {
    ModelRequest {
        name: Name::parse(name).expect("a name"),
        revision: Revision::default(),
        kind: Kind::Target,
    }
}

/// Files of the repository: more than a server reads.
pub(crate) fn files() -> Vec<(&'static str, Vec<u8>)> {
    let weights = |seed: usize| (0..300_000).map(|i| (i * seed % 251) as u8).collect();
    let index = format!(
        r#"{{"metadata": {{}}, "weight_map": {{"a": "{}", "b": "{}", "c": "{}"}}}}"#,
        SHARDS[0], SHARDS[1], SHARDS[0]
    );
    vec![
        ("README.md", b"read".to_vec()),
        (
            "config.json",
            b"{\"architectures\": [\"LlamaForCausalLM\"]}".to_vec(),
        ),
        ("generation_config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{\"model\": {}}".to_vec()),
        ("tokenizer_config.json", b"{ }".to_vec()),
        ("chat_template.jinja", b"{{ messages }}".to_vec()),
        (
            "chat_template.json",
            b"{\"chat_template\": \"{{ messages }}\"}".to_vec(),
        ),
        ("model.safetensors.index.json", index.into_bytes()),
        (SHARDS[0], weights(7)),
        (SHARDS[1], weights(11)),
        ("pytorch_model.bin", vec![1; 1000]),
        ("model-q4.gguf", vec![2; 1000]),
    ]
}

pub(crate) fn is_served(name: &str) -> bool {
    !["README.md", "pytorch_model.bin", "model-q4.gguf"].contains(&name)
}
