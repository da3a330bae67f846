//! Connections to hubs: TCP, by a proxy if the environment names one, and TLS.

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

/// Longest time to connect: addresses that are reachable at all answer sooner.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// Opens TCP connections, by the proxies of `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and
/// `NO_PROXY`.
#[derive(Clone)]
pub(crate) struct Tcp {
    direct: HttpConnector,
    proxies: Arc<Matcher>,
}

/// Connects with TLS 1.2 or 1.3 for `https`. The certificates of authorities are the
/// system's (`SSL_CERT_FILE` names others). If the system has none, like small containers,
/// they are Mozilla's.
pub(crate) fn connector(stall: Duration) -> io::Result<HttpsConnector<Tcp>> {
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    direct.set_nodelay(true);
    direct.set_connect_timeout(Some(stall.min(LONGEST_CONNECT)));
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
        let (uri, proxy_uri) = match (with_port(uri), spoken_to(proxy.uri())) {
            (Ok(uri), Ok(proxy_uri)) => (uri, proxy_uri),
            (Err(error), _) | (_, Err(error)) => {
                return Box::pin(async move { Err(error.into()) });
            }
        };
        let mut tunnel = Tunnel::new(proxy_uri, direct);
        if let Some(login) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(login.clone());
        }
        Box::pin(async move { Ok(tunnel.call(uri).await?) })
    }
}

/// The address with its port: without one the tunnel takes 443, even for `http`.
fn with_port(uri: Uri) -> io::Result<Uri> {
    if uri.port().is_some() || uri.scheme_str() != Some("http") {
        return Ok(uri);
    }
    let mut parts = uri.into_parts();
    if let Some(authority) = parts.authority {
        let authority = format!("{authority}:80").parse();
        parts.authority = Some(authority.map_err(io::Error::other)?);
    }
    Uri::from_parts(parts).map_err(io::Error::other)
}

/// The proxy's address, if it is an `http` address, which gets CONNECT without TLS. Other
/// proxies would get bytes in the wrong protocol, and a login in plain text.
fn spoken_to(proxy: &Uri) -> io::Result<Uri> {
    match proxy.scheme_str() {
        Some("http") => Ok(proxy.clone()),
        scheme => Err(io::Error::other(format!(
            "HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names a proxy by {}, and only http:// is spoken \
             to proxies; give an address of that kind, or name the hub in NO_PROXY",
            scheme.unwrap_or("no scheme")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// The first line that a proxy gets, if there is one, and the result of the connection.
    fn heard(proxy: &str, uri: &str) -> (Option<String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = proxy.replace("PROXY", &listener.local_addr().expect("one").to_string());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let mut direct = HttpConnector::new();
        direct.enforce_http(false);
        let mut tcp = Tcp {
            direct,
            proxies: Arc::new(Matcher::builder().all(proxy).build()),
        };
        let hears = std::thread::spawn(move || {
            listener.set_nonblocking(false).expect("set");
            let (mut stream, _) = listener.accept().expect("somebody");
            let mut text = vec![0; 4096];
            let read = stream.read(&mut text).expect("read");
            let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n");
            String::from_utf8_lossy(&text[..read]).into_owned()
        });
        let connecting = tcp.call(uri.parse().expect("an address"));
        let error = runtime.expect("a runtime").block_on(connecting).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        let heard = match error.contains("only http://") {
            true => None,
            false => Some(hears.join().expect("ended")),
        };
        (heard, error)
    }

    #[test]
    fn a_proxy_is_told_the_port_of_the_scheme() {
        for (uri, expected) in [
            ("http://mirror.test/a", "CONNECT mirror.test:80 "),
            ("http://mirror.test:8080/a", "CONNECT mirror.test:8080 "),
            ("https://mirror.test/a", "CONNECT mirror.test:443 "),
        ] {
            let (heard, error) = heard("http://PROXY", uri);
            let heard = heard.expect("it was spoken to");
            assert!(heard.starts_with(expected), "{uri}: {heard} {error}");
        }
    }

    #[test]
    fn proxies_of_other_kinds_are_refused() {
        for proxy in [
            "https://user:secret@PROXY",
            "socks5://PROXY",
            "socks5h://user:secret@PROXY",
        ] {
            let (heard, error) = heard(proxy, "https://hub.test/a");
            assert_eq!(heard, None, "{proxy}");
            assert!(
                error.contains("_PROXY") && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
