//! Connections to hubs: TCP, through a proxy where the environment names one, and TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

/// Addresses that are reachable at all answer sooner.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// Opens TCP connections, as `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` say.
#[derive(Clone)]
pub(crate) struct Tcp {
    direct: HttpConnector,
    proxies: Arc<Matcher>,
}

/// With TLS 1.2 or 1.3 for `https`. The certificates of authorities are the system's
/// (`SSL_CERT_FILE` names others), or Mozilla's where it has none, as in small containers.
pub(crate) fn connector(patience: Duration) -> io::Result<HttpsConnector<Tcp>> {
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    direct.set_nodelay(true);
    direct.set_connect_timeout(Some(patience.min(LONGEST_CONNECT)));
    let tcp = Tcp {
        direct,
        proxies: Arc::new(Matcher::from_env()),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let tls = match versions.clone().with_native_roots() {
        Ok(with_roots) => with_roots,
        Err(_) => versions.with_webpki_roots(),
    };
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls.with_no_client_auth());
    Ok(connector.https_or_http().enable_http1().wrap_connector(tcp))
}

type Connecting<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Service<Uri> for Tcp {
    type Response = TokioIo<TcpStream>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Connecting<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.direct.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let mut direct = self.direct.clone();
        let Some(proxy) = self.proxies.intercept(&uri) else {
            return Box::pin(async move { Ok(direct.call(uri).await?) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), direct);
        if let Some(login) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(login.clone());
        }
        Box::pin(async move { Ok(tunnel.call(uri).await?) })
    }
}
