//! The clock that `strftime_now` reads.

use jiff::{Timestamp, Zoned, tz::TimeZone};
use minijinja::{Error, ErrorKind};

/// Source of the time for `strftime_now`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Clock {
    /// The system's clock in the system's time zone, as `datetime.now()` in Python.
    #[default]
    System,
    /// A fixed moment in seconds since 1970-01-01T00:00:00Z, printed in UTC; for reproducible
    /// prompts and tests.
    Fixed(i64),
}

impl Clock {
    /// Formats the time by a C `strftime` format. Fails on an unknown conversion.
    pub(super) fn strftime(self, format: &str) -> Result<String, Error> {
        let invalid = |e: jiff::Error| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now({format:?}): {e}"),
            )
        };
        let now = match self {
            Self::System => Zoned::now(),
            Self::Fixed(seconds) => Timestamp::from_second(seconds)
                .map_err(invalid)?
                .to_zoned(TimeZone::UTC),
        };
        jiff::fmt::strtime::format(format, &now).map_err(invalid)
    }
}
