//! The requests of one connection.

use std::{convert::Infallible, pin::Pin, sync::Arc};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Version, header::CONNECTION},
    response::Response,
};
use hyper::{Request, body::Incoming, service::Service};
use tonic::Status;
use tower::ServiceExt;

use crate::{
    answer::Answer,
    body::{Held, Paced},
    deadline::grpc_timeout,
    places::{Full, Place},
    port::{Budgets, Port, Protocol},
};

/// Answers the requests of one connection.
#[derive(Clone)]
pub(crate) struct Visit {
    pub(crate) port: Arc<Port>,
    pub(crate) router: Router,
    pub(crate) place: Arc<Place>,
    pub(crate) budgets: Option<Budgets>,
}

impl Service<Request<Incoming>> for Visit {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let in_service = if self.port.is_endless(request.uri().path()) {
            self.place.enter_endless()
        } else {
            self.place.enter()
        };
        let visit = self.clone();
        Box::pin(async move {
            let answer = visit.answer(request).await?;
            Ok(answer.map(|body| Answer::new(in_service, body)))
        })
    }
}

impl Visit {
    async fn answer(self, mut request: Request<Incoming>) -> Result<Response, Infallible> {
        if let Some(full) = self.place.full
            && !self.port.is_probe(request.uri().path())
        {
            return Ok(self.refuse(full, request.version()));
        }
        let given = match self.port.protocol {
            Protocol::Grpc { .. } => grpc_timeout(request.headers()),
            Protocol::Http { .. } => None,
        };
        let limits = self.port.limits.body;
        // What the request has brought is held until its answer begins: as
        // bytes, and then as what was made of them.
        let held = self.budgets.as_ref().map(|budgets| {
            let messages = matches!(self.port.protocol, Protocol::Grpc { .. });
            Held::new(budgets.of_path(request.uri().path()), messages)
        });
        if let Some(held) = &held {
            request.extensions_mut().insert(held.clone());
        }
        let place = self.place;
        let request = request.map(|body| Body::new(Paced::new(body, limits, held.clone(), place)));
        let answer = self.router.oneshot(request);
        let answer = async {
            let answer = answer.await;
            drop(held);
            answer
        };
        let Some(given) = given else {
            return answer.await;
        };
        match tokio::time::timeout(given, answer).await {
            Ok(answer) => answer,
            Err(_) => Ok(Status::deadline_exceeded("the call's own time is over").into_http()),
        }
    }

    /// Says that there is no place; over HTTP/1.1, where that is per
    /// connection, as the last thing.
    fn refuse(&self, full: Full, version: Version) -> Response {
        let mut answer = self.port.refusal(full);
        if version < Version::HTTP_2 {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
        }
        answer
    }
}
