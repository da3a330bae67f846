use std::io::Write;
use std::time::Duration;

use lockstep_process::{LauncherMessage, Role, exit};
use tokio::time::{Instant, timeout};

use super::{Drained, Left, Served, collapse, cut, leave, may_leave, released, stages};
use crate::serve::cause;
use crate::serve::children::tests::{FOREVER, SOON, asked, next, scripts};
use crate::serve::children::{Change, everyone};
use crate::serve::end::Ending;
use crate::serve::signals::Signals;

const FRONT: Role = Role::TokenizerManager(0);

#[tokio::test]
async fn a_killed_rank_is_the_cause_although_the_scheduler_complains_first() {
    let mut scripts = scripts(&[
        (Role::Scheduler, "exit 1"),
        (Role::Worker(0), "kill -KILL $$"),
        (FRONT, "exit 0"),
    ]);
    let mut link = scripts.link(Role::Scheduler);
    let failed = b"{\"type\":\"failed\",\"message\":\"rank 0 is gone\"}\n";
    link.get_mut().write_all(failed).expect("written");
    let Served::Died(cause) = timeout(SOON, collapse(&mut scripts.children, Role::Scheduler))
        .await
        .expect("ended")
    else {
        panic!("a death is not a stop");
    };
    assert_eq!(cause.role, Role::Worker(0));
    assert!(cause.what.contains("signal 9"), "{cause}");
    assert!(scripts.children.all_ended(everyone));
}

#[tokio::test]
async fn what_a_child_says_is_preferred_to_its_exit_code() {
    let mut scripts = scripts(&[(Role::Scheduler, FOREVER)]);
    let mut link = scripts.link(Role::Scheduler);
    link.get_mut()
        .write_all(b"{\"type\":\"failed\",\"message\":\"port taken\"}\n")
        .expect("written");
    assert_eq!(
        next(&mut scripts.children).await,
        Change::Failed(Role::Scheduler)
    );
    let cause = cause::find(&scripts.children).expect("a cause");
    assert_eq!(cause.to_string(), "scheduler failed: port taken");
}

#[tokio::test]
async fn a_crash_shows_its_last_lines() {
    let mut scripts = scripts(&[(Role::Worker(1), "echo first >&2; echo last >&2; exit 9")]);
    next(&mut scripts.children).await;
    let text = cause::find(&scripts.children).expect("a cause").to_string();
    assert!(
        text.starts_with("worker 1 ended with exit code 9"),
        "{text}"
    );
    assert!(text.ends_with("first\n  last"), "{text}");
}

#[tokio::test]
async fn nobody_who_is_well_is_a_cause() {
    let scripts = scripts(&[(Role::Worker(1), FOREVER)]);
    assert_eq!(cause::find(&scripts.children), None);
}

#[tokio::test]
async fn a_drain_that_takes_too_long_is_late() {
    let mut scripts = scripts(&[(Role::Scheduler, FOREVER), (FRONT, FOREVER)]);
    let limit = Instant::now() + Duration::from_millis(1);
    assert!(matches!(
        stages(&mut scripts.children, limit, true).await,
        Drained::Late
    ));
}

#[tokio::test]
async fn the_scheduler_knows_of_a_drain_that_is_cut() {
    let mut scripts = scripts(&[(Role::Scheduler, FOREVER), (FRONT, FOREVER)]);
    let mut link = scripts.link(Role::Scheduler);
    let ready = b"{\"type\":\"ready\",\"detail\":\"\"}\n";
    link.get_mut().write_all(ready).expect("written");
    next(&mut scripts.children).await;
    cut(&mut scripts.children);
    assert_eq!(asked(link).await, LauncherMessage::Drain);
}

#[tokio::test]
async fn a_drain_that_loses_a_rank_with_requests_running_has_failed() {
    let mut scripts = scripts(&[(Role::Worker(0), "kill -KILL $$"), (FRONT, FOREVER)]);
    let limit = Instant::now() + SOON;
    assert!(matches!(
        stages(&mut scripts.children, limit, true).await,
        Drained::Died(Role::Worker(0))
    ));
}

