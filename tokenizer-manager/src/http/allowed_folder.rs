//! Check of the folders that a request may name: those inside a folder of the operator's.

use std::path::{Component, Path, PathBuf};

use axum::http::StatusCode;
use lockstep_files::{LONGEST_LOOK, within};

use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// A folder that the operator named, inside which requests may name folders.
#[derive(Debug)]
pub(super) struct AllowedFolder {
    dir: PathBuf,
    /// Option that names it.
    option: &'static str,
}

impl AllowedFolder {
    /// Returns the folder of new weights.
    ///
    /// # Errors
    /// 403 on a server without `--weight-update-dir`.
    pub(super) fn of_weights(app: &App) -> ApiResult<Self> {
        let refusal = (
            "weight_updates_off",
            "This server keeps its weights. Start it with --weight-update-dir DIR to allow those \
             in folders inside DIR.",
        );
        Self::of(
            app.weight_update_dir.as_ref(),
            "--weight-update-dir",
            refusal,
        )
    }

    /// Returns the folder of adapters.
    ///
    /// # Errors
    /// 403 on a server without `--lora-dir`.
    pub(super) fn of_adapters(app: &App) -> ApiResult<Self> {
        let refusal = (
            "adapters_off",
            "This server loads no adapters from requests. Start it with --enable-lora and \
             --lora-dir DIR to allow those in folders inside DIR.",
        );
        Self::of(app.lora_dir.as_ref(), "--lora-dir", refusal)
    }

    fn of(
        dir: Option<&PathBuf>,
        option: &'static str,
        (code, message): (&'static str, &str),
    ) -> ApiResult<Self> {
        match dir {
            Some(dir) => Ok(Self {
                dir: dir.clone(),
                option,
            }),
            None => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "permission_error",
                Some(code),
                message,
            )),
        }
    }

    /// Returns the real path of the folder `path`. `field` is the request's field for
    /// errors.
    ///
    /// # Errors
    /// 400 for every other path. All have the same message, so that requests cannot
    /// find out what else is on the disk. 503 if the disk does not answer.
    pub(super) async fn find(&self, field: &str, path: String) -> ApiResult<String> {
        let dir = self.dir.clone();
        let look = move || within(LONGEST_LOOK, move || inside(&dir, Path::new(&path)));
        let found = tokio::task::spawn_blocking(look).await;
        let found = found.map_err(|_| ApiError::internal("Looking for the folder failed."))?;
        let found = found.map_err(|error| {
            ApiError::unavailable(format!("The folder cannot be looked for: {error}."))
        })?;
        found.ok_or_else(|| {
            ApiError::invalid(
                field,
                format!(
                    "Invalid '{field}': there is no such folder inside the server's {}; give its \
                     path from there, without '..'.",
                    self.option
                ),
            )
        })
    }
}

/// Returns the real path of a folder below `dir`. `None` for all other paths, for `dir`
/// itself, and for links that lead out of it. Paths outside are never looked up, so
/// that the time of an answer reveals nothing either.
fn inside(dir: &Path, path: &Path) -> Option<String> {
    if path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let real = dir.canonicalize().ok()?;
    let named = dir.join(path);
    if !named.starts_with(dir) && !named.starts_with(&real) {
        return None;
    }
    let folder = named.canonicalize().ok()?;
    let below = folder != real && folder.starts_with(&real) && folder.is_dir();
    below.then(|| folder.into_os_string().into_string().ok())?
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn folders_below_are_found_and_no_others() {
        let parent = tempfile::tempdir().expect("a folder");
        let parent = parent.path().canonicalize().expect("real");
        let (dir, other) = (parent.join("dir"), parent.join("other"));
        // A neighbour whose name begins with the same letters.
        let alike = parent.join("dir-2");
        for folder in [&dir.join("a/b"), &other.join("secret"), &alike] {
            fs::create_dir_all(folder).expect("made");
        }
        fs::write(dir.join("file"), "").expect("written");
        symlink("a", dir.join("alias")).expect("linked");
        symlink(&other, dir.join("out")).expect("linked");
        symlink("..", dir.join("up")).expect("linked");
        symlink(".", dir.join("self")).expect("linked");
        let link = parent.join("link");
        symlink(&dir, &link).expect("linked");

        let text = |path: PathBuf| Some(path.to_str().expect("UTF-8").to_owned());
        for start in [&dir, &link] {
            for (named, found) in [("a", "a"), ("a/b/", "a/b"), ("./alias/b", "a/b")] {
                let expected = text(dir.join(found));
                assert_eq!(inside(start, Path::new(named)), expected, "{named}");
                assert_eq!(inside(start, &start.join(named)), expected, "{named}");
                assert_eq!(inside(start, &dir.join(named)), expected, "{named}");
            }
            for named in [
                "",
                ".",
                "/",
                "..",
                "none",
                "file",
                "file/",
                "out",
                "out/secret",
                "up",
                "up/other",
                "self",
                "../other",
                "a/../a",
                "a/../../other",
                "a\0",
            ] {
                assert_eq!(inside(start, Path::new(named)), None, "{named:?}");
            }
            for named in [&parent, &other, &other.join("secret"), &alike, &dir, &link] {
                assert_eq!(inside(start, named), None, "{named:?}");
            }
            let escape = start.join("../other");
            assert_eq!(inside(start, &escape), None);
        }
        assert_eq!(inside(&parent.join("gone"), Path::new("a")), None);
    }
}
