//! Authentication of clients and operators by key.

use axum::http::StatusCode;
use lockstep_process::{BearerError, check_bearer};

use crate::error::ApiError;

/// The keys of a server; `None` = no key is required.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// Key of clients.
    pub client: Option<String>,
    /// Key of operators, which is also good on the routes of clients.
    pub operator: Option<String>,
}

impl Keys {
    /// Requires `Authorization: Bearer <key>` if the server has a client key.
    pub(crate) fn check_client(&self, shown: Option<&[u8]>) -> Result<(), ApiError> {
        let Some(key) = &self.client else {
            return Ok(());
        };
        match &self.operator {
            Some(operator) if check_bearer(operator, shown).is_ok() => Ok(()),
            _ => check_bearer(key, shown).map_err(|error| refusal(error, "API key", "")),
        }
    }

    /// Requires the operators' key if the server has one, or else the clients' key.
    pub(crate) fn check_operator(&self, shown: Option<&[u8]>) -> Result<(), ApiError> {
        const WHY: &str = " This route is for operators: it asks for the key of \
                           --admin-api-key-file.";
        match &self.operator {
            Some(key) => {
                check_bearer(key, shown).map_err(|error| refusal(error, "operators' API key", WHY))
            }
            None => self.check_client(shown),
        }
    }
}

/// Returns a 401.
fn refusal(error: BearerError, key: &str, why: &str) -> ApiError {
    let message = match error {
        BearerError::Missing => format!(
            "You didn't provide an API key. You need to provide your API key in an Authorization \
             header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY), or in an x-api-key \
             header.{why}"
        ),
        BearerError::Wrong => format!("Incorrect {key} provided.{why}"),
    };
    ApiError {
        status: StatusCode::UNAUTHORIZED,
        code: Some("invalid_api_key"),
        ..ApiError::bad_request(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(client: Option<&str>, operator: Option<&str>) -> Keys {
        Keys {
            client: client.map(str::to_owned),
            operator: operator.map(str::to_owned),
        }
    }

    #[test]
    fn a_key_is_asked_for_where_there_is_one() {
        // Keys of clients and operators; the key sent; whether it opens the routes of
        // clients, and the routes of operators.
        for (client, operator, shown, opens) in [
            (None, None, None, (true, true)),
            (Some("c"), None, None, (false, false)),
            (Some("c"), None, Some("Bearer c"), (true, true)),
            (Some("c"), None, Some("Bearer o"), (false, false)),
            (Some("c"), Some("o"), Some("Bearer c"), (true, false)),
            (Some("c"), Some("o"), Some("Bearer o"), (true, true)),
            (None, Some("o"), None, (true, false)),
            (None, Some("o"), Some("Bearer c"), (true, false)),
            (None, Some("o"), Some("Bearer o"), (true, true)),
        ] {
            let keys = keys(client, operator);
            let shown = shown.map(str::as_bytes);
            let opened = (keys.check_client(shown), keys.check_operator(shown));
            assert_eq!((opened.0.is_ok(), opened.1.is_ok()), opens, "{keys:?}");
            for error in [opened.0.err(), opened.1.err()].into_iter().flatten() {
                assert_eq!(error.status, StatusCode::UNAUTHORIZED);
            }
        }
    }
}
