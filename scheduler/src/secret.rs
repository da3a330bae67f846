//! Workers of other nodes must show the secret that all nodes share.

use subtle::ConstantTimeEq as _;
use tonic::{Request, Status, service::Interceptor};

/// Lets a call pass that carries `authorization: Bearer <secret>`.
#[derive(Clone)]
pub struct RequireSecret {
    expected: Option<String>,
}

impl RequireSecret {
    /// Without a secret nothing passes.
    pub fn new(secret: Option<&str>) -> Self {
        Self {
            expected: secret.map(|secret| format!("Bearer {secret}")),
        }
    }
}

impl Interceptor for RequireSecret {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let shown = request
            .metadata()
            .get("authorization")
            .map(|value| value.as_bytes());
        let same = match (&self.expected, shown) {
            (Some(expected), Some(shown)) => bool::from(expected.as_bytes().ct_eq(shown)),
            _ => false,
        };
        if same {
            Ok(request)
        } else {
            Err(Status::unauthenticated(
                "wrong or missing secret: give every node the same --dist-secret-file",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(secret: Option<&str>, shown: Option<&str>) -> bool {
        let mut request = Request::new(());
        if let Some(shown) = shown {
            request
                .metadata_mut()
                .insert("authorization", shown.parse().expect("ascii"));
        }
        RequireSecret::new(secret).call(request).is_ok()
    }

    #[test]
    fn only_the_right_secret_passes() {
        assert!(call(Some("abc"), Some("Bearer abc")));
        assert!(!call(Some("abc"), Some("Bearer abd")));
        assert!(!call(Some("abc"), Some("abc")));
        assert!(!call(Some("abc"), None));
        assert!(!call(None, Some("Bearer ")));
    }
}
