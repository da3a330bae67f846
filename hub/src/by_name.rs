//! Options that name a model: a folder that is there, or a name of the hub.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_config::args::{ModelArgs, SpeculationArgs};

use crate::shown::shown;
use crate::{Hub, HubError, Kind, Name, Revision, Settings, Wanted, bars};

/// What an option gives: a model and its version.
struct Given<'a> {
    path: &'a mut Option<PathBuf>,
    revision: Option<&'a str>,
    /// The option of the version.
    option: &'static str,
    kind: Kind,
    startup: Option<Duration>,
}

/// Puts folders in place of the names that options give, loading what the cache lacks.
/// A model is known in the API by its name, unless that is given. A start has no more than
/// `startup` for all that does not grow with the weights.
///
/// # Errors
/// [`HubError`].
pub fn resolve_names(
    model: &mut ModelArgs,
    speculation: Option<&mut SpeculationArgs>,
    startup: Option<Duration>,
) -> Result<(), HubError> {
    let context_length = model.context_length;
    let check = |folder: &Path| check(folder, context_length);
    let name = resolve(
        &mut Given {
            path: &mut model.model_path,
            revision: model.revision.as_deref(),
            option: "--revision",
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
        let mut draft = Given {
            path: &mut speculation.speculative_draft_model_path,
            revision: speculation.speculative_draft_model_revision.as_deref(),
            option: "--speculative-draft-model-revision",
            kind: Kind::Draft,
            startup,
        };
        // A head's `config.json` is like any model's: only its tensors tell what it is.
        match is_whole {
            true => resolve(&mut draft, &|folder| self::check(folder, None))?,
            false => resolve(&mut draft, &|_| Ok(()))?,
        };
    }
    Ok(())
}

/// As [`resolve_names`], for an option without a version.
///
/// # Errors
/// [`HubError`].
pub fn resolve_name(path: &mut Option<PathBuf>, kind: Kind) -> Result<(), HubError> {
    let mut given = Given {
        path,
        revision: None,
        option: "--revision",
        kind,
        startup: None,
    };
    match kind {
        Kind::Target => resolve(&mut given, &|folder| check(folder, None)).map(drop),
        Kind::Draft => resolve(&mut given, &|_| Ok(())).map(drop),
    }
}

/// What is not served of a model, told by its `config.json`.
///
/// # Errors
/// In words.
pub fn check(folder: &Path, context_length: Option<usize>) -> Result<(), String> {
    let model = lockstep_model_folder::load_for(folder, context_length);
    model.map(drop).map_err(|error| shown(&error.to_string()))
}

fn resolve(
    given: &mut Given<'_>,
    check: &dyn Fn(&Path) -> Result<(), String>,
) -> Result<Option<Name>, HubError> {
    let name = given.path.as_deref().and_then(Name::of_path);
    let Some(name) = name else {
        return match given.revision {
            Some(_) => Err(HubError::RevisionOfFolder {
                option: given.option,
                path: given.path.clone().unwrap_or_default(),
            }),
            None => Ok(None),
        };
    };
    let wanted = Wanted {
        name: name.clone(),
        revision: given
            .revision
            .map(Revision::parse)
            .transpose()?
            .unwrap_or_default(),
        kind: given.kind,
    };
    let settings = Settings::from_env()?;
    let settings = match given.startup {
        Some(limit) => settings.within(limit),
        None => settings,
    };
    let fetched = Hub::new(settings, bars()).fetch(&wanted, check)?;
    *given.path = Some(fetched.folder);
    Ok(Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_stay_what_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in [
            folder.path().to_owned(),
            PathBuf::from("no-such-folder"),
            PathBuf::from("/no/such"),
            PathBuf::from("./no/such"),
        ] {
            let mut given = Some(path.clone());
            resolve_name(&mut given, Kind::Target).expect("nothing to load");
            assert_eq!(given, Some(path));
        }
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
