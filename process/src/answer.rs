//! What a command that answers and ends says on stdout.

use std::io::{self, ErrorKind, Write};

/// Prints a whole answer. A reader that left, as `head` does, has read enough: that
/// is no error.
///
/// # Errors
/// When it can't be written otherwise, such as onto a full disk.
pub fn print(text: &str) -> io::Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> io::Result<()> {
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Refuses(ErrorKind);

    impl Write for Refuses {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_a_reader_that_left_is_no_error() {
        let print = |kind| print_to(&mut Refuses(kind), "text").map_err(|error| error.kind());
        assert_eq!(print(ErrorKind::BrokenPipe), Ok(()));
        assert_eq!(print(ErrorKind::StorageFull), Err(ErrorKind::StorageFull));
        let mut out = Vec::new();
        print_to(&mut out, "text\n").expect("memory takes it");
        assert_eq!(out, b"text\n");
    }
}
