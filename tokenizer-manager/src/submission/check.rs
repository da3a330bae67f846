//! Range checks whose errors have OpenAI's words.

use lockstep_types::{RequestLimits, request::CACHE_SALT_BYTES};

use crate::error::{ApiError, ApiResult};

/// Checks that a number is within `[low, high]`, or `(low, high]` with `open_low`.
pub(super) fn decimal(
    param: &str,
    value: f64,
    low: f64,
    high: f64,
    open_low: bool,
) -> ApiResult<f64> {
    // NaN fails both comparisons, so it lands in the first branch.
    let above_low = if open_low { value > low } else { value >= low };
    let (code, bound) = if !above_low {
        let sign = if open_low { ">" } else { ">=" };
        ("decimal_below_min_value", format!("{sign} {low}"))
    } else if value > high {
        ("decimal_above_max_value", format!("<= {high}"))
    } else {
        return Ok(value);
    };
    Err(out_of_range(param, "decimal", code, &bound, &value))
}

/// Checks that an integer is within `[low, high]`.
///
/// # Errors
/// 400 naming the field and the bound.
pub fn integer(param: &str, value: i64, low: i64, high: i64) -> ApiResult<i64> {
    let (code, bound) = if value < low {
        ("integer_below_min_value", format!(">= {low}"))
    } else if value > high {
        ("integer_above_max_value", format!("<= {high}"))
    } else {
        return Ok(value);
    };
    Err(out_of_range(param, "integer", code, &bound, &value))
}

/// Checks an integer that counts something, and returns it as `u32`.
///
/// # Errors
/// 400 naming the field and the bound.
pub fn non_negative(param: &str, value: i64) -> ApiResult<u32> {
    integer(param, value, 0, i64::from(i32::MAX))
        .map(|value| u32::try_from(value).unwrap_or(u32::MAX))
}

/// Checks the number of a DP rank that a request names.
pub(super) fn dp_rank(asked: i64, dp_size: usize) -> ApiResult<u32> {
    let dp_rank = u32::try_from(asked).ok();
    let dp_rank = dp_rank.filter(|dp_rank| (*dp_rank as usize) < dp_size);
    dp_rank.ok_or_else(|| {
        ApiError::invalid(
            "data_parallel_rank",
            format!(
                "Invalid 'data_parallel_rank': there is no DP rank {asked}; they are numbered from \
                 0 to {} (--dp-size). Leave it out, so that the server chooses.",
                dp_size - 1
            ),
        )
    })
}

/// Checks the length of a salt of the prefix cache. An empty salt is refused: its client would
/// share the cache with everybody else whose salt is empty by mistake.
pub(super) fn cache_salt(salt: &str) -> ApiResult<()> {
    if (1..=CACHE_SALT_BYTES).contains(&salt.len()) {
        return Ok(());
    }
    Err(ApiError::invalid(
        "cache_salt",
        format!(
            "Invalid 'cache_salt': a salt of {} bytes; expected 1 to {CACHE_SALT_BYTES}.",
            salt.len()
        ),
    ))
}

/// Checks that a list has at most `most` items.
///
/// # Errors
/// 400 naming the field, the length and the limit.
pub fn count(param: &str, len: usize, most: usize) -> ApiResult<()> {
    if len <= most {
        return Ok(());
    }
    Err(ApiError {
        code: Some("array_above_max_length"),
        ..ApiError::invalid(
            param,
            format!(
                "Invalid '{param}': array too long. Expected an array with maximum length {most}, \
                 but got an array with length {len} instead."
            ),
        )
    })
}

fn out_of_range(
    param: &str,
    what: &str,
    code: &'static str,
    bound: &str,
    value: &dyn std::fmt::Display,
) -> ApiError {
    let side = if code.ends_with("below_min_value") {
        "below minimum"
    } else {
        "above maximum"
    };
    ApiError {
        code: Some(code),
        ..ApiError::invalid(
            param,
            format!(
                "Invalid '{param}': {what} {side} value. Expected a value {bound}, but got {value} \
                 instead."
            ),
        )
    }
}

/// Checks the number and the lengths of stop strings.
///
/// # Errors
/// 400 naming the field and the limit.
pub fn stops(stops: &[String], param: &str, limits: &RequestLimits) -> ApiResult<()> {
    count(param, stops.len(), limits.stops)?;
    for stop in stops {
        if stop.is_empty() {
            return Err(ApiError::invalid(
                param,
                format!("Invalid '{param}': a stop string must not be empty."),
            ));
        }
        if stop.len() > limits.stop_bytes {
            return Err(ApiError::invalid(
                param,
                format!(
                    "Invalid '{param}': a stop string of {} bytes; the limit is {}.",
                    stop.len(),
                    limits.stop_bytes
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_nan_is_refused() {
        assert_eq!(decimal("t", 0.0, 0.0, 2.0, false), Ok(0.0));
        assert_eq!(decimal("t", 2.0, 0.0, 2.0, false), Ok(2.0));
        for (value, open_low) in [
            (-0.1, false),
            (2.1, false),
            (0.0, true),
            (f64::NAN, false),
            (f64::INFINITY, false),
        ] {
            assert!(decimal("t", value, 0.0, 2.0, open_low).is_err(), "{value}");
        }
        assert_eq!(integer("n", 1, 1, 8), Ok(1));
        let error = integer("n", 9, 1, 8).expect_err("too large");
        assert_eq!(
            error.message,
            "Invalid 'n': integer above maximum value. Expected a value <= 8, but got 9 instead."
        );
    }
}
