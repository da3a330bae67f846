//! Captures become graphs, unless a call happens that CUDA refuses.

use std::collections::BTreeSet;

use crate::device::{
    Answer, Buffer, Event, Module, Pinned, Shape, Stream, Value, begin, begin_with, compile,
};

const UNSUPPORTED: i32 = 900;
const INVALIDATED: i32 = 901;
const MERGE: i32 = 902;
const UNMATCHED: i32 = 903;
const UNJOINED: i32 = 904;
const ISOLATION: i32 = 905;
const IMPLICIT: i32 = 906;
const CAPTURED_EVENT: i32 = 907;

const SMALL: &str = include_str!("kernels/small.cu");

#[test]
fn a_graph_replays_with_what_memory_holds_then() {
    begin();
    let module = Module::new(SMALL, &[]);
    let scale = module.kernel("scale");
    let stream = Stream::new();
    let (x, y) = (Buffer::new(128), Buffer::of(&[0.0f32; 32]));
    let host = Pinned::of(&[1.0f32; 32]);
    stream.begin_capture().expect("begun");
    stream.upload(&x, host.0).expect("recorded");
    let mut factor = 2.0f32;
    let values: [Value; 4] = [(&x).into(), (&y).into(), factor.into(), 32u32.into()];
    scale.launch(&stream, Shape::line(1, 32), &values);
    let graph = stream.end_capture().expect("a graph");
    assert_eq!(
        y.read::<f32>(32, &stream),
        [0.0; 32],
        "recorded, and not run"
    );
    // Parameters keep the values of the capture, and memory is read anew.
    factor = 3.0;
    for turn in [1.0, 5.0, -2.0] {
        host.0.fill(turn * factor);
        stream.replay(&graph).expect("launched");
        assert_eq!(y.read::<f32>(32, &stream), [turn * factor * 2.0; 32]);
    }
}

#[test]
fn branches_of_a_graph_run_in_any_order_and_join() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        let _order = begin_with(seed);
        let (first, second) = (Stream::new(), Stream::new());
        let (x, y, z) = (
            Buffer::of(&[0u8; 4]),
            Buffer::of(&[0u8; 4]),
            Buffer::of(&[0u8; 4]),
        );
        first.begin_capture().expect("begun");
        second.wait(&first.event()).expect("joins");
        first.fill(&x, 1, 4).expect("recorded");
        second.copy(&y, &x, 4).expect("recorded beside it");
        second.fill(&z, 1, 4).expect("recorded");
        first.wait(&second.event()).expect("joined");
        first.copy(&x, &z, 4).expect("recorded behind both");
        let graph = first.end_capture().expect("a graph");
        first.replay(&graph).expect("launched");
        assert_eq!(x.read::<u8>(1, &first), [1]);
        seen.insert(y.read::<u8>(1, &first)[0]);
        // Neither stream is captured any more.
        second.fill(&y, 7, 4).expect("asked for");
        assert_eq!(y.read::<u8>(1, &second), [7]);
    }
    assert_eq!(seen, [0, 1].into());
}

/// Results of `offence` in the middle of a capture, and of the end of that capture.
fn captured(offence: impl FnOnce(&Stream) -> Answer) -> (Answer, Answer) {
    begin();
    let stream = Stream::new();
    let x = Buffer::of(&[0u8; 4]);
    stream.begin_capture().expect("begun");
    stream.fill(&x, 1, 4).expect("recorded");
    let told = offence(&stream);
    let came_to = stream.end_capture().map(|_| ());
    // The stream works again, whatever happened.
    stream.fill(&x, 3, 4).expect("asked for");
    assert_eq!(x.read::<u8>(1, &stream), [3]);
    (told, came_to)
}

