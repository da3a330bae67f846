//! Options that name a model: an existing folder, a GGUF file, or a name of the hub.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_config::args::{ModelArgs, SpeculationArgs};
use lockstep_files::{is_gguf, linked_gguf, may_be_model, only_gguf, shown};
use lockstep_model_folder::Described;

use crate::cache::Repository;
use crate::hub_model::HubModel;
use crate::{Hub, HubError, Kind, ModelRequest, Name, Revision, Settings, bars};

/// An option's value: a model and its version.
struct ModelOption<'a> {
    /// The option.
    option: &'static str,
    path: &'a mut Option<PathBuf>,
    revision: Option<&'a str>,
    /// The option of the version.
    of_revision: &'static str,
    kind: Kind,
    startup: Option<Duration>,
}

/// Puts folders in the place of the names that options give, and loads the files that the
/// cache lacks. In the API a model has its name of the hub, unless another is given. A start
/// has at most `startup` for all loading that does not grow with the weights.
///
/// # Errors
/// [`HubError`].
pub fn resolve_names(
    model: &mut ModelArgs,
    speculation: Option<&mut SpeculationArgs>,
    startup: Option<Duration>,
) -> Result<(), HubError> {
    let name = resolve(
        &mut ModelOption {
            option: "--model-path",
            path: &mut model.model_path,
            revision: model.revision.as_deref(),
            of_revision: "--revision",
            kind: Kind::Target,
            startup,
        },
        &check,
    )?;
    if let Some(name) = name.filter(|_| model.served_model_name.is_empty()) {
        model.served_model_name.push(name.as_str().to_owned());
    }
    if let Some(speculation) = speculation {
        let is_whole = speculation.speculative_algorithm.as_deref();
        let is_whole = is_whole.is_some_and(|name| name.eq_ignore_ascii_case("STANDALONE"));
        let mut draft = ModelOption {
            option: "--speculative-draft-model-path",
            path: &mut speculation.speculative_draft_model_path,
            revision: speculation.speculative_draft_model_revision.as_deref(),
            of_revision: "--speculative-draft-model-revision",
            kind: Kind::Draft,
            startup,
        };
        // A head's `config.json` is like any model's: only its tensors show that it is a
        // head.
        match is_whole {
            true => resolve(&mut draft, &check)?,
            false => resolve(&mut draft, &|_| Ok(()))?,
        };
    }
    Ok(())
}

/// Puts a folder in the place of a name like [`resolve_names`], for an `option` without a
/// version.
///
/// # Errors
/// [`HubError`].
pub fn resolve_name(
    option: &'static str,
    path: &mut Option<PathBuf>,
    kind: Kind,
) -> Result<(), HubError> {
    let mut given = ModelOption {
        option,
        path,
        revision: None,
        of_revision: "--revision",
        kind,
        startup: None,
    };
    match kind {
        Kind::Target => resolve(&mut given, &check).map(drop),
        Kind::Draft => resolve(&mut given, &|_| Ok(())).map(drop),
    }
}

/// Returns true if `path` is a folder or a GGUF file of this machine, and no name of the hub.
pub fn is_here(path: &Path) -> bool {
    may_be_model(path)
}

/// Checks by its `config.json` that a model can be served.
///
/// # Errors
/// The reason, in words.
pub fn check(folder: &Path) -> Result<(), String> {
    let described = Described::of(folder);
    described
        .map(drop)
        .map_err(|error| shown(&error.to_string()))
}

