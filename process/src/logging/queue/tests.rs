use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::{LineQueue, RESERVE, ROOM};

/// Long enough for any machine; reached only when a test fails.
const SOON: Duration = Duration::from_secs(30);

/// Hands over written bytes, and waits until somebody takes them.
struct Rendezvous(SyncSender<Vec<u8>>);

impl Write for Rendezvous {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let sent = self.0.send(bytes.to_vec());
        sent.map_err(|_| std::io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn unread() -> (LineQueue, Receiver<Vec<u8>>) {
    let (sender, reader) = sync_channel(0);
    (LineQueue::start("lines", Rendezvous(sender)), reader)
}

/// Reads until `queue` is empty, and returns everything.
fn read_all(queue: &LineQueue, reader: &Receiver<Vec<u8>>) -> Vec<u8> {
    let mut all = Vec::new();
    while !queue.flush(Duration::ZERO) {
        all.extend(reader.recv_timeout(SOON).into_iter().flatten());
    }
    all
}

#[test]
fn lines_come_out_in_order() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let queue = LineQueue::start("lines", writer);
    let mut expected = String::new();
    for number in 0..1000 {
        let line = format!("line {number}\n");
        queue.push(line.as_bytes());
        expected.push_str(&line);
    }
    let mut read = vec![0; expected.len()];
    reader.read_exact(&mut read).expect("all of it");
    assert_eq!(read, expected.as_bytes());
    assert!(queue.flush(SOON));
    assert_eq!(queue.lost(), 0);
}

#[test]
fn what_finds_no_room_is_counted_and_nobody_waits() {
    let (queue, reader) = unread();
    let line = [&[b'x'; 1023][..], b"\n"].concat();
    let pushed = 4 * ROOM / line.len();
    (0..pushed).for_each(|_| queue.push(&line));
    assert!(!queue.flush(Duration::ZERO), "nobody has read");
    let lost = queue.lost();
    // At most `ROOM` bytes are on their way out, and as many wait.
    assert!(lost >= (pushed - 2 * ROOM / line.len()) as u64, "{lost}");
    let read = read_all(&queue, &reader);
    assert_eq!(read.len() / line.len(), pushed - lost as usize);
    queue.push(&line);
    assert_eq!(reader.recv_timeout(SOON), Ok(line), "room again");
}

#[test]
fn urgent_lines_have_room_of_their_own() {
    let (queue, reader) = unread();
    let line = [&[b'x'; 1023][..], b"\n"].concat();
    (0..4 * ROOM / line.len()).for_each(|_| queue.push(&line));
    let lost = queue.lost();
    for _ in 0..RESERVE / line.len() {
        queue.push_urgent(b"why it ended\n");
    }
    assert_eq!(queue.lost(), lost);
    let read = read_all(&queue, &reader);
    assert!(read.ends_with(b"why it ended\n"));
}

#[test]
fn a_reader_that_left_keeps_nobody_waiting() {
    let (queue, reader) = unread();
    drop(reader);
    for number in 1..=3 {
        queue.push(b"to nobody\n");
        assert!(queue.flush(SOON));
        assert_eq!(queue.lost(), number);
    }
}