#[test]
fn captures_refuse_to_wait_and_to_take_memory() {
    let refused = (Err(UNSUPPORTED), Err(INVALIDATED));
    assert_eq!(captured(Stream::synchronize), refused);
    assert_eq!(captured(|_| Buffer::try_new(4).map(|_| ())), refused);
    let image = compile(SMALL, &["--gpu-architecture=sm_90"]).expect("compiled");
    assert_eq!(captured(|_| Module::try_load(&image).map(|_| ())), refused);
    let event = Event::new();
    assert_eq!(captured(|_| event.query()), refused);
    assert_eq!(captured(|_| Ok(())), (Ok(()), Ok(())));
}

#[test]
fn what_was_spoiled_stays_spoiled() {
    let told = captured(|stream| {
        stream.synchronize().expect_err("refused");
        Event::new().record(stream)
    });
    assert_eq!(told, (Err(INVALIDATED), Err(INVALIDATED)));
}

#[test]
fn captures_are_isolated() {
    begin();
    let other = Stream::new();
    let outside = other.event();
    let told = captured(|stream| stream.wait(&outside));
    assert_eq!(told, (Err(ISOLATION), Err(INVALIDATED)));
    let never = Event::new();
    let told = captured(|stream| stream.wait(&never));
    assert_eq!(told, (Err(ISOLATION), Err(INVALIDATED)));
    // An event of another capture.
    let told = captured(|stream| {
        other.begin_capture().expect("begun");
        let told = stream.wait(&other.event());
        other.end_capture().expect("nothing happened to the other");
        told
    });
    assert_eq!(told, (Err(MERGE), Err(INVALIDATED)));
}

#[test]
fn forks_have_to_be_joined() {
    begin();
    let side = Stream::new();
    let x = Buffer::of(&[0u8; 4]);
    let fork = |stream: &Stream| {
        side.wait(&stream.event()).expect("joins");
        side.fill(&x, 1, 4)
    };
    assert_eq!(captured(fork), (Ok(()), Err(UNJOINED)));
    side.fill(&x, 2, 4).expect("it is out of the capture");
    assert_eq!(x.read::<u8>(1, &side), [2]);
    let ends = |stream: &Stream| {
        side.wait(&stream.event()).expect("joins");
        side.end_capture().map(|_| ())
    };
    assert_eq!(captured(ends), (Err(UNMATCHED), Ok(())));
}

#[test]
fn events_of_captures_are_of_no_use_elsewhere() {
    begin();
    let event = Event::new();
    let inside = captured(|stream| {
        event.record(stream).expect("recorded");
        event.synchronize()
    });
    assert_eq!(inside, (Err(CAPTURED_EVENT), Ok(())));
    assert_eq!(event.synchronize(), Err(CAPTURED_EVENT));
    assert_eq!(Stream::new().wait(&event), Err(CAPTURED_EVENT));
}

#[test]
fn the_null_stream_keeps_out() {
    begin();
    let null = Stream(std::ptr::null_mut());
    assert_eq!(null.begin_capture(), Err(UNSUPPORTED));
    let (blocking, x) = (Stream::blocking(), Buffer::of(&[0u8; 4]));
    // On a context of its own, since other tests use the first one's null stream.
    crate::device::begin_on(1);
    let (theirs, y) = (Stream::blocking(), Buffer::of(&[0u8; 4]));
    theirs.begin_capture().expect("begun");
    assert_eq!(null.fill(&y, 1, 4), Err(IMPLICIT));
    theirs
        .end_capture()
        .expect("it was refused before it did harm");
    drop((theirs, y));
    begin();
    blocking
        .fill(&x, 1, 4)
        .expect("the other context has its own");
    assert_eq!(x.read::<u8>(1, &blocking), [1]);
}

#[test]
fn a_stream_that_is_not_captured_ends_none() {
    begin();
    let stream = Stream::new();
    assert_eq!(stream.end_capture().map(|_| ()), Err(401));
    stream.begin_capture().expect("begun");
    assert_eq!(stream.begin_capture(), Err(401));
    stream.end_capture().expect("the first one goes on");
}
