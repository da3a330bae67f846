//! Slowest pace of a body's bytes: a body that drips would be waited for without end.

use std::time::Duration;

use tokio::time::Instant;

use crate::Patience;

/// Counter of the bytes in a window of time.
pub(crate) struct Pace {
    window: Duration,
    least: u64,
    since: Instant,
    came: u64,
}

impl Pace {
    /// A window that begins now.
    pub(crate) fn new(patience: Patience) -> Self {
        Self {
            window: patience.window,
            least: patience.least,
            since: Instant::now(),
            came: 0,
        }
    }

    /// Counts more bytes.
    ///
    /// # Errors
    /// The reason, in words, if a window is over in which too few bytes came.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), String> {
        self.came += bytes as u64;
        if self.since.elapsed() < self.window {
            return Ok(());
        }
        if self.came < self.least {
            return Err(format!(
                "only {} bytes came within {:?}",
                self.came, self.window
            ));
        }
        (self.since, self.came) = (Instant::now(), 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_has_to_bring_something() {
        let patience = |window| Patience {
            window,
            least: 10,
            ..Patience::default()
        };
        // Each of these windows is over at once.
        let mut pace = Pace::new(patience(Duration::ZERO));
        for _ in 0..3 {
            assert_eq!(pace.add(10), Ok(()));
        }
        let why = pace.add(9).expect_err("too little");
        assert!(why.starts_with("only 9 bytes"), "{why}");
        // This window is not over.
        let mut pace = Pace::new(patience(Duration::from_secs(3600)));
        assert_eq!(pace.add(0), Ok(()));
    }
}
