//! Writes that go past the caches.

/// Copies values to memory that is not read soon. [`end`] has to follow before another
/// thread may read them.
///
/// # Panics
/// When lengths differ.
pub(crate) fn copy(from: &[f32], to: &mut [f32]) {
    assert!(from.len() == to.len(), "as many values as places");
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
        if to.as_ptr().addr().is_multiple_of(16) {
            let (whole, rest) = to.as_chunks_mut::<4>();
            let (own, own_rest) = from.as_chunks::<4>();
            for (to, from) in whole.iter_mut().zip(own) {
                // SAFETY: SSE is part of x86-64; both are four values, `to` aligned to 16 bytes
                // as the first of these is.
                unsafe { _mm_stream_ps(to.as_mut_ptr(), _mm_loadu_ps(from.as_ptr())) };
            }
            rest.copy_from_slice(own_rest);
            return;
        }
    }
    to.copy_from_slice(from);
}

/// Ends such writes: what other threads see after it are the values.
pub(crate) fn end() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_copied_whatever_their_place_and_number() {
        let from: Vec<f32> = (0..40).map(|value| value as f32 - 7.5).collect();
        for (place, len) in (0..6).flat_map(|place| (0..30).map(move |len| (place, len))) {
            let mut to = vec![-1.0; 40];
            copy(&from[3..3 + len], &mut to[place..place + len]);
            end();
            let mut expected = vec![-1.0; 40];
            expected[place..place + len].copy_from_slice(&from[3..3 + len]);
            assert_eq!(to, expected);
        }
    }
}
