//! Period in which a certificate is valid.

use std::{fmt, time::Duration};

use rustls::{
    CertificateError, Error, RootCertStore,
    client::verify_server_cert_signed_by_trust_anchor,
    pki_types::{CertificateDer, UnixTime},
    server::ParsedCertificate,
};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Time before the end of a certificate at which it should have been replaced. A
/// certificate with a short period gets the last tenth of its period instead. Programs
/// that renew certificates do so when a third of the period is left.
const SOON: u64 = 14 * DAY;

/// Period in which a certificate is valid, seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    from: u64,
    until: u64,
}

/// Warning about a certificate's period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValidityWarning {
    /// Valid only after so many seconds.
    NotYet(u64),
    /// Expires in so many seconds.
    Ends(u64),
    /// Expired so many seconds ago.
    Ended(u64),
}

impl Validity {
    /// Reads the period of a certificate; `None` if the certificate cannot be read.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = ParsedCertificate::try_from(certificate).ok()?;
        // The verification checks the time before the signature, and its error contains
        // the bounds.
        let at = |seconds| {
            let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            let roots = RootCertStore::empty();
            match verify_server_cert_signed_by_trust_anchor(&certificate, &roots, &[], time, &[]) {
                Err(Error::InvalidCertificate(error)) => Some(error),
                _ => None,
            }
        };
        let from = match at(0)? {
            CertificateError::NotValidYetContext { not_before, .. } => not_before.as_secs(),
            _ => 0,
        };
        let until = match at(u64::MAX)? {
            CertificateError::ExpiredContext { not_after, .. } => not_after.as_secs(),
            _ => u64::MAX,
        };
        Some(Self { from, until })
    }

    /// Returns the warning at a time, if any.
    pub(super) fn at(self, now: UnixTime) -> Option<ValidityWarning> {
        let now = now.as_secs();
        let soon = SOON.min(self.until.saturating_sub(self.from) / 10);
        if now < self.from {
            return Some(ValidityWarning::NotYet(self.from - now));
        }
        match self.until.checked_sub(now) {
            None => Some(ValidityWarning::Ended(now - self.until)),
            Some(left) if left < soon => Some(ValidityWarning::Ends(left)),
            Some(_) => None,
        }
    }
}

impl ValidityWarning {
    /// Returns true if a peer that checks the certificate refuses it.
    pub(super) fn is_refused(self) -> bool {
        !matches!(self, Self::Ends(_))
    }
}

impl fmt::Display for ValidityWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NEW: &str = "put a new one in its place";
        match *self {
            Self::NotYet(seconds) => write!(
                f,
                "it is valid only {} from now, and whoever checks it refuses it until then; \
                 look at this machine's clock",
                span(seconds)
            ),
            Self::Ends(seconds) => write!(f, "it expires in {}; {NEW}", span(seconds)),
            Self::Ended(seconds) => write!(
                f,
                "it expired {} ago, and whoever checks it refuses it; {NEW}",
                span(seconds)
            ),
        }
    }
}

/// Returns a rounded time such as "3 days".
fn span(seconds: u64) -> String {
    let (unit, name) = match seconds {
        DAY.. => (DAY, "day"),
        HOUR.. => (HOUR, "hour"),
        _ => (MINUTE, "minute"),
    };
    match seconds / unit {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    const JANUARY_2020: u64 = 1_577_836_800;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn a_certificates_time_is_read() {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 31);
        let key = KeyPair::generate().expect("a key");
        let signed = params.self_signed(&key).expect("signed");
        let expected = Validity {
            from: JANUARY_2020,
            until: JANUARY_2020 + 30 * DAY,
        };
        assert_eq!(Validity::of(signed.der()), Some(expected));
        let none = CertificateDer::from(vec![0; 9]);
        assert_eq!(Validity::of(&none), None);
    }

    #[test]
    fn what_is_said_of_it_depends_on_the_time() {
        let year = Validity {
            from: 1000 * DAY,
            until: 1365 * DAY,
        };
        // A tenth of this period is three days.
        let month = Validity {
            from: 1335 * DAY,
            ..year
        };
        for (validity, now, said) in [
            (year, 999 * DAY, "valid only 1 day from now"),
            (year, 1000 * DAY, ""),
            (year, 1351 * DAY, ""),
            (year, 1351 * DAY + 1, "expires in 13 days"),
            (month, 1362 * DAY, ""),
            (month, 1362 * DAY + 1, "expires in 2 days"),
            (month, 1365 * DAY - 90, "expires in 1 minute;"),
            (month, 1365 * DAY, "expires in 0 minutes"),
            (month, 1365 * DAY + 2 * HOUR, "expired 2 hours ago"),
        ] {
            let found = validity.at(at(now));
            let text = found.map_or_else(String::new, |found| found.to_string());
            assert!(text.contains(said), "{now}: {text}");
            assert_eq!(text.is_empty(), said.is_empty(), "{now}: {text}");
            let refused = said.contains("only") || said.contains("expired");
            assert_eq!(
                found.is_some_and(ValidityWarning::is_refused),
                refused,
                "{now}"
            );
        }
    }
}
