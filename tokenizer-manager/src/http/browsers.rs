//! Protection against requests that a web page makes a browser send.
//!
//! A page can make its reader's browser send requests to servers that the page's author
//! cannot reach. Where the server asks for no key, such a request is recognised by
//! headers that browsers set and pages cannot change: `Origin` (RFC 6454) and
//! `Sec-Fetch-Site` (W3C Fetch Metadata). With DNS rebinding, the page's own host name
//! leads to this server, so its requests have the same origin. They are recognised by
//! the host name, which is not one of the server's.

use std::{net::IpAddr, sync::Arc};

use axum::{
    body::{Body, HttpBody as _},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts},
    middleware::Next,
};
use lockstep_types::WebConfig;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

use super::middleware::{REQUEST_ID, is_open};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// Time for which a browser may remember a page's permissions.
const PREFLIGHT_AGE: std::time::Duration = std::time::Duration::from_secs(600);
/// Suffixes of names that a stranger cannot register (RFC 6761, 6762, 8375; ICANN's
/// reservation of `internal`; Kubernetes' names of services).
const PRIVATE: [&str; 5] = [".localhost", ".local", ".internal", ".home.arpa", ".svc"];

/// Returns the CORS layer for the listed origins, pre-flight requests included. `None`,
/// and so no CORS headers, if no origin is listed.
pub(super) fn cors(web: &WebConfig) -> Option<CorsLayer> {
    if web.cors_allowed_origins.is_empty() {
        return None;
    }
    let listed = web.clone();
    let origins = match any(&web.cors_allowed_origins) {
        true => AllowOrigin::any(),
        false => AllowOrigin::predicate(move |origin: &HeaderValue, _: &Parts| {
            origin
                .to_str()
                .is_ok_and(|origin| is_listed(origin, &listed))
        }),
    };
    let layer = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods(AllowMethods::mirror_request())
        .allow_headers(AllowHeaders::mirror_request())
        .allow_private_network(true)
        .expose_headers([
            REQUEST_ID,
            header::HeaderName::from_static("request-id"),
            header::RETRY_AFTER,
        ])
        .max_age(PREFLIGHT_AGE);
    Some(layer)
}

/// Refuses requests that a foreign page sends in its reader's name. If the server has a
/// key, nothing is refused here: a page that sends the key was given it.
pub(super) async fn guard(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let checked = match app.keys.client.is_some() || is_open(&request) {
        true => Ok(()),
        false => check(&request, &app.config.server.host, &app.config.server.web),
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_http(),
    }
}

fn check(request: &Request, own: &str, web: &WebConfig) -> ApiResult<()> {
    let headers = request.headers();
    let hosts = headers.get_all(header::HOST).iter();
    let hosts = hosts.map(|host| host.to_str().unwrap_or("?"));
    let target = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    for authority in hosts.chain(target) {
        let host = without_port(authority);
        if !is_ours(host, own, web) {
            return Err(foreign_host(host));
        }
    }
    from_our_page(request, web)?;
    let json = headers.contains_key(header::CONTENT_TYPE);
    if is_browser(headers) && !request.body().is_end_stream() && !json {
        return Err(ApiError {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ..ApiError::bad_request(
                "A browser sent a body without a Content-Type: send it as 'application/json'.",
            )
        });
    }
    Ok(())
}

/// Checks that the request comes from this server's page, from a page of a listed
/// origin, or from no page. Following a link from any page is allowed too, since the
/// page with the link does not see the answer.
fn from_our_page(request: &Request, web: &WebConfig) -> ApiResult<()> {
    let headers = request.headers();
    let text = |name: &str| Some(headers.get(name)?.to_str().unwrap_or("?"));
    let target = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    let origin = text("origin");
    if origin.is_some_and(|origin| is_listed(origin, web)) {
        return Ok(());
    }
    let own = origin.is_none_or(|origin| {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_some_and(|it| target.or(text("host")).is_some_and(|us| same(it, us)))
    });
    let site = matches!(text("sec-fetch-site"), None | Some("same-origin" | "none"));
    let link = matches!(*request.method(), Method::GET | Method::HEAD)
        && text("sec-fetch-mode") == Some("navigate")
        && text("sec-fetch-dest") == Some("document");
    if own && (site || link) {
        return Ok(());
    }
    let page = origin.unwrap_or("another origin");
    Err(ApiError {
        status: StatusCode::FORBIDDEN,
        code: Some("origin_not_allowed"),
        ..ApiError::bad_request(format!(
            "A web page of {page:?} sent this request, and pages of other origins are not let in. \
             If it should be, start the server with `--cors-allowed-origins` and its origin, or \
             with a key (`--api-key-file`)."
        ))
    })
}

fn foreign_host(host: &str) -> ApiError {
    ApiError {
        status: StatusCode::FORBIDDEN,
        code: Some("host_not_allowed"),
        ..ApiError::bad_request(format!(
            "This server does not know itself as {host:?}, and answers by names of its own alone, \
             since a web page's name could lead here. If it is one, start the server with \
             `--allowed-hosts {host}`, or with a key (`--api-key-file`)."
        ))
    }
}

/// Returns true if a browser sends the request. Browsers set the headers looked for,
/// and no page of another origin can remove them.
pub(super) fn is_browser(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).map(HeaderValue::as_bytes);
    agent.is_some_and(|agent| agent.starts_with(b"Mozilla/"))
        || ["origin", "referer", "sec-fetch-site"]
            .iter()
            .any(|name| headers.contains_key(*name))
}

fn any(list: &[String]) -> bool {
    list.iter().any(|entry| entry == "*")
}

fn is_listed(origin: &str, web: &WebConfig) -> bool {
    let listed = &web.cors_allowed_origins;
    any(listed) || listed.iter().any(|entry| same(entry, origin))
}

fn same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// Returns the host of `host:port`, without the dot that may end a name.
fn without_port(authority: &str) -> &str {
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(host, _)| host),
    };
    host.strip_suffix('.').unwrap_or(host)
}

/// Returns true if no stranger can have a page under this name. An address is not a
/// name, and a name without a dot is given by the machine or its network.
fn is_ours(host: &str, own: &str, web: &WebConfig) -> bool {
    let host = host.to_ascii_lowercase();
    let listed = |entry: &String| match entry.starts_with('.') {
        true => host.ends_with(entry),
        false => *entry == host,
    };
    host.parse::<IpAddr>().is_ok()
        || !host.contains('.')
        || PRIVATE.iter().any(|suffix| host.ends_with(suffix))
        || same(&host, own)
        || any(&web.allowed_hosts)
        || web.allowed_hosts.iter().any(listed)
}
