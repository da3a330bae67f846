//! A terminal that is drawn through a queue. A terminal that shows nothing any more (Ctrl-S)
//! keeps nobody waiting.

use std::io;
use std::sync::{Mutex, PoisonError};

use indicatif::TermLike;
use lockstep_process::LineQueue;

/// Columns of a terminal that does not tell its width.
const COLUMNS: u16 = 80;
const ROWS: u16 = 24;

/// Collects a frame and queues the whole frame.
#[derive(Debug)]
pub(super) struct Screen {
    queue: LineQueue,
    frame: Mutex<String>,
}

impl Screen {
    pub(super) fn over(queue: LineQueue) -> Self {
        let frame = Mutex::default();
        Self { queue, frame }
    }

    fn draw(&self, text: &str) -> io::Result<()> {
        self.with_frame(|frame| frame.push_str(text));
        Ok(())
    }

    /// Moves the cursor. The sequence is ECMA-48: `CSI`, the distance, the direction.
    fn move_cursor(&self, cells: usize, direction: char) -> io::Result<()> {
        match cells {
            0 => Ok(()),
            _ => self.draw(&format!("\x1b[{cells}{direction}")),
        }
    }

    fn with_frame<T>(&self, change: impl FnOnce(&mut String) -> T) -> T {
        change(&mut self.frame.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn size() -> (u16, u16) {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    size.map_or((0, 0), |size| (size.ws_col, size.ws_row))
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        Some(size().0)
            .filter(|columns| *columns > 0)
            .unwrap_or(COLUMNS)
    }

    fn height(&self) -> u16 {
        Some(size().1).filter(|rows| *rows > 0).unwrap_or(ROWS)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.draw(text)?;
        self.draw("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.draw(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.draw("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let frame = self.with_frame(std::mem::take);
        if !frame.is_empty() {
            self.queue.push(frame.as_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_frame_is_queued_whole() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let screen = Screen::over(LineQueue::start("screen", writer));
        let expected = "\x1b[2A\r\x1b[2Kone\ntwo";
        screen.move_cursor_up(2).expect("drawn");
        screen.move_cursor_down(0).expect("drawn");
        screen.clear_line().expect("drawn");
        screen.write_line("one").expect("drawn");
        screen.write_str("two").expect("drawn");
        screen.flush().expect("drawn");
        let mut read = vec![0; expected.len()];
        reader.read_exact(&mut read).expect("a frame");
        assert_eq!(String::from_utf8_lossy(&read), expected);
    }
}
