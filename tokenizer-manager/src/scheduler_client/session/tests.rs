use lockstep_ports::{Budget, OutputReceiver, Prepaid};
use lockstep_proto::pb::lockstep::{self as pb, FrontFigures};
use lockstep_types::request::Request;
use tokio::sync::watch;

use super::*;
use crate::scheduler_client::RequestHandle;

/// Returns a session without requests whose outbound queue has room for `room`
/// messages.
fn session(room: usize) -> (Session, mpsc::Receiver<FrontendMessage>) {
    let (outbound, messages) = mpsc::channel(room);
    let session = Session {
        live: HashMap::new(),
        outbound,
        unsent: VecDeque::new(),
        queries: HashMap::new(),
        next_query: 0,
        status: SchedulerStatus {
            weights: watch::Sender::new(None),
            healthy: watch::Sender::new(false),
        },
        version: None,
        own: Arc::new(|_| FrontFigures::default()),
    };
    (session, messages)
}

fn submit(session: &mut Session, number: u64, budget: &Arc<Budget>) -> OutputReceiver<Output> {
    let (outputs, received) = lockstep_ports::outputs(budget, Prepaid::default());
    session.handle(LinkCommand::Submit {
        number,
        parent: None,
        request: Box::new(request()),
        trace: None,
        outputs,
        live: LivePermit::acquire(&Arc::default(), 1).expect("a permit"),
        weights: Version::default(),
    });
    received
}

fn request() -> Request {
    Request {
        trace_id: "test".to_owned(),
        ..Request::new(vec![1], 1)
    }
}

fn refused(outputs: &mut OutputReceiver<Output>) -> bool {
    let output = outputs.try_recv().and_then(Result::ok);
    let finish = output.and_then(|output| output.finish);
    finish.is_some_and(|finish| {
        finish
            .outcome
            .is_err_and(|error| error.kind == ErrorKind::Unavailable)
    })
}

#[test]
fn a_scheduler_that_takes_nothing_fills_no_memory() {
    let budget = Budget::new(1 << 20);
    let (mut session, mut messages) = session(2);
    let submit = |session: &mut Session, number| submit(session, number, &budget);
    let mut outputs: Vec<_> = (0..4).map(|number| submit(&mut session, number)).collect();
    let refusals: Vec<bool> = outputs.iter_mut().map(refused).collect();
    assert_eq!(refusals, [false, false, true, true]);
    session.handle(LinkCommand::Abort { number: 0 });
    session.handle(LinkCommand::Stop { number: 1 });
    assert_eq!(session.unsent.len(), 2);
    assert!(messages.try_recv().is_ok(), "room for one");
    assert!(
        refused(&mut submit(&mut session, 4)),
        "what is unsent goes first"
    );
    for query in 0..=QUERIES {
        let (reply, mut count) = oneshot::channel();
        session.handle(LinkCommand::AbortTrace {
            trace_ids: None,
            reply,
        });
        let refused = count.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        assert_eq!(refused, query == QUERIES, "{query}");
    }
    assert_eq!(session.unsent.len(), 2 + QUERIES);
}

#[tokio::test]
async fn an_answer_that_nobody_takes_is_given_up_beyond_the_budget() {
    let budget = Budget::new(256 << 10);
    let (mut session, mut messages) = session(8);
    let [untaken, taken] = [1, 2].map(|number| submit(&mut session, number, &budget));
    let (commands, _inbox) = mpsc::unbounded_channel();
    let handle =
        |number, outputs| RequestHandle::new(number, outputs, commands.clone(), Version::default());
    let (mut untaken, mut taken) = (handle(1, untaken), handle(2, taken));
    for _ in 0..2 {
        messages.try_recv().expect("a submission");
    }
    let logprob = pb::TokenLogprob {
        top_ids: vec![0; 20],
        top_logprobs: vec![0.0; 20],
        ..pb::TokenLogprob::default()
    };
    let output = |request| pb::Output {
        request,
        token_ids: vec![7],
        logprobs: vec![logprob.clone()],
        ..pb::Output::default()
    };
    for _ in 0..1000 {
        session.dispatch(FrontendEvent {
            outputs: vec![output(1), output(2)],
            ..FrontendEvent::default()
        });
        assert_eq!(taken.next().await.token_ids, [7], "others go on");
    }
    let kinds: Vec<_> = std::iter::from_fn(|| messages.try_recv().ok()?.kind).collect();
    assert_eq!(kinds, [Kind::Abort(Abort { request: 1 })], "once");
    let read = untaken.next().await.token_ids.len();
    assert!((64..256).contains(&read), "{read} tokens came before");
    let end = untaken.next().await.finish.expect("the last");
    let error = end.outcome.expect_err("given up");
    assert_eq!(error.kind, ErrorKind::Overloaded);
    assert!(error.message.contains("too slowly"), "{error}");
    drop((untaken, taken));
    assert_eq!(budget.taken(), 0);
}

/// They come in one message where a request waited for the weights to change.
#[test]
fn outputs_are_of_the_weights_that_come_with_them() {
    let budget = Budget::new(1 << 20);
    let (mut session, _messages) = session(8);
    let _outputs = submit(&mut session, 1, &budget);
    let weights = session.live[&1].weights.clone();
    session.dispatch(FrontendEvent {
        weights: Some(pb::WeightsInUse {
            version: "v2".to_owned(),
            ..pb::WeightsInUse::default()
        }),
        outputs: vec![pb::Output {
            request: 1,
            token_ids: vec![7],
            ..pb::Output::default()
        }],
        ..FrontendEvent::default()
    });
    assert_eq!(weights.get(), Some(&Some("v2".into())));
}

#[test]
fn who_is_refused_hears_when_to_come_back() {
    let budget = Budget::new(1 << 20);
    for known in [None, Some(7)] {
        let (outputs, mut received) = lockstep_ports::outputs(&budget, Prepaid::default());
        let refused = LinkCommand::Submit {
            number: 2,
            parent: None,
            request: Box::new(request()),
            trace: None,
            outputs,
            live: LivePermit::acquire(&Arc::default(), 1).expect("a permit"),
            weights: Version::default(),
        };
        refuse(refused, &Outlook::from(known));
        let output = received.try_recv().and_then(Result::ok).expect("an answer");
        let error = output.finish.and_then(|finish| finish.outcome.err());
        assert_eq!(error.expect("refused").retry_after_s, known);
    }
}
