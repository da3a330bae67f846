//! Kinds of failures: the exit code that they lead to, and the alternatives to them.

use std::io;
use std::path::Path;

use super::HubError;
use crate::name::Name;

impl HubError {
    /// An error of a file of the cache, made of the system's error.
    pub(crate) fn cache(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { path, source }
            }
            _ => Self::Cache { path, source },
        }
    }

    /// Returns true if a version in the cache will do instead. That is so if the hub was
    /// away, refused or gave an impossible answer, or if another program holds the next
    /// version's lock. It is not so for a revision that the hub no longer has.
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

    /// Adds that `name` may be meant as a path to a folder, which does not exist either.
    /// Only failures that leave open whether the name is a model get this text.
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

    /// Returns true if the command line or the environment asks for something impossible,
    /// and false for failures of other kinds.
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
