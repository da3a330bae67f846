//! Check of the tokens that callers show: `authorization: Bearer <token>`.

use subtle::ConstantTimeEq as _;

/// The reason why a caller is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BearerError {
    /// There is no header, or a header of another scheme.
    #[error("no bearer token was shown")]
    Missing,
    /// The caller shows another token.
    #[error("the bearer token is not the right one")]
    Wrong,
}

/// Compares the value of an `authorization` header with `token`. The time does not depend on
/// how much of it is right. An empty token lets nobody in.
///
/// # Errors
/// See [`BearerError`].
pub fn check_bearer(token: &str, header: Option<&[u8]>) -> Result<(), BearerError> {
    let shown = header.and_then(|value| {
        let (scheme, rest) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
    });
    let shown = shown.ok_or(BearerError::Missing)?;
    let same = bool::from(shown.trim_ascii().ct_eq(token.as_bytes()));
    match same && !token.is_empty() {
        true => Ok(()),
        false => Err(BearerError::Wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        let check = |header: &str| check_bearer("secret", Some(header.as_bytes()));
        for right in ["Bearer secret", "bearer secret", "BEARER  secret "] {
            assert_eq!(check(right), Ok(()), "{right:?}");
        }
        for wrong in ["Bearer ", "Bearer secre", "Bearer secrets", "Bearer Secret"] {
            assert_eq!(check(wrong), Err(BearerError::Wrong), "{wrong:?}");
        }
        for missing in ["", "secret", "Bearer", "Basic secret"] {
            assert_eq!(check(missing), Err(BearerError::Missing), "{missing:?}");
        }
        assert_eq!(check_bearer("secret", None), Err(BearerError::Missing));
    }

    #[test]
    fn an_empty_token_lets_nobody_in() {
        assert_eq!(check_bearer("", Some(b"Bearer ")), Err(BearerError::Wrong));
    }
}
