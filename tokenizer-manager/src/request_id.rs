//! Ids of requests, as clients and logs know them.

use crate::error::{ApiError, ApiResult};

/// Maximum bytes of an id that is taken over from a client.
const ID_BYTES: usize = 128;
/// Maximum bytes of an id that a client asks to abort. Ids of the SGLang gateway may
/// have any length; its own port aborts longer ones.
const SOUGHT_ID_BYTES: usize = 1024;
/// Prefix of the id of a chat's answer; the rest is the request's id.
pub(crate) const CHAT: &str = "chatcmpl-";
/// Prefix of the id of a completion's answer.
pub(crate) const COMPLETION: &str = "cmpl-";
/// Prefix of the id of an answer of the Messages API.
pub(crate) const MESSAGE: &str = "msg_";
/// Prefix of the id of an answer of the Responses API.
pub(crate) const RESPONSE: &str = "resp_";

/// Returns a random id of 32 hexadecimal digits.
pub(crate) fn fresh_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Returns the possible ids in the engine of the request with the client's id `id`. The
/// client may mean an id that it chose, or the id of an answer.
///
/// # Errors
/// An invalid `field`, for an id that is too long.
pub(crate) fn known_as(field: &'static str, id: &str) -> ApiResult<Vec<String>> {
    if id.len() > SOUGHT_ID_BYTES {
        let message = format!(
            "'{field}' has {} bytes; ids have at most {SOUGHT_ID_BYTES}.",
            id.len()
        );
        return Err(ApiError::invalid(field, message));
    }
    let answers = [CHAT, COMPLETION, MESSAGE, RESPONSE].map(|prefix| answer_id(prefix, id));
    Ok([id.to_owned()].into_iter().chain(answers).collect())
}

/// Returns the id of an answer to the request `id`.
pub(crate) fn answer_id(prefix: &str, id: &str) -> String {
    format!("{prefix}{id}")
}

/// Returns true if an id can stand in logs and headers as it is.
pub(crate) fn is_valid(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    (1..=ID_BYTES).contains(&id.len()) && id.bytes().all(plain)
}

/// Refuses an id that a client gave in `field`.
///
/// # Errors
/// 400 for an id that is not a [`is_valid`].
pub(crate) fn check_id(field: &str, id: &str) -> ApiResult<()> {
    if is_valid(id) {
        return Ok(());
    }
    let id = &id[..id.floor_char_boundary(ID_BYTES)];
    let message = format!(
        "Invalid '{field}' {id:?}: expected 1 to {ID_BYTES} letters, digits and characters of \
         \"-_.:/\"."
    );
    Err(ApiError::invalid(field, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_from_clients_are_short_and_plain() {
        assert!(is_valid("req-1:a/b.c_D"));
        for wrong in ["", "a b", "ä", "a\nb", &"x".repeat(129)] {
            assert!(!is_valid(wrong), "{wrong:?}");
        }
    }
}
