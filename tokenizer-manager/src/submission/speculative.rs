//! A request's limit on speculation.

use lockstep_types::SpeculationConfig;

use super::{SpeculativeSpec, check::integer};
use crate::error::{ApiError, ApiResult};

/// Largest number of draft steps that a request may ask for. It is far beyond any
/// useful depth.
const MOST_STEPS: i64 = 64;

/// Returns the request's maximum draft steps; 0 = none, `None` = the server's default.
///
/// # Errors
/// 400 for a depth out of range, and for a request for speculation at a server without
/// it.
pub(super) fn max_draft_steps(
    spec: SpeculativeSpec,
    server: &SpeculationConfig,
) -> ApiResult<Option<u32>> {
    let max_steps = spec
        .max_steps
        .map(|steps| integer("speculative.max_steps", steps, 0, MOST_STEPS))
        .transpose()?;
    if spec.enabled == Some(false) {
        return Ok(Some(0));
    }
    if !server.enabled() {
        let wanted = match (spec.enabled, max_steps) {
            (Some(true), _) => Some("speculative.enabled"),
            (_, Some(1..)) => Some("speculative.max_steps"),
            _ => None,
        };
        if let Some(param) = wanted {
            return Err(ApiError::unsupported(
                param,
                format!(
                    "'{param}' asks for speculative decoding, which this server was started \
                     without; leave it out or start the server with `--speculative-algorithm`."
                ),
            ));
        }
    }
    Ok(max_steps.and_then(|steps| u32::try_from(steps).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(
        algorithm: Option<&str>,
        enabled: Option<bool>,
        max_steps: Option<i64>,
    ) -> Result<Option<u32>, String> {
        let server = SpeculationConfig {
            algorithm: algorithm.map(str::to_owned),
            ..SpeculationConfig::none()
        };
        let spec = SpeculativeSpec { enabled, max_steps };
        max_draft_steps(spec, &server).map_err(|error| error.param.expect("a field"))
    }

    #[test]
    fn a_request_opts_out_or_caps_its_depth() {
        let on = Some("EAGLE3");
        for (enabled, max_steps, expected) in [
            (None, None, None),
            (Some(true), None, None),
            (Some(true), Some(2), Some(2)),
            (None, Some(64), Some(64)),
            (None, Some(0), Some(0)),
            (Some(false), None, Some(0)),
            (Some(false), Some(3), Some(0)),
        ] {
            assert_eq!(steps(on, enabled, max_steps), Ok(expected));
        }
        for wrong in [-1, 65, i64::MIN, i64::MAX] {
            let refused = Err("speculative.max_steps".to_owned());
            assert_eq!(steps(on, None, Some(wrong)), refused);
            assert_eq!(steps(None, Some(false), Some(wrong)), refused);
        }
    }

    #[test]
    fn a_server_without_speculation_refuses_to_be_asked_for_it() {
        for (enabled, max_steps, param) in [
            (Some(true), None, "speculative.enabled"),
            (Some(true), Some(0), "speculative.enabled"),
            (None, Some(1), "speculative.max_steps"),
        ] {
            assert_eq!(steps(None, enabled, max_steps), Err(param.to_owned()));
        }
        for (enabled, max_steps) in [(None, None), (Some(false), Some(3)), (None, Some(0))] {
            assert!(steps(None, enabled, max_steps).is_ok());
        }
    }
}
