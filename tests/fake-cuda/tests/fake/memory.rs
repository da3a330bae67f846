//! Memory, and copies to it and from it.

use crate::children;
use crate::device::{Buffer, Pinned, Stream, begin};

#[test]
fn values_come_back_as_they_went() {
    begin();
    let stream = Stream::new();
    let values: Vec<u32> = (0..1000).collect();
    let (first, second) = (Buffer::of(&values), Buffer::new(4000));
    stream.copy(&second, &first, 4000).expect("copied");
    assert_eq!(second.read::<u32>(1000, &stream), values);
    stream.fill(&second, 7, 2000).expect("set");
    let found = second.read::<u32>(1000, &stream);
    assert!(found[..500].iter().all(|value| *value == 0x0707_0707));
    assert_eq!(found[500..], values[500..]);
}

#[test]
fn fresh_memory_is_nan() {
    begin();
    let stream = Stream::new();
    let buffer = Buffer::new(1000);
    let found = buffer.read::<f32>(250, &stream);
    assert!(found.iter().all(|value| value.is_nan()));
}

#[test]
fn copies_stay_inside_allocations() {
    begin();
    let stream = Stream::new();
    let (small, large) = (Buffer::new(64), Buffer::new(128));
    assert_eq!(stream.copy(&small, &large, 65), Err(1));
    assert_eq!(stream.copy(&large, &small, 65), Err(1));
    assert_eq!(stream.fill(&small, 0, 65), Err(1));
    assert_eq!(stream.upload(&small, &[0u8; 65]), Err(1));
    assert_eq!(small.try_read::<u8>(65, &stream), Err(1));
    stream.copy(&small, &large, 64).expect("it fits");
    stream.synchronize().expect("nothing is broken");
}

#[test]
fn pinned_memory_is_read_and_written_when_the_copy_runs() {
    begin();
    let stream = Stream::new();
    let device = Buffer::of(&[1.0f32; 4]);
    let mut host = Pinned::of(&[-1.0f32; 4]);
    stream.download(&mut host, &device).expect("asked for");
    assert_eq!(*host.0, [-1.0; 4], "nothing runs before somebody waits");
    stream.synchronize().expect("the stream works");
    assert_eq!(*host.0, [1.0; 4]);
    stream.upload(&device, host.0).expect("asked for");
    host.0.fill(9.0);
    assert_eq!(
        device.read::<f32>(4, &stream),
        [9.0; 4],
        "changed too early"
    );
}

#[test]
fn pinned_memory_that_goes_before_its_copy_breaks_the_context() {
    let (good, text) = children::finish(&mut children::command("source goes"));
    assert!(
        good && text.contains("16 bytes of pinned memory that was given back"),
        "{text}"
    );
}

/// Frees the source of a copy before the copy is done.
pub(crate) fn give_source_back() {
    begin();
    let stream = Stream::new();
    let device = Buffer::new(16);
    let host = Pinned::of(&[1.0f32; 4]);
    stream.upload(&device, host.0).expect("asked for");
    drop(host);
    assert_eq!(stream.synchronize(), Err(700));
    assert_eq!(stream.fill(&device, 0, 16), Err(700));
}

#[test]
fn other_host_memory_is_read_at_once() {
    begin();
    let stream = Stream::new();
    let device = Buffer::new(16);
    let mut host = vec![2.0f32; 4];
    stream.upload(&device, &host).expect("asked for");
    host.fill(9.0);
    assert_eq!(device.read::<f32>(4, &stream), [2.0; 4]);
}
