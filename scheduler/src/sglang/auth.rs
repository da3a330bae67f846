//! The public port asks for the same key as the HTTP front.

use subtle::ConstantTimeEq as _;
use tonic::{Request, Status, service::Interceptor};

/// Lets a call pass that carries `authorization: Bearer <api key>`, or any
/// call when the server has no key.
#[derive(Clone)]
pub struct RequireKey {
    expected: Option<String>,
}

impl RequireKey {
    /// `None`: everybody may call.
    pub fn new(key: Option<&str>) -> Self {
        Self {
            expected: key.map(|key| format!("Bearer {key}")),
        }
    }
}

impl Interceptor for RequireKey {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(expected) = &self.expected else {
            return Ok(request);
        };
        let shown = request
            .metadata()
            .get("authorization")
            .map(|value| value.as_bytes());
        if shown.is_some_and(|shown| bool::from(expected.as_bytes().ct_eq(shown))) {
            return Ok(request);
        }
        Err(Status::unauthenticated(
            "wrong or missing API key: send `authorization: Bearer <key>`",
        ))
    }
}
