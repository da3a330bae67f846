use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use lockstep_process::{LauncherMessage, Role};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{Instant, timeout};

use super::{Change, Children, everyone, fronts};
use crate::console::Lines;
use crate::serve::child::ChildSpec;
use crate::serve::end::Ending;

/// A limit that only failing tests reach, on any machine.
pub(in crate::serve) const SOON: Duration = Duration::from_secs(30);

/// A child that runs this shell script.
pub(in crate::serve) fn shell(role: Role, script: &str) -> ChildSpec {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    ChildSpec { role, command }
}

/// A script that runs until it is killed.
pub(in crate::serve) const FOREVER: &str = "kill -STOP $$";

const FRONT: Role = Role::TokenizerManager(0);

/// Scripts as children, their folder, and the lines they write.
pub(in crate::serve) struct Scripts {
    pub(in crate::serve) children: Children,
    pub(in crate::serve) lines: PipeReader,
    socket: PathBuf,
    _dir: TempDir,
}

pub(in crate::serve) fn scripts(scripts: &[(Role, &str)]) -> Scripts {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let socket = dir.path().join("control.sock");
    let (lines, writer) = std::io::pipe().expect("a pipe");
    let specs = scripts
        .iter()
        .map(|(role, script)| shell(*role, script))
        .collect();
    let children = Children::spawn(specs, &socket, &Lines::to(writer)).expect("started");
    Scripts {
        children,
        lines,
        socket,
        _dir: dir,
    }
}

impl Scripts {
    /// Opens a control link as a child does.
    pub(in crate::serve) fn link(&self, role: Role) -> BufReader<UnixStream> {
        let mut stream = UnixStream::connect(&self.socket).expect("connected");
        stream.set_read_timeout(Some(SOON)).expect("set");
        let hello = format!("{{\"type\":\"hello\",\"role\":\"{role}\",\"pid\":1}}\n");
        stream.write_all(hello.as_bytes()).expect("written");
        BufReader::new(stream)
    }
}

/// The next change; the test fails if none comes.
pub(in crate::serve) async fn next(children: &mut Children) -> Change {
    timeout(SOON, children.next()).await.expect("a change")
}

/// Reads one line of a link off the event loop.
pub(in crate::serve) async fn asked(mut link: BufReader<UnixStream>) -> LauncherMessage {
    let read = move || {
        let mut line = String::new();
        link.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("a message")
    };
    tokio::task::spawn_blocking(read).await.expect("no panic")
}

#[tokio::test]
async fn an_exit_is_seen_with_the_last_lines() {
    let mut scripts = scripts(&[(
        Role::Worker(0),
        "for i in $(seq 60); do echo line $i >&2; done; exit 7",
    )]);
    assert_eq!(
        next(&mut scripts.children).await,
        Change::Exited(Role::Worker(0), Ending::Code(7))
    );
    let lines = scripts.children.members()[0].child.last_lines(3);
    assert_eq!(lines, ["line 58", "line 59", "line 60"]);
    let read = move || {
        let mut first = [0; 7];
        scripts.lines.read_exact(&mut first).expect("forwarded");
        first
    };
    let first = tokio::task::spawn_blocking(read).await.expect("no panic");
    assert_eq!(&first, b"line 1\n");
}

#[tokio::test]
async fn a_signal_is_told_from_an_exit() {
    let mut scripts = scripts(&[(Role::Scheduler, "kill -KILL $$")]);
    assert_eq!(
        next(&mut scripts.children).await,
        Change::Exited(Role::Scheduler, Ending::Signal(9))
    );
}

#[tokio::test]
async fn reports_are_changes_and_wishes_are_lines() {
    let mut scripts = scripts(&[(Role::Worker(0), FOREVER), (Role::Worker(1), FOREVER)]);
    let mut link = scripts.link(Role::Worker(1));
    link.get_mut()
        .write_all(b"{\"type\":\"progress\",\"phase\":\"weights\",\"done\":1,\"total\":9}\n{\"type\":\"ready\",\"detail\":\"cpu\"}\n")
        .expect("written");
    let children = &mut scripts.children;
    assert_eq!(
        next(children).await,
        Change::Progress(Role::Worker(1), "weights".into(), 1, 9)
    );
    assert_eq!(next(children).await, Change::Ready(Role::Worker(1)));
    assert!(!children.all_ready(), "the other has said nothing");
    children.send(LauncherMessage::Drain, everyone);
    assert_eq!(asked(link).await, LauncherMessage::Drain);
    // Worker 0 gets the message when its link opens.
    let late = scripts.link(Role::Worker(0));
    let mut link = scripts.link(Role::Worker(1));
    link.get_mut()
        .write_all(b"{\"type\":\"failed\",\"message\":\"no\"}\n")
        .expect("written");
    assert_eq!(
        next(&mut scripts.children).await,
        Change::Failed(Role::Worker(1))
    );
    assert_eq!(asked(late).await, LauncherMessage::Drain);
}

