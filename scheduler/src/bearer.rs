//! What callers must show: workers of other nodes the secret that all nodes
//! share, clients of the public port the API key.

use lockstep_process::check_bearer;
use lockstep_types::NodeConfig;
use tonic::{Request, Status, metadata::MetadataMap, service::Interceptor};

/// Lets a call pass that carries `authorization: Bearer <token>`.
#[derive(Clone)]
pub struct RequireBearer {
    /// Any of them opens; none: any call passes.
    tokens: Vec<String>,
    refusal: &'static str,
}

impl RequireBearer {
    /// Asks for the nodes' secret. An empty one cannot be configured, so that
    /// without a secret nothing passes.
    pub fn secret(secret: Option<&str>) -> Self {
        Self {
            tokens: vec![secret.unwrap_or_default().to_owned()],
            refusal: "wrong or missing secret: give every node the same --dist-secret-file",
        }
    }

    /// Asks for the API key, where the server has one; operators' does as well.
    pub fn client(node: &NodeConfig) -> Self {
        let operator = node
            .admin_api_key
            .as_ref()
            .filter(|_| node.api_key.is_some());
        Self {
            tokens: node.api_key.iter().chain(operator).cloned().collect(),
            refusal: "wrong or missing API key: send `authorization: Bearer <key>`",
        }
    }

    /// Asks for the operators' key, where the server has one.
    pub fn operator(node: &NodeConfig) -> Self {
        match &node.admin_api_key {
            None => Self::client(node),
            Some(key) => Self {
                tokens: vec![key.clone()],
                refusal: "this call is for operators: send the key of --admin-api-key-file as \
                          `authorization: Bearer <key>`",
            },
        }
    }

    /// Whether a call with this metadata passes.
    ///
    /// # Errors
    /// UNAUTHENTICATED with the remedy.
    pub fn check(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let shown = metadata.get("authorization").map(|value| value.as_bytes());
        let opens = |token: &String| check_bearer(token, shown).is_ok();
        match self.tokens.is_empty() || self.tokens.iter().any(opens) {
            true => Ok(()),
            false => Err(Status::unauthenticated(self.refusal)),
        }
    }
}

impl Interceptor for RequireBearer {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        self.check(request.metadata()).map(|()| request)
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

    fn node(client: Option<&str>, operator: Option<&str>) -> NodeConfig {
        NodeConfig {
            api_key: client.map(str::to_owned),
            admin_api_key: operator.map(str::to_owned),
            ..NodeConfig::default()
        }
    }

    #[test]
    fn only_the_right_token_passes() {
        let key = RequireBearer::client(&node(Some("abc"), None));
        for guard in [RequireBearer::secret(Some("abc")), key] {
            let guard = || guard.clone();
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
        let open = node(None, None);
        assert!(passes(RequireBearer::client(&open), None));
        assert!(passes(RequireBearer::operator(&open), None));
        assert!(!passes(RequireBearer::secret(None), None));
        assert!(!passes(RequireBearer::secret(None), Some("Bearer ")));
    }

    #[test]
    fn operators_are_clients_but_clients_no_operators() {
        let (client, operator) = (Some("Bearer c"), Some("Bearer o"));
        for (node, shown, opens) in [
            (node(Some("c"), Some("o")), client, (true, false)),
            (node(Some("c"), Some("o")), operator, (true, true)),
            (node(None, Some("o")), None, (true, false)),
            (node(None, Some("o")), operator, (true, true)),
            (node(Some("c"), None), client, (true, true)),
            (node(Some("c"), None), operator, (false, false)),
        ] {
            let passed = (
                passes(RequireBearer::client(&node), shown),
                passes(RequireBearer::operator(&node), shown),
            );
            assert_eq!(passed, opens, "{node:?} {shown:?}");
        }
    }
}
