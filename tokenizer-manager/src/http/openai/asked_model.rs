//! The model that a request asks for by name.

use lockstep_types::adapter::check_adapter_name;

use super::model_not_found;
use crate::{app::App, error::ApiResult};

/// The served model, or an adapter of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::http) struct AskedModel {
    adapter: Option<String>,
}

impl AskedModel {
    /// Reads a request's `model`. One of the served model's names, no name, and `default` mean
    /// the served model; `NAME` and `MODEL:NAME` mean an adapter. Whether there is such an
    /// adapter is known to the scheduler, which answers for each request.
    ///
    /// # Errors
    /// 404 for a name that can be none of them.
    pub(in crate::http) fn of(app: &App, model: Option<&str>) -> ApiResult<Self> {
        let model = match model {
            None | Some("") => return Ok(Self::default()),
            Some(model) if app.config.server.is_model_name(model) => return Ok(Self::default()),
            Some(model) => model,
        };
        let behind = |own: &str| model.strip_prefix(own)?.strip_prefix(':');
        let name = app.names().find_map(behind).unwrap_or(model);
        if app.config.adapters.places == 0 || check_adapter_name(name).is_err() {
            return Err(model_not_found(app, model));
        }
        Ok(Self {
            adapter: Some(name.to_owned()),
        })
    }

    /// Reads a request's `model` where nothing is generated, so that no scheduler answers.
    ///
    /// # Errors
    /// 404 for a name that is none. 503 if an adapter's name cannot be looked for.
    pub(in crate::http) async fn check(app: &App, model: Option<&str>) -> ApiResult<()> {
        let Self {
            adapter: Some(name),
        } = Self::of(app, model)?
        else {
            return Ok(());
        };
        let loaded = app.scheduler.adapters().await?.adapters;
        match loaded.iter().any(|adapter| adapter.name == name) {
            true => Ok(()),
            false => Err(model_not_found(app, &name)),
        }
    }

    /// The name of the adapter, for the request to the scheduler.
    pub(in crate::http) fn adapter(&self) -> Option<String> {
        self.adapter.clone()
    }

    /// The name for answers: the adapter's own, or the first of the served model.
    pub(in crate::http) fn name<'a>(&'a self, app: &'a App) -> &'a str {
        self.adapter.as_deref().unwrap_or(app.model())
    }
}
