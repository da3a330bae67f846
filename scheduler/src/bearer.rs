//! Keys of callers: the shared secret for workers of other nodes, the API key for clients of
//! the public port.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use lockstep_process::check_bearer;
use lockstep_types::NodeConfig;
use tonic::{Request, Status, metadata::MetadataMap, service::Interceptor};

/// Lets a call pass that carries `authorization: Bearer <token>`.
#[derive(Clone)]
pub struct RequireBearer {
    /// Accepted tokens; empty = any call passes.
    tokens: Vec<String>,
    refusal: &'static str,
    /// Log of refused callers; `None` if callers are strangers, not the operators' machines.
    refused: Option<Arc<Refused>>,
}

/// Shortest time between two log lines about refused callers.
const QUIET: Duration = Duration::from_secs(10);

/// Callers that were refused: the time of the last log line, and the number refused since.
#[derive(Debug, Default)]
struct Refused(Mutex<(Option<Instant>, u64)>);

impl Refused {
    /// Counts a refusal. If it is time for a log line, returns the number of refusals since the
    /// last one, this one included.
    fn another(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (said, count) = &mut *state;
        *count += 1;
        if said.is_some_and(|said| now.saturating_duration_since(said) < QUIET) {
            return None;
        }
        *said = Some(now);
        Some(std::mem::take(count))
    }

    fn tell(&self, peer: Option<SocketAddr>) {
        if let Some(count) = self.another(Instant::now()) {
            let peer = peer.map(|peer| peer.to_string());
            tracing::warn!(
                peer,
                count,
                "a worker with a wrong or missing secret was refused: give every node the same \
                 --dist-secret-file"
            );
        }
    }
}

impl RequireBearer {
    /// Asks for the nodes' secret. An empty secret cannot be configured, so without a secret no
    /// call passes.
    pub fn secret(secret: Option<&str>) -> Self {
        Self {
            tokens: vec![secret.unwrap_or_default().to_owned()],
            refusal: "wrong or missing secret: give every node the same --dist-secret-file",
            refused: Some(Arc::default()),
        }
    }

    /// Asks for the API key, if the server has one; the operators' key passes as well.
    pub fn client(node: &NodeConfig) -> Self {
        let operator = node
            .admin_api_key
            .as_ref()
            .filter(|_| node.api_key.is_some());
        Self {
            tokens: node.api_key.iter().chain(operator).cloned().collect(),
            refusal: "wrong or missing API key: send `authorization: Bearer <key>`",
            refused: None,
        }
    }

    /// Asks for the operators' key, if the server has one; else for the API key.
    pub fn operator(node: &NodeConfig) -> Self {
        match &node.admin_api_key {
            None => Self::client(node),
            Some(key) => Self {
                tokens: vec![key.clone()],
                refusal: "this call is for operators: send the key of --admin-api-key-file as \
                          `authorization: Bearer <key>`",
                refused: None,
            },
        }
    }

    /// Checks that a call with this metadata passes.
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
        let passes = self.check(request.metadata());
        if let (Err(_), Some(refused)) = (&passes, &self.refused) {
            refused.tell(request.remote_addr());
        }
        passes.map(|()| request)
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
    fn who_is_refused_again_and_again_is_counted() {
        let (refused, begin) = (Refused::default(), Instant::now());
        let after = |seconds| refused.another(begin + Duration::from_secs(seconds));
        assert_eq!([0, 1, 9].map(after), [Some(1), None, None]);
        assert_eq!([10, 11, 25].map(after), [Some(3), None, Some(2)]);
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
