//! Models by their names: loads models from the Hugging Face Hub into the cache that all
//! programs of a user share, and finds them there again.
//!
//! Only files that a server reads are loaded. `config.json` comes first: a model that can't
//! be served is refused before its weights come. Tokenizer, chat template and the
//! safetensors follow, several files at once. Each file is resumed after any interruption,
//! and compared with the hub's hash.
//!
//! The layout is [huggingface_hub's](https://huggingface.co/docs/huggingface_hub/guides/manage-cache):
//! `blobs` by hash, `snapshots` of links to them, `refs` from names to commits.

#![forbid(unsafe_code)]

mod answer;
mod by_name;
mod cache;
mod client;
mod connect;
mod deadline;
mod digest;
mod download;
mod error;
mod fetch;
mod hub_model;
mod lock;
mod minimum_rate;
mod name;
mod part;
mod plan;
mod progress;
mod retries;
mod settings;
mod stop;

pub use by_name::{check, is_here, resolve_name, resolve_names};
pub use cache::{Cached, Snapshot};
pub use error::HubError;
pub use fetch::{Fetched, Hub};
pub use name::{BadRevision, Name, Revision};
pub use plan::{Kind, ModelRequest};
pub use progress::{Event, bars};
pub use settings::{Settings, Token, TransferLimits};
