//! 8-bit powers of two: e8m0 (OCP Microscaling Formats, 2023).

/// A power of two by its code: 2 to the code minus 127. The code 255 is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E8m0(pub u8);

impl E8m0 {
    /// Returns the number.
    #[inline]
    pub const fn value(self) -> f32 {
        match self.0 {
            0 => f32::from_bits(1 << 22),
            255 => f32::NAN,
            code => f32::from_bits((code as u32) << 23),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_powers_of_two() {
        for code in 0..255u8 {
            let value = f64::from(E8m0(code).value());
            assert_eq!(value, 2f64.powi(i32::from(code) - 127), "{code}");
        }
        assert!(E8m0(255).value().is_nan());
    }
}