fn resolve(
    given: &mut ModelOption<'_>,
    check: &dyn Fn(&Path) -> Result<(), String>,
) -> Result<Option<Name>, HubError> {
    let path = given.path.as_deref().filter(|path| !may_be_model(path));
    let Some(path) = path else {
        let folder = given.path.as_deref();
        let only = folder.map(|folder| {
            only_gguf(folder).map_err(|source| HubError::Folder {
                option: given.option,
                path: folder.to_owned(),
                source,
            })
        });
        let linked = folder.and_then(linked_gguf);
        if let Some(file) = only.transpose()?.flatten().or(linked) {
            *given.path = Some(file);
        }
        return match given.revision {
            Some(_) => Err(HubError::RevisionOfFolder {
                option: given.of_revision,
                path: given.path.clone().unwrap_or_default(),
            }),
            None => Ok(None),
        };
    };
    if is_gguf(path) {
        return Err(HubError::Folder {
            option: given.option,
            path: path.to_owned(),
            source: io::Error::other("there is no such file; check the path"),
        });
    }
    let no_folder = |why| HubError::NoFolder {
        option: given.option,
        path: path.to_owned(),
        why,
    };
    let meant = HubModel::by(path, Path::new("")).map_err(no_folder)?;
    let revision = given.revision.map(Revision::parse).transpose()?;
    let settings = Settings::from_env()?;
    // With a version, or with the model in the cache already, the user means the hub's
    // model.
    let is_model = revision.is_some() || Repository::new(&settings.cache, &meant.name).is_begun();
    if meant.owner_is_here && !is_model {
        return Err(no_folder(meant.but_a_folder()));
    }
    let wanted = ModelRequest {
        name: meant.name.clone(),
        revision: revision.unwrap_or_default(),
        kind: given.kind,
    };
    let settings = match given.startup {
        Some(limit) => settings.within(limit),
        None => settings,
    };
    let fetched = Hub::new(settings, bars()).fetch(&wanted, check);
    let fetched = fetched.map_err(|error| error.or_folder(&meant.name))?;
    *given.path = Some(fetched.folder);
    Ok(Some(meant.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_stay_what_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut given = Some(folder.path().to_owned());
        resolve_name("--model-path", &mut given, Kind::Target).expect("nothing to load");
        assert_eq!(given.as_deref(), Some(folder.path()));
        for (missing, why) in [
            ("no-folder", "."),
            ("/no-folder/of-mine", ", for there is no /no-folder."),
            ("./no-folder/of-mine", ", for there is no ./no-folder."),
            ("no-folder/of/mine", ", for there is no no-folder."),
        ] {
            let mut given = Some(PathBuf::from(missing));
            let error = resolve_name("--an-option", &mut given, Kind::Target);
            let error = error.expect_err(missing);
            let text = error.to_string();
            let begin = format!("--an-option {missing}: there is no such folder{why}");
            assert!(text.starts_with(&begin) && error.is_usage(), "{text}");
        }
    }

    #[test]
    fn gguf_files_are_named_or_alone_in_their_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.gguf");
        let resolved = |path: &Path| {
            let mut given = Some(path.to_owned());
            let done = resolve_name("--an-option", &mut given, Kind::Target);
            done.map(|()| given).map_err(|error| error.to_string())
        };
        let missing = resolved(&file).expect_err("no file");
        assert!(
            missing.ends_with("there is no such file; check the path"),
            "{missing}"
        );
        std::fs::write(&file, "").expect("written");
        assert_eq!(resolved(&file), Ok(Some(file.clone())));
        assert_eq!(resolved(folder.path()), Ok(Some(file.clone())));
        let elsewhere = tempfile::tempdir().expect("a folder");
        let link = elsewhere.path().join("link.gguf");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        assert_eq!(
            resolved(&link),
            Ok(Some(file.canonicalize().expect("there")))
        );
        std::fs::write(folder.path().join("b.gguf"), "").expect("written");
        let two = resolved(folder.path()).expect_err("two files");
        assert!(two.contains("2 models in GGUF files"), "{two}");
        std::fs::write(folder.path().join("config.json"), "{}").expect("written");
        assert_eq!(resolved(folder.path()), Ok(Some(folder.path().to_owned())));
    }

    #[test]
    fn a_version_is_a_names() {
        for path in [None, Some(PathBuf::from("/tmp"))] {
            let mut model = ModelArgs {
                model_path: path,
                revision: Some("main".into()),
                ..ModelArgs::default()
            };
            let error = resolve_names(&mut model, None, None).expect_err("no name");
            assert!(error.to_string().starts_with("--revision says"), "{error}");
        }
        let mut speculation = SpeculationArgs {
            speculative_draft_model_revision: Some("main".into()),
            ..SpeculationArgs::default()
        };
        let error = resolve_names(&mut ModelArgs::default(), Some(&mut speculation), None);
        let error = error.expect_err("no name").to_string();
        assert!(
            error.starts_with("--speculative-draft-model-revision"),
            "{error}"
        );
    }
}
