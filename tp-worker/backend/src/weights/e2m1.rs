//! 4-bit floats with 2 bits of exponent and 1 of mantissa: e2m1 (OCP Microscaling Formats, 2023).

/// A 4-bit float by its bits: sign, exponent with a bias of 1, mantissa. The upper four bits of
/// the byte do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E2m1(pub u8);

impl E2m1 {
    /// The largest number.
    pub const MOST: f32 = 6.0;

    /// Values of the codes without a sign.
    pub const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

    /// Returns the number.
    #[inline]
    pub const fn value(self) -> f32 {
        let value = Self::VALUES[(self.0 & 7) as usize];
        if self.0 & 8 == 0 { value } else { -value }
    }

    /// Returns the nearest number, ties to the even code; the largest one for numbers beyond it,
    /// and zero for what is no number.
    pub fn nearest(x: f32) -> Self {
        let sign = (x.to_bits() >> 28) as u8 & 8;
        let x = x.abs();
        // A code is passed where its middle to the next is, or is reached from an odd code.
        let passed = |code: &usize| {
            let middle = (Self::VALUES[*code] + Self::VALUES[code + 1]) / 2.0;
            x > middle || (x == middle && code % 2 == 1)
        };
        let code = (0..7).take_while(passed).count() as u8;
        Self(sign | code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_its_own_nearest_and_others_go_to_the_nearer() {
        for code in 0..16 {
            assert_eq!(E2m1::nearest(E2m1(code).value()), E2m1(code));
        }
        for pair in (0..8u8).collect::<Vec<_>>().windows(2) {
            let [low, high] = [E2m1(pair[0]), E2m1(pair[1])];
            let middle = (low.value() + high.value()) / 2.0;
            let even = if low.0 % 2 == 0 { low } else { high };
            assert_eq!(E2m1::nearest(middle), even);
            assert_eq!(E2m1::nearest(middle.next_down()), low);
            assert_eq!(E2m1::nearest(middle.next_up()), high);
        }
        assert_eq!(E2m1::nearest(-1e9).value(), -E2m1::MOST);
        assert_eq!(E2m1::nearest(f32::NAN).value(), 0.0);
    }
}
