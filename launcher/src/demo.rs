//! The demo model inside the program.

use std::io;
use std::path::{Path, PathBuf};

/// Its name in the API.
pub(crate) const NAME: &str = "lockstep-demo-7m";
/// Ranks it is served with: two, to show what the program is about.
pub(crate) const TP_SIZE: usize = 2;

macro_rules! file {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!("../../models/lockstep-demo-7m/", $name)).as_slice(),
        )
    };
}

/// Name and content of each file of the model.
const FILES: [(&str, &[u8]); 5] = [
    file!("config.json"),
    file!("generation_config.json"),
    file!("model.safetensors"),
    file!("tokenizer.json"),
    file!("tokenizer_config.json"),
];

/// Writes the model into a folder of its own below `parent` and returns that.
///
/// # Errors
/// Those of the file system.
pub(crate) fn unpack(parent: &Path) -> io::Result<PathBuf> {
    let folder = parent.join(NAME);
    std::fs::create_dir(&folder)?;
    for (name, content) in FILES {
        std::fs::write(folder.join(name), content)?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use lockstep_config::ModelConfig;

    #[test]
    fn the_model_inside_is_complete() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = super::unpack(parent.path()).expect("unpacked");
        let model = ModelConfig::load(&folder).expect("a served model");
        assert_eq!((model.num_layers, model.vocab_size), (7, 4096));
        assert_eq!(model.eos_token_ids, [2]);
    }
}
