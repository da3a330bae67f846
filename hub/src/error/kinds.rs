//! What kinds of failures there are: whom they tell, and what may be done instead.

use std::io;
use std::path::Path;

use super::HubError;
use crate::name::Name;

impl HubError {
    /// What the system said of a file of the cache.
    pub(crate) fn cache(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { path, source }
            }
            _ => Self::Cache { path, source },
        }
    }

    /// Whether a version that is in the cache will do instead: the hub was away, refused, or
    /// said what can't be; or another program keeps the next version to itself. A revision that it no longer has is no such failure.
    pub(crate) fn is_borne(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Slow { .. }
                | Self::Locked { .. }
                | Self::RateLimited { .. }
                | Self::Status { .. }
                | Self::TooLarge { .. }
                | Self::TokenRefused { .. }
                | Self::Gated { .. }
                | Self::Forbidden { .. }
                | Self::Missing { .. }
                | Self::Answer { .. }
        )
    }

    /// The same of a `name` that may be meant as a path to a folder, which is not there either:
    /// the hub has not said that it is a model.
    pub(crate) fn or_folder(self, name: &Name) -> Self {
        let says_nothing = matches!(
            self,
            Self::Unreachable { .. }
                | Self::Offline { .. }
                | Self::Slow { .. }
                | Self::RateLimited { .. }
                | Self::Status { .. }
                | Self::TokenRefused { .. }
                | Self::Forbidden { .. }
                | Self::Answer { .. }
        );
        match says_nothing {
            true => Self::OrFolder {
                name: name.clone(),
                failure: Box::new(self),
            },
            false => self,
        }
    }

    /// Whether the command line or the environment asks for what can't be had, rather
    /// than that something failed.
    pub fn is_usage(&self) -> bool {
        if let Self::OrFolder { failure, .. } = self {
            return failure.is_usage();
        }
        !matches!(
            self,
            Self::RateLimited { .. }
                | Self::Unreachable { .. }
                | Self::Slow { .. }
                | Self::Locked { .. }
                | Self::Status { .. }
                | Self::Answer { .. }
                | Self::Full { .. }
                | Self::Damaged { .. }
                | Self::Space { .. }
                | Self::Cache { .. }
                | Self::Unreadable { .. }
                | Self::Stopped(_)
                | Self::System(_)
        )
    }
}