#[tokio::test]
async fn who_answers_no_ping_is_told_from_who_does() {
    let mut scripts = scripts(&[(Role::Worker(0), FOREVER), (Role::Worker(1), FOREVER)]);
    assert!(
        scripts.children.ping(1).is_empty(),
        "nobody can hear it yet"
    );
    let mut links = [0, 1].map(|rank| scripts.link(Role::Worker(rank)));
    for link in &mut links {
        let ready = b"{\"type\":\"ready\",\"detail\":\"\"}\n";
        link.get_mut().write_all(ready).expect("written");
        next(&mut scripts.children).await;
    }
    let [silent, mut alive] = links;
    assert!(scripts.children.ping(1).is_empty());
    let answer =
        b"{\"type\":\"pong\",\"lost_log_lines\":3}\n{\"type\":\"ready\",\"detail\":\"\"}\n";
    alive.get_mut().write_all(answer).expect("written");
    next(&mut scripts.children).await;
    assert_eq!(scripts.children.ping(1), [Role::Worker(0)]);
    assert!(matches!(asked(silent).await, LauncherMessage::Ping { .. }));
    scripts.children.give_up(Role::Worker(0), "hangs".into());
    assert_eq!(
        next(&mut scripts.children).await,
        Change::Exited(Role::Worker(0), Ending::Signal(9))
    );
    // The other worker's answer to the second ping is still awaited.
    assert_eq!(scripts.children.ping(1), [Role::Worker(1)]);
}

#[tokio::test]
async fn a_child_that_was_replaced_says_nothing_for_its_successor() {
    let mut scripts = scripts(&[(Role::TokenizerManager(0), "exit 7")]);
    let role = Role::TokenizerManager(0);
    let mut old = scripts.link(role);
    let ready = b"{\"type\":\"ready\",\"detail\":\"\"}\n";
    old.get_mut().write_all(ready).expect("written");
    let mut seen = [
        next(&mut scripts.children).await,
        next(&mut scripts.children).await,
    ];
    seen.sort_by_key(|change| matches!(change, Change::Exited(..)));
    assert_eq!(
        seen,
        [Change::Ready(role), Change::Exited(role, Ending::Code(7))]
    );
    scripts
        .children
        .replace(shell(role, FOREVER))
        .expect("started");
    assert!(!scripts.children.all_ready() && !scripts.children.all_ended(everyone));
    let mut new = scripts.link(role);
    old.get_mut()
        .write_all(b"{\"type\":\"failed\",\"message\":\"no\"}\n")
        .expect("written");
    new.get_mut().write_all(ready).expect("written");
    // In either order of events, only the successor counts.
    while next(&mut scripts.children).await != Change::Ready(role) {}
    assert!(scripts.children.all_ready());
}

#[tokio::test]
async fn a_line_that_is_no_message_is_a_failure() {
    let mut scripts = scripts(&[(Role::Worker(0), FOREVER)]);
    let mut link = scripts.link(Role::Worker(0));
    link.get_mut().write_all(b"hello?\n").expect("written");
    assert_eq!(
        next(&mut scripts.children).await,
        Change::Failed(Role::Worker(0))
    );
    let failed = scripts.children.members()[0]
        .failed
        .clone()
        .expect("a message");
    assert!(failed.contains("hello?"), "{failed}");
}

#[tokio::test]
async fn stopping_leaves_nobody_also_not_the_stopped_and_the_stubborn() {
    let mut scripts = scripts(&[
        (Role::Scheduler, "kill -STOP $$"),
        (Role::Worker(0), "trap '' TERM INT HUP; while :; do :; done"),
        (Role::TokenizerManager(0), "exit 0"),
    ]);
    let children = &mut scripts.children;
    assert!(children.wait_ended(fronts, Instant::now() + SOON).await);
    assert!(!children.all_ended(everyone));
    timeout(SOON, children.stop(Duration::from_millis(1)))
        .await
        .expect("stopped");
    for member in children.members() {
        let (ending, was_asked) = member.ended.expect("ended");
        let killed = !fronts(member.child.role);
        assert_eq!(
            (ending, was_asked),
            if killed {
                (Ending::Signal(9), true)
            } else {
                (Ending::Code(0), false)
            }
        );
    }
}

#[tokio::test]
async fn children_do_not_hear_ctrl_c() {
    let mut scripts = scripts(&[(Role::Worker(0), "exec cut -d' ' -f1,5 /proc/self/stat >&2")]);
    next(&mut scripts.children).await;
    let line = scripts.children.members()[0].child.last_lines(1).remove(0);
    let (pid, process_group) = line.split_once(' ').expect("two numbers");
    assert_eq!(pid, process_group, "a process group of its own");
}

#[tokio::test]
async fn who_opens_its_link_late_hears_what_was_foreseen() {
    let mut scripts = scripts(&[(Role::Scheduler, FOREVER), (FRONT, FOREVER)]);
    let mut early = scripts.link(Role::Scheduler);
    let ready = b"{\"type\":\"ready\",\"detail\":\"\"}\n";
    early.get_mut().write_all(ready).expect("written");
    next(&mut scripts.children).await;
    scripts.children.foresee(Some(9));
    let told = LauncherMessage::Outlook {
        served_in_s: Some(9),
    };
    assert_eq!(asked(early).await, told);
    let mut late = scripts.link(FRONT);
    late.get_mut().write_all(ready).expect("written");
    next(&mut scripts.children).await;
    assert_eq!(asked(late).await, told);
}