#[tokio::test]
async fn a_drain_in_which_all_leave_well_is_finished() {
    let mut scripts = scripts(&[(FRONT, "exit 0"), (Role::TokenizerManager(1), "exit 0")]);
    let limit = Instant::now() + SOON;
    assert!(matches!(
        stages(&mut scripts.children, limit, true).await,
        Drained::Finished
    ));
}

#[tokio::test]
async fn ranks_may_leave_when_the_scheduler_has() {
    let mut scripts = scripts(&[(Role::Scheduler, "exit 0"), (Role::Worker(0), FOREVER)]);
    let children = &mut scripts.children;
    assert!(
        !may_leave(children, Role::Worker(0), Ending::Code(0)),
        "nobody was asked"
    );
    assert!(!may_leave(children, Role::Scheduler, Ending::Code(0)));
    children.send(LauncherMessage::Drain, super::scheduler);
    assert!(may_leave(children, Role::Worker(0), Ending::Code(0)));
    assert!(may_leave(children, Role::Scheduler, Ending::Code(0)));
    assert!(!may_leave(children, Role::Worker(0), Ending::Signal(9)));
    next(children).await;
    assert!(
        may_leave(children, Role::Worker(0), Ending::Code(1)),
        "the scheduler is gone"
    );
}

#[tokio::test]
async fn a_node_ends_well_when_node_0_releases_all_its_ranks() {
    let mut both = scripts(&[(Role::Worker(2), "exit 0"), (Role::Worker(3), "exit 0")]);
    assert!(
        matches!(released(&mut both.children).await, Served::Stopped(code) if code == exit::OK)
    );
    let mut one = scripts(&[(Role::Worker(2), "exit 0"), (Role::Worker(3), "exit 1")]);
    assert!(
        matches!(released(&mut one.children).await, Served::Died(cause) if cause.role == Role::Worker(3))
    );
}

#[tokio::test]
async fn a_node_that_leaves_ends_well_also_when_node_0_fails_first() {
    let mut scripts = scripts(&[(Role::Worker(2), "exit 0"), (Role::Worker(3), "exit 1")]);
    let limit = Instant::now() + SOON;
    assert!(matches!(
        stages(&mut scripts.children, limit, false).await,
        Drained::Finished
    ));
}

#[tokio::test]
async fn a_rank_that_is_killed_while_its_node_leaves_is_the_cause() {
    let mut scripts = scripts(&[(Role::Worker(1), "kill -KILL $$")]);
    let limit = Instant::now() + SOON;
    let Drained::Died(role) = stages(&mut scripts.children, limit, false).await else {
        panic!("a killed rank did not leave");
    };
    let Served::Died(cause) = collapse(&mut scripts.children, role).await else {
        panic!("a death is not a stop");
    };
    assert_eq!(cause.role, Role::Worker(1));
    assert!(cause.what.contains("SIGKILL"), "{cause}");
}

#[tokio::test]
async fn who_was_seen_to_fail_is_the_cause_when_nothing_else_is_known() {
    let scripts = scripts(&[(Role::Worker(1), FOREVER)]);
    let cause = cause::find_or(&scripts.children, Role::Worker(1));
    assert_eq!(cause.to_string(), "worker 1 failed");
}

#[tokio::test]
async fn who_leaves_is_told_and_lives_until_the_time_is_over() {
    let mut scripts = scripts(&[(FRONT, FOREVER)]);
    let mut link = scripts.link(FRONT);
    let ready = b"{\"type\":\"ready\",\"detail\":\"\"}\n";
    link.get_mut().write_all(ready).expect("written");
    next(&mut scripts.children).await;
    let mut signals = Signals::new().expect("signals");
    let left = leave(
        &mut scripts.children,
        &mut signals,
        Duration::from_millis(1),
    )
    .await;
    assert!(matches!(left, Left::InTime));
    assert_eq!(asked(link).await, LauncherMessage::Leave);
    let member = scripts.children.member(FRONT).expect("the front");
    assert!(!member.was_asked() && member.ended.is_none());
}

#[tokio::test]
async fn who_dies_while_it_should_leave_has_failed() {
    let mut scripts = scripts(&[(FRONT, "exit 0")]);
    let mut signals = Signals::new().expect("signals");
    let left = leave(&mut scripts.children, &mut signals, SOON).await;
    assert!(matches!(left, Left::Died(FRONT)));
}
