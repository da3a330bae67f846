//! Models by their names: what the Hugging Face Hub has is loaded into the cache that
//! every program of its users shares, and found there again.
//!
//! Only what a server reads is loaded: `config.json` first, so that a model that can't
//! be served is refused before its weights come, then tokenizer, chat template and the
//! safetensors. Several files come at once; each is resumed where it was interrupted, by
//! whatever, and what has come is compared with the hash that the hub tells.
//!
//! The layout is [huggingface_hub's](https://huggingface.co/docs/huggingface_hub/guides/manage-cache):
//! `blobs` by hash, `snapshots` of links to them, `refs` from names to commits.

#![forbid(unsafe_code)]

mod answer;
mod by_name;
mod cache;
mod client;
mod connect;
mod digest;
mod download;
mod error;
mod fetch;
mod lock;
mod meant;
mod name;
mod pace;
mod part;
mod plan;
mod progress;
mod settings;
mod stop;
mod tries;
mod waiting;

pub use by_name::{check, resolve_name, resolve_names};
pub use cache::{Cached, Snapshot};
pub use error::HubError;
pub use fetch::{Fetched, Hub};
pub use name::{BadRevision, Name, Revision};
pub use plan::{Kind, Wanted};
pub use progress::{Event, bars};
pub use settings::{Patience, Settings, Token};
