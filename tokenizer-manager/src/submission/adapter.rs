//! Check of an adapter that a request names in a field of its own.

use lockstep_types::{
    EngineConfig,
    adapter::check_adapter_name,
    request::{ErrorKind, RequestError},
};

use crate::error::{ApiError, ApiResult, shortened};

/// Most bytes of a name in an error.
const SHOWN: usize = 200;

/// Returns the name in `field`; an empty one asks for no adapter. Whether there is such an
/// adapter is known to the scheduler, which answers for each request.
///
/// # Errors
/// 400 on a server without adapters, 404 for a name that no adapter can have.
pub fn adapter(config: &EngineConfig, field: &str, name: String) -> ApiResult<Option<String>> {
    if name.is_empty() {
        return Ok(None);
    }
    if config.adapters.places == 0 {
        return Err(ApiError::unsupported(
            field,
            format!(
                "This server serves no adapters; leave '{field}' out, or start it with \
                 `--enable-lora`."
            ),
        ));
    }
    match check_adapter_name(&name) {
        Ok(()) => Ok(Some(name)),
        Err(rule) => {
            let name = shortened(name, SHOWN);
            let message = format!("The adapter `{name}` does not exist: a name {rule}.");
            Err(RequestError {
                param: Some(field.to_owned()),
                ..RequestError::new(ErrorKind::NotFound, message)
            }
            .into())
        }
    }
}
