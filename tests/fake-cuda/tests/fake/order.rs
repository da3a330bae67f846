//! Only waits order the work of different streams.

use std::collections::BTreeSet;

use crate::children;
use crate::device::{Buffer, Event, Module, Shape, Stream, Value, begin, begin_with};

/// The value that a second stream sees, which the first stream changes from zeros to ones.
fn seen(waits: bool) -> u8 {
    let (first, second) = (Stream::new(), Stream::new());
    let (value, copy) = (Buffer::of(&[0u8; 4]), Buffer::of(&[2u8; 4]));
    first.fill(&value, 1, 4).expect("asked for");
    if waits {
        // The wait outlives its event.
        second.wait(&first.event()).expect("waits");
    }
    second.copy(&copy, &value, 4).expect("asked for");
    copy.read::<u8>(1, &second)[0]
}

fn seen_with(seeds: std::ops::Range<u64>, waits: bool) -> Vec<u8> {
    let of = |seed| {
        let _order = begin_with(seed);
        seen(waits)
    };
    seeds.map(of).collect()
}

#[test]
fn a_missing_wait_shows() {
    let without = seen_with(0..20, false);
    let both: BTreeSet<u8> = without.iter().copied().collect();
    assert_eq!(both, [0, 1].into(), "{without:?}");
    assert_eq!(seen_with(0..20, true), [1; 20]);
}

/// Prints stale values, in a process without other work.
pub(crate) fn print_stale_values() {
    begin();
    let seen: Vec<u8> = (0..20).map(|_| seen(false)).collect();
    children::tell(&format!("seen {seen:?}"));
}

#[test]
fn a_seed_stands_for_one_order() {
    let run = |seed: &str| {
        let mut command = children::command("stale values");
        let (good, text) = children::finish(command.env("FAKE_CUDA_SEED", seed));
        assert!(good, "{text}");
        let seen = text
            .lines()
            .find(|line| line.contains("seen ["))
            .map(str::to_owned);
        seen.expect("printed")
    };
    assert_eq!(run("3"), run("3"));
    assert_ne!(run("3"), run("4"));
}

#[test]
fn an_event_is_done_when_its_work_is() {
    let _order = begin_with(5);
    let stream = Stream::new();
    let value = Buffer::of(&[0u8; 4]);
    let event = Event::new();
    event.query().expect("one that was never recorded is done");
    stream.fill(&value, 1, 4).expect("asked for");
    event.record(&stream).expect("recorded");
    stream.fill(&value, 2, 4).expect("asked for");
    let mut asked = 0;
    while let Err(code) = event.query() {
        assert_eq!(code, 600, "not ready");
        asked += 1;
        assert!(asked < 1000, "every question lets some work run");
    }
    event.synchronize().expect("it is done");
    assert_eq!(value.read::<u8>(1, &stream), [2]);
}

#[test]
fn streams_of_other_threads_run_where_they_are_needed() {
    begin();
    let (value, copy) = (Buffer::of(&[0u8; 4]), Buffer::of(&[0u8; 4]));
    let theirs = Stream::new();
    theirs.fill(&value, 1, 4).expect("asked for");
    let event = theirs.event();
    // Streams belong to the context; only the handle crosses to the other thread.
    let (event, from, to) = (&Shared(&event), &Shared(&value), &Shared(&copy));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            begin();
            let mine = Stream::new();
            mine.wait(event.0).expect("waits");
            mine.copy(to.0, from.0, 4).expect("asked for");
            assert_eq!(to.0.read::<u8>(1, &mine), [1]);
        });
    });
}

/// An object of the driver, whose calls may come from any thread.
struct Shared<'a, T>(&'a T);
// SAFETY: all calls of the driver that go through it lock the driver's state.
unsafe impl<T> Sync for Shared<'_, T> {}

#[test]
fn the_null_stream_waits_for_those_that_block_alone() {
    let null = Stream(std::ptr::null_mut());
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        let _order = begin_with(seed);
        let (blocking, other) = (Stream::blocking(), Stream::new());
        let (value, copy) = (Buffer::of(&[0u8; 2]), Buffer::of(&[9u8; 2]));
        let apart = Buffer::of(&[0u8; 2]);
        blocking.fill(&value, 1, 2).expect("asked for");
        null.copy(&copy, &value, 1).expect("asked for");
        assert_eq!(
            copy.read::<u8>(1, &null),
            [1],
            "it waits for blocking streams"
        );
        null.fill(&value, 3, 2).expect("asked for");
        blocking.copy(&copy, &value, 1).expect("asked for");
        assert_eq!(copy.read::<u8>(1, &blocking), [3], "and they for it");
        other.fill(&apart, 1, 2).expect("asked for");
        null.copy(&copy, &apart, 1).expect("asked for");
        seen.insert(copy.read::<u8>(1, &null)[0]);
    }
    assert_eq!(
        seen,
        [0, 1].into(),
        "it does not wait for those that don't block"
    );
}

#[test]
fn work_of_one_stream_keeps_its_order() {
    let source = include_str!("kernels/small.cu");
    begin();
    let module = Module::new(source, &[]);
    let (add, scale) = (module.kernel("add"), module.kernel("scale"));
    for seed in 0..5 {
        let _order = begin_with(seed);
        let stream = Stream::new();
        let (x, y) = (Buffer::of(&[1.0f32; 100]), Buffer::new(400));
        let shape = Shape::line(4, 32);
        let n = Value::Unsigned(100);
        add.launch(&stream, shape, &[(&x).into(), 2.0f32.into(), n]);
        scale.launch(
            &stream,
            shape,
            &[(&x).into(), (&y).into(), 10.0f32.into(), n],
        );
        add.launch(&stream, shape, &[(&y).into(), 0.5f32.into(), n]);
        assert_eq!(y.read::<f32>(100, &stream), [30.5; 100]);
    }
}

/// A test fails if it claims an order from which nothing was drawn.
#[test]
fn an_order_that_nobody_draws_is_told() {
    let fill = || {
        let (stream, x) = (Stream::new(), Buffer::new(4));
        stream.fill(&x, 7, 4).expect("asked for");
        assert_eq!(x.read::<u8>(4, &stream), [7; 4]);
    };
    let order = begin_with(3);
    assert_eq!(order.drawn(), Some(0));
    fill();
    assert!(order.drawn() > Some(0));
    drop(order);
    // The threads of a test have orders of their own.
    let order = begin_with(4);
    let work = || {
        begin();
        fill();
    };
    std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
    let told = std::panic::catch_unwind(|| drop(order)).expect_err("nothing was drawn");
    let told = told.downcast_ref::<String>().expect("a text");
    assert!(told.contains("seed 4"), "{told}");
    let handed = std::thread::scope(|scope| {
        let work = || {
            let order = begin_with(5);
            fill();
            order
        };
        scope.spawn(work).join().expect("no panic")
    });
    assert!(handed.drawn() > Some(0), "whoever holds it");
}
