//! Answers without end: limits end them, and the waiting user is told.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use lockstep_hub::HubError;
use lockstep_loopback_hub::Fault;

use crate::{NAME, SHARDS, Scene};

/// Dripping answers end at the time limit of descriptions, and the waiting user is told.
#[test]
fn descriptions_that_drip_end_by_the_start_ups_limit_and_are_told_of() {
    thread::scope(|scope| {
        for (dripping, what) in [
            (NAME, "the hub's list of files"),
            ("config.json", "config.json"),
            ("tokenizer.json", "the small files"),
        ] {
            scope.spawn(move || assert_slow(dripping, what));
        }
    });
}

fn assert_slow(dripping: &str, what: &str) {
    let mut scene = Scene::new();
    scene.settings.limits.described = Duration::from_secs(5);
    scene.settings.limits.word = Duration::from_millis(1);
    if dripping != NAME {
        scene.exchange(dripping, &[b' '; 1000]);
    }
    scene.hub.fault(dripping, Fault::Drip);
    let error = scene.load().expect_err("it drips");
    let text = error.to_string();
    assert!(matches!(error, HubError::Slow { .. }), "{text}");
    assert!(!error.is_usage() && text.contains(NAME), "{text}");
    for expected in [
        what,
        "5 s (--startup-timeout)",
        "lockstep pull",
        "HTTPS_PROXY",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let events = scene.events();
    assert!(
        events.contains(&format!("Waiting for {what}, 0 s so far.")),
        "{events}"
    );
}

/// A user who has the model waits for a dripping list no longer than for a hub that is away.
#[test]
fn a_list_that_drips_stops_nobody_who_has_the_model() {
    let mut scene = Scene::new();
    let loaded = scene.load().expect("loaded");
    scene.settings.limits.described = Duration::from_millis(300);
    scene.hub.fault(NAME, Fault::Drip);
    assert_eq!(scene.load().expect("there").folder, loaded.folder);
    let events = scene.events();
    assert!(
        events.contains("did not bring the hub's list of files"),
        "{events}"
    );
}

#[test]
fn a_body_that_drips_is_asked_for_again_and_goes_on() {
    let mut scene = Scene::new();
    scene.settings.limits.window = Duration::from_secs(2);
    scene.settings.limits.least = 2_000;
    scene.hub.fault(SHARDS[0], Fault::Drip);
    let fetched = scene.load().expect("loaded");
    scene.assert_whole(&fetched);
    let begins = scene.hub.begins(SHARDS[0]);
    assert!(
        matches!(begins[..], [0, .., second] if (1..2_000).contains(&second)),
        "{begins:?}"
    );
    let events = scene.events();
    assert!(
        events.contains("bytes came within 2s. Trying again"),
        "{events}"
    );
}

#[test]
fn a_body_that_only_drips_is_given_up() {
    let mut scene = Scene::new();
    scene.settings.limits.window = Duration::from_secs(2);
    scene.settings.limits.least = 2_000;
    scene.settings.limits.attempts = 2;
    for _ in 0..2 {
        scene.hub.fault(SHARDS[1], Fault::Drip);
    }
    let error = scene.load().expect_err("it drips");
    let text = error.to_string();
    assert!(matches!(error, HubError::Unreachable { .. }), "{text}");
    assert!(
        text.contains(SHARDS[1]) && text.contains("bytes came within 2s"),
        "{text}"
    );
    assert!(text.contains("HF_HUB_DOWNLOAD_TIMEOUT"), "{text}");
}

/// A try that brings next to nothing counts as a failure in a row. Otherwise there could be
/// as many tries as bytes.
#[test]
fn tries_that_bring_next_to_nothing_are_counted() {
    let scene = Scene::new();
    for _ in 0..20 {
        scene.hub.fault(SHARDS[0], Fault::DropAfter(1));
    }
    let error = scene.load().expect_err("a byte each");
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert_eq!(scene.hub.begins(SHARDS[0]), [0, 1, 2]);
}

/// The hub brings enough each time, and then refuses the rest.
#[test]
fn a_file_that_begins_anew_again_and_again_is_given_up() {
    let scene = Scene::new();
    for _ in 0..20 {
        scene.hub.fault(SHARDS[0], Fault::DropAfter(40_000));
        scene.hub.fault(SHARDS[0], Fault::Status(416, vec![]));
    }
    let text = scene.load().expect_err("never whole").to_string();
    assert!(text.contains("begin anew 4 times"), "{text}");
    assert_eq!(scene.hub.begins(SHARDS[0]), [0, 40_000].repeat(4));
}

/// A server that reads a request and then runs `answer`, for each connection.
fn raw(answer: fn(&mut TcpStream) -> std::io::Result<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream?;
            thread::spawn(move || {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                // The client may leave.
                let _ = answer(&mut stream);
            });
        }
        std::io::Result::Ok(())
    });
    endpoint
}

/// Heads without end: of headers, of one header, of answers before the answer.
#[test]
fn heads_without_an_end_are_given_up() {
    type Answer = fn(&mut TcpStream) -> std::io::Result<()>;
    let floods: [Answer; 4] = [
        |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
            loop {
                stream.write_all(&b"x: y\r\n".repeat(1000))?;
            }
        },
        |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nx: ")?;
            loop {
                stream.write_all(&[b'y'; 1000])?;
            }
        },
        |stream| loop {
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n")?;
        },
        |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;")?;
            loop {
                stream.write_all(&[b'y'; 1000])?;
            }
        },
    ];
    for answer in floods {
        let mut scene = Scene::new();
        scene.settings.endpoint = raw(answer);
        scene.settings.limits.stall = Duration::from_millis(500);
        let text = scene.load().expect_err("a flood").to_string();
        assert!(
            text.contains("can't be reached") && text.contains("HF_ENDPOINT"),
            "{text}"
        );
    }
}

/// Bodies without end and without a length; and a length of more bytes than are read.
#[test]
fn a_list_without_an_end_is_refused_at_its_limit() {
    type Answer = fn(&mut TcpStream) -> std::io::Result<()>;
    let answers: [Answer; 2] = [
        |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            loop {
                stream.write_all(&[b' '; 1 << 16])?;
            }
        },
        // A head with the length, after which nothing comes.
        |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 67108865\r\n\r\n")?;
            stream.read(&mut [0; 1]).map(drop)
        },
    ];
    for answer in answers {
        let mut scene = Scene::new();
        scene.settings.endpoint = raw(answer);
        let text = scene.load().expect_err("a flood").to_string();
        assert!(text.contains("more than 67108864 bytes"), "{text}");
    }
}

/// Each redirect comes in time, but all of them together do not.
#[test]
fn redirects_that_each_come_late_are_given_up() {
    let mut scene = Scene::new();
    // Never answers.
    scene.settings.endpoint = raw(|stream| stream.read(&mut [0; 1]).map(drop));
    scene.settings.limits.window = Duration::from_millis(300);
    let text = scene.load().expect_err("late").to_string();
    assert!(text.contains("did not begin within 300ms"), "{text}");
}
