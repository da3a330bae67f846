//! Decoding of bodies that clients compressed (RFC 9110, section 8.4).

use std::io::Read as _;

use axum::http::{HeaderMap, StatusCode, header};
use flate2::bufread::MultiGzDecoder;
use lockstep_ports::RequestMemory;

use super::too_large;
use crate::error::{ApiError, ApiResult};

/// Maximum bytes of the plain body that are decoded before they are charged.
const PIECE: u64 = 64 << 10;

/// The encodings that are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
}

impl Encoding {
    /// Returns the encoding that the headers name.
    ///
    /// # Errors
    /// 415 for an unknown encoding, or for several.
    pub(super) fn of(headers: &HeaderMap) -> ApiResult<Self> {
        let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
        let name = match (values.next(), values.next()) {
            (None, _) => return Ok(Self::Identity),
            (Some(value), None) => value.to_str().unwrap_or("?").trim(),
            (Some(_), Some(_)) => "of several layers",
        };
        match name.to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip),
            _ => Err(ApiError {
                status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
                ..ApiError::bad_request(format!(
                    "Unsupported Content-Encoding {name:?}: send the body plain or as 'gzip'."
                ))
            }),
        }
    }

    /// Decodes a body of at most `limit` plain bytes. Every byte of the growth is
    /// charged to the request.
    ///
    /// # Errors
    /// 413 for a larger body, 429 for a body over the budget, 400 for a body that is
    /// not of this encoding.
    pub(super) fn decode(
        self,
        body: Vec<u8>,
        limit: usize,
        held: Option<&RequestMemory>,
    ) -> ApiResult<Vec<u8>> {
        match self {
            Self::Identity => Ok(body),
            Self::Gzip => gunzip(&body, limit, |bytes| match held {
                Some(held) => Ok(held.charge(bytes)?),
                None => Ok(()),
            }),
        }
    }
}

fn gunzip(
    body: &[u8],
    limit: usize,
    mut charge: impl FnMut(usize) -> ApiResult<()>,
) -> ApiResult<Vec<u8>> {
    let mut plain = Vec::new();
    let mut decoder = MultiGzDecoder::new(body);
    loop {
        let piece = decoder.by_ref().take(PIECE).read_to_end(&mut plain);
        let bytes = piece.map_err(|error| {
            ApiError::bad_request(format!("The request's body is not gzip: {error}."))
        })?;
        if bytes == 0 {
            return Ok(plain);
        }
        if plain.len() > limit {
            return Err(too_large(limit));
        }
        charge(bytes)?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).expect("written");
        encoder.finish().expect("written")
    }

    #[test]
    fn what_is_decoded_is_bounded() {
        let status = |body: &[u8], limit| {
            gunzip(body, limit, |_| Ok(())).map_err(|error| error.status.as_u16())
        };
        let text = vec![b' '; 1 << 20];
        let bomb = gzip(&text);
        assert!(bomb.len() < 4096, "{}", bomb.len());
        assert_eq!(status(&bomb, text.len()), Ok(text.clone()));
        assert_eq!(status(&bomb, text.len() - 1), Err(413));
        assert_eq!(status(&bomb[..bomb.len() - 9], text.len()), Err(400));
        assert_eq!(status(b"{}", 100), Err(400));
        assert_eq!(status(&gzip(b""), 0), Ok(Vec::new()));
        let two = [gzip(b"{"), gzip(b"}")].concat();
        assert_eq!(status(&two, 2), Ok(b"{}".to_vec()));
    }

    #[test]
    fn what_is_decoded_is_charged_as_it_grows() {
        let bomb = gzip(&vec![b' '; 1 << 20]);
        let decode = |most: usize| {
            let mut charged = 0;
            let decoded = gunzip(&bomb, 1 << 20, |bytes| {
                charged += bytes;
                let over = || ApiError::from(lockstep_ports::OverBudget::Process);
                (charged <= most).then_some(()).ok_or_else(over)
            });
            let status = decoded.map_err(|error| error.status.as_u16());
            (status.map(|plain| plain.len()), charged)
        };
        assert_eq!(decode(1 << 20), (Ok(1 << 20), 1 << 20));
        let (status, charged) = decode(200 << 10);
        assert_eq!(status, Err(429));
        assert!(charged <= 264 << 10, "{charged}");
    }

    #[test]
    fn encodings_are_known_or_refused() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(
                    header::CONTENT_ENCODING,
                    header::HeaderValue::from_static(value),
                );
            }
            Encoding::of(&headers).map_err(|error| error.status.as_u16())
        };
        assert_eq!(of(&[]), Ok(Encoding::Identity));
        assert_eq!(of(&["identity"]), Ok(Encoding::Identity));
        assert_eq!(of(&["GZIP"]), Ok(Encoding::Gzip));
        for wrong in [
            &["br"][..],
            &["gzip, gzip"],
            &["gzip", "gzip"],
            &["deflate"],
        ] {
            assert_eq!(of(wrong), Err(415), "{wrong:?}");
        }
    }
}
