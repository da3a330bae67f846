//! Output of commands that print an answer and end.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

/// Returns true if `error`, from writing to `out`, means that the reader has left: a closed
/// pipe or a closed terminal.
pub fn reader_left(error: &io::Error, out: impl AsFd) -> bool {
    // A closed terminal no longer counts as a terminal, but it is still a character device. A
    // disk that fails is none.
    let device = || {
        let kind = fstat(&out).map(|found| FileType::from_raw_mode(found.st_mode));
        kind == Ok(FileType::CharacterDevice)
    };
    let closed = error.raw_os_error() == Some(Errno::IO.raw_os_error());
    error.kind() == ErrorKind::BrokenPipe || closed && device()
}

/// Prints a whole answer. A reader that left early, such as `head`, is no error.
///
/// # Errors
/// If the answer can't be written for another reason, such as a full disk.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if reader_left(&error, &out) => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_a_reader_that_left_is_no_error() {
        let regular = tempfile::tempfile().expect("a file");
        let device = File::open("/dev/null").expect("Linux");
        let (pipe, _) = io::pipe().expect("a pipe");
        let of = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        for (errno, from_file, from_device) in [
            (Errno::PIPE, true, true),
            (Errno::IO, false, true),
            (Errno::NOSPC, false, false),
        ] {
            assert_eq!(reader_left(&of(errno), &regular), from_file, "{errno}");
            assert_eq!(reader_left(&of(errno), &device), from_device, "{errno}");
        }
        assert!(!reader_left(&of(Errno::IO), &pipe));
        assert!(reader_left(&ErrorKind::BrokenPipe.into(), &pipe));
    }
}
