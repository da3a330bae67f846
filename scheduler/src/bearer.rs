//! What callers must show: workers of other nodes the secret that all nodes
//! share, clients of the public port the API key.

use lockstep_process::check_bearer;
use tonic::{Request, Status, service::Interceptor};

/// Lets a call pass that carries `authorization: Bearer <token>`.
#[derive(Clone)]
pub struct RequireBearer {
    /// `None`: any call passes.
    token: Option<String>,
    refusal: &'static str,
}

impl RequireBearer {
    /// Asks for the nodes' secret. An empty one cannot be configured, so that
    /// without a secret nothing passes.
    pub fn secret(secret: Option<&str>) -> Self {
        Self {
            token: Some(secret.unwrap_or_default().to_owned()),
            refusal: "wrong or missing secret: give every node the same --dist-secret-file",
        }
    }

    /// Asks for the API key, where the server has one.
    pub fn key(key: Option<&str>) -> Self {
        Self {
            token: key.map(str::to_owned),
            refusal: "wrong or missing API key: send `authorization: Bearer <key>`",
        }
    }
}

impl Interceptor for RequireBearer {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(token) = &self.token else {
            return Ok(request);
        };
        let shown = request.metadata().get("authorization");
        match check_bearer(token, shown.map(|value| value.as_bytes())) {
            Ok(()) => Ok(request),
            Err(_) => Err(Status::unauthenticated(self.refusal)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(mut guard: RequireBearer, shown: Option<&str>) -> bool {
        let mut request = Request::new(());
        if let Some(shown) = shown {
            request
                .metadata_mut()
                .insert("authorization", shown.parse().expect("ascii"));
        }
        guard.call(request).is_ok()
    }

    #[test]
    fn only_the_right_token_passes() {
        for guard in [RequireBearer::secret, RequireBearer::key] {
            let guard = || guard(Some("abc"));
            assert!(passes(guard(), Some("Bearer abc")));
            assert!(passes(guard(), Some("bearer abc")));
            for wrong in [
                "Bearer abd",
                "Bearer ab",
                "Bearer abcd",
                "Bearer ",
                "abc",
                "",
            ] {
                assert!(!passes(guard(), Some(wrong)), "{wrong:?}");
            }
            assert!(!passes(guard(), None));
        }
    }

    #[test]
    fn without_a_token_strangers_are_clients_but_never_workers() {
        assert!(passes(RequireBearer::key(None), None));
        assert!(!passes(RequireBearer::secret(None), None));
        assert!(!passes(RequireBearer::secret(None), Some("Bearer ")));
    }
}
