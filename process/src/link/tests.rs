use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::ControlLink;
use crate::message::ChildMessage;
use crate::{Role, exit};

/// Long enough for any machine; reached only when a test fails.
const SOON: Duration = Duration::from_secs(30);

/// A child's link, the launcher's end of its socket, and the exit codes that the child is ended
/// with.
fn connected() -> (ControlLink, BufReader<UnixStream>, Receiver<u8>) {
    let (child, launcher) = UnixStream::pair().expect("a pair of sockets");
    launcher.set_read_timeout(Some(SOON)).expect("set");
    let (sender, ended) = channel();
    let end = move |code| sender.send(code).expect("the test waits");
    let link = ControlLink::over(child, Role::Worker(3), end).expect("a link");
    (link, BufReader::new(launcher), ended)
}

fn message(launcher: &mut BufReader<UnixStream>) -> ChildMessage {
    let mut line = String::new();
    launcher.read_line(&mut line).expect("a line");
    serde_json::from_str(&line).expect("a message")
}

/// Waits for a token from a plain thread.
fn wait(token: &tokio_util::sync::CancellationToken) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("built");
    let cancelled = async { tokio::time::timeout(SOON, token.cancelled()).await };
    runtime.block_on(cancelled).expect("cancelled soon");
}

#[test]
fn reports_arrive_in_order_after_the_greeting() {
    let (link, mut launcher, _ended) = connected();
    link.progress("weights", 1, 2);
    link.ready("cpu");
    link.failed("broken");
    let pid = std::process::id();
    assert_eq!(
        message(&mut launcher),
        ChildMessage::Hello {
            role: "worker 3".into(),
            pid
        }
    );
    let progress = ChildMessage::Progress {
        phase: "weights".into(),
        done: 1,
        total: 2,
    };
    assert_eq!(message(&mut launcher), progress);
    assert_eq!(
        message(&mut launcher),
        ChildMessage::Ready {
            detail: "cpu".into()
        }
    );
    assert_eq!(
        message(&mut launcher),
        ChildMessage::Failed {
            message: "broken".into()
        }
    );
}

#[test]
fn what_the_launcher_foresees_is_known() {
    let (link, mut launcher, _ended) = connected();
    assert_eq!(link.outlook().seconds(), None);
    let lines = b"{\"type\":\"outlook\",\"served_in_s\":7}\n{\"type\":\"drain\"}\n";
    launcher.get_mut().write_all(lines).expect("written");
    wait(&link.lifecycle().drain);
    assert_eq!(link.outlook().seconds(), Some(7));
}

#[test]
fn closing_writes_everything_first() {
    let (link, launcher, _ended) = connected();
    for done in 0..50 {
        link.progress("weights", done, 50);
    }
    link.close(SOON);
    // A clone of the link, as a role's thread may still hold, changes nothing.
    link.ready("too late");
    let lines: Vec<_> = launcher.lines().map(|line| line.expect("a line")).collect();
    assert_eq!(
        lines.len(),
        51,
        "the greeting and all reports, then the end"
    );
}

#[test]
fn a_drain_asks_and_does_not_end() {
    let (link, launcher, ended) = connected();
    launcher
        .get_ref()
        .write_all(b"{\"type\":\"drain\"}\n")
        .expect("written");
    wait(&link.lifecycle().drain);
    assert!(!link.lifecycle().halt.is_cancelled());
    assert!(ended.try_recv().is_err());
}

#[test]
fn pings_are_answered_by_who_asks_for_them_and_by_nobody_else() {
    let (link, mut launcher, _ended) = connected();
    message(&mut launcher);
    let ping = b"{\"type\":\"ping\",\"lost_log_lines\":7}\n";
    launcher.get_ref().write_all(ping).expect("written");
    // The thread of the link has seen the ping, since a later message has an effect.
    launcher
        .get_ref()
        .write_all(b"{\"type\":\"drain\"}\n")
        .expect("written");
    wait(&link.lifecycle().drain);
    assert_eq!(link.lost_log_lines(), 7);
    link.ready("no answer came before this");
    assert!(matches!(message(&mut launcher), ChildMessage::Ready { .. }));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("built");
    let answers = link.clone();
    let pong = std::thread::spawn(move || message(&mut launcher));
    runtime.block_on(async {
        tokio::select! {
            never = answers.answer_pings() => match never {},
            () = async { while !pong.is_finished() { tokio::task::yield_now().await } } => {}
        }
    });
    let pong = pong.join().expect("a message");
    assert!(matches!(pong, ChildMessage::Pong { .. }), "{pong:?}");
}

#[test]
fn a_halt_ends_the_process_soon() {
    let (link, launcher, ended) = connected();
    launcher
        .get_ref()
        .write_all(b"{\"type\":\"halt\"}\n")
        .expect("written");
    wait(&link.lifecycle().halt);
    assert_eq!(ended.recv_timeout(SOON), Ok(exit::OK));
}

#[test]
fn the_end_of_the_launcher_ends_the_process_soon() {
    let (link, launcher, ended) = connected();
    drop(launcher);
    wait(&link.lifecycle().halt);
    assert_eq!(ended.recv_timeout(SOON), Ok(exit::LAUNCHER_GONE));
}

#[test]
fn a_line_beyond_the_limit_is_skipped() {
    let (link, launcher, _ended) = connected();
    // The child reads no more than its limit of a line, finds no message in it, and goes on
    // with the rest.
    let mut line = vec![b'x'; 200 * 1024];
    line.extend_from_slice(b"\n{\"type\":\"drain\"}\n");
    launcher.get_ref().write_all(&line).expect("written");
    wait(&link.lifecycle().drain);
}

#[test]
fn a_detached_link_reports_to_its_receiver() {
    let (link, mut reports) = ControlLink::detached();
    link.ready("here");
    assert_eq!(
        reports.try_recv(),
        Ok(ChildMessage::Ready {
            detail: "here".into()
        })
    );
    link.close(SOON);
    drop(reports);
    link.ready("nobody listens, nobody minds");
}
