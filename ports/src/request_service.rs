//! The requests of one connection.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Version, header::CONNECTION},
    response::Response,
};
use hyper::{
    Request,
    body::{Body as _, Incoming},
    service::Service,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Status, transport::server::TcpConnectInfo};
use tower::ServiceExt;

use crate::{
    answer::Answer,
    body::{RequestMemory, TimedBody},
    budget::{Budget, Charge, OverBudget},
    deadline::grpc_timeout,
    places::{Full, Place},
    port::{Budgets, Port, Protocol},
    report::Closed,
    reserve::AnswerMemory,
};

/// Answers the requests of one connection.
#[derive(Clone)]
pub(crate) struct RequestService {
    pub(crate) port: Arc<Port>,
    pub(crate) router: Router,
    /// Address of the client.
    pub(crate) peer: SocketAddr,
    pub(crate) place: Arc<Place>,
    pub(crate) budgets: Option<Budgets>,
    pub(crate) window: ReceiveWindow,
    /// Permit for one health call at a time that draws on no budget. Such a call is
    /// answered even if strangers have taken all memory of services without a key.
    pub(crate) probing: Arc<Semaphore>,
}

/// Memory for data that an HTTP/2 connection may have sent and nobody has read yet. The
/// first of its requests with a body takes it, from that request's budget. It is given
/// back with the last.
#[derive(Clone, Default)]
pub(crate) struct ReceiveWindow(Arc<Mutex<Weak<Charge>>>);

impl ReceiveWindow {
    /// Size of a window in bytes.
    pub(crate) const BYTES: u32 = 64 << 10;

    pub(crate) fn take(&self, budget: &Arc<Budget>) -> Result<Arc<Charge>, OverBudget> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = taken.upgrade() {
            return Ok(room);
        }
        let mut room = budget.charge();
        // If there is memory for few windows only, a connection may exceed its charge.
        room.add((Self::BYTES as usize).min(budget.limit() / LEAST_WINDOWS))?;
        let room = Arc::new(room);
        *taken = Arc::downgrade(&room);
        Ok(room)
    }
}

/// Minimum number of connections that may send bodies at once.
const LEAST_WINDOWS: usize = 16;
/// Maximum bytes of an answer that is not charged. It costs about as much as its
/// request's head did.
const SMALL_ANSWER: u64 = 4 << 10;

impl Service<Request<Incoming>> for RequestService {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let in_service = if self.port.is_endless(request.uri().path()) {
            self.place.enter_endless()
        } else {
            self.place.enter()
        };
        let unsent = in_service.outgoing().unsent();
        request.extensions_mut().insert(unsent);
        let probe = self.probe(request.uri().path());
        let budgets = self.budgets.as_ref().filter(|_| probe.is_none());
        let budget = budgets.map(|budgets| budgets.of_path(request.uri().path()).clone());
        // The request's data is held until its answer begins: as bytes, and then as the
        // values made of them.
        let messages = matches!(self.port.protocol, Protocol::Grpc { .. });
        let held = budget
            .as_ref()
            .map(|budget| RequestMemory::new(budget, messages));
        let service = self.clone();
        Box::pin(async move {
            let room = held.as_ref().map(RequestMemory::room);
            let answer = service.answer(request, budget.as_ref(), held).await?;
            let room = room.map(|room| room.hand_over());
            let (answer, room) = service.make_room(answer, room);
            drop(probe);
            Ok(answer.map(|body| Answer::new(in_service, body, room)))
        })
    }
}

impl RequestService {
    /// Returns a permit to draw on no budget, for a health call while no other has the
    /// permit. Its memory is bounded all the same: its message has a few KiB at most.
    fn probe(&self, path: &str) -> Option<OwnedSemaphorePermit> {
        let is_grpc = matches!(self.port.protocol, Protocol::Grpc { .. });
        let wanted = is_grpc && self.port.is_probe(path);
        let leave = || self.probing.clone().try_acquire_owned().ok();
        wanted.then(leave).flatten()
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        budget: Option<&Arc<Budget>>,
        held: Option<RequestMemory>,
    ) -> Result<Response, Infallible> {
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
        let may_be_unread = request.version() == Version::HTTP_2 && !request.body().is_end_stream();
        let window = budget.filter(|_| may_be_unread);
        let window = match window.map(|budget| self.window.take(budget)).transpose() {
            Ok(window) => window,
            Err(over) => return Ok(self.over(over)),
        };
        if let Some(held) = &held {
            request.extensions_mut().insert(held.clone());
        }
        if let Protocol::Grpc { .. } = self.port.protocol {
            // tonic's services look for it here.
            request.extensions_mut().insert(TcpConnectInfo {
                local_addr: None,
                remote_addr: Some(self.peer),
            });
        }
        let request = request.map(|body| {
            let mut body = TimedBody::new(body, limits, held.clone(), self.place.clone());
            body.window = window;
            Body::new(body)
        });
        let answer = self.router.clone().oneshot(request);
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

    /// Takes memory for an answer until it is taken; `room` is the request's
    /// reservation. An answer that finds no memory becomes a refusal.
    fn make_room(
        &self,
        answer: Response,
        room: Option<AnswerMemory>,
    ) -> (Response, Option<AnswerMemory>) {
        let Some(mut room) = room else {
            return (answer, None);
        };
        let Some(bytes) = answer.body().size_hint().exact() else {
            // The reservation is for all that a stream may bring.
            return (answer, Some(room));
        };
        let charged = match bytes {
            ..=SMALL_ANSWER => 0,
            _ => usize::try_from(bytes).unwrap_or(usize::MAX),
        };
        let reserved = room.charge.bytes();
        room.charge.keep(charged);
        let beyond = charged - room.charge.bytes();
        match room.charge.add_answer(beyond, reserved) {
            Ok(()) => (answer, Some(room)),
            Err(over) => (self.over(over), None),
        }
    }

    /// Returns the refusal for lack of memory.
    fn over(&self, over: OverBudget) -> Response {
        self.place.places().count(Closed::OverBudget);
        match &self.port.protocol {
            Protocol::Http { over_budget, .. } => over_budget(over),
            Protocol::Grpc { .. } => Status::from(over).into_http(),
        }
    }

    /// Returns the refusal for lack of a place. Places belong to connections, so over
    /// HTTP/1.1 this answer closes the connection.
    fn refuse(&self, full: Full, version: Version) -> Response {
        let mut answer = self.port.refusal(full);
        if version < Version::HTTP_2 {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
        }
        answer
    }
}
