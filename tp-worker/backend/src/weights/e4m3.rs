//! 8-bit floats with 4 bits of exponent and 3 of mantissa, without infinities: e4m3fn
//! (Micikevicius et al., arXiv:2209.05433).

/// An 8-bit float by its bits: sign, exponent with a bias of 7, mantissa.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E4m3(pub u8);

impl E4m3 {
    /// The largest number.
    pub const MOST: f32 = 448.0;

    /// Values of all codes without a sign.
    const VALUES: [f32; 128] = values();

    /// Returns true for the two codes that are no numbers.
    pub const fn is_nan(self) -> bool {
        self.0 & 0x7f == 0x7f
    }

    /// Returns the number, which is exact in every type of 16 or 32 bits.
    #[inline]
    pub const fn value(self) -> f32 {
        let value = Self::VALUES[(self.0 & 0x7f) as usize];
        if self.0 & 0x80 == 0 { value } else { -value }
    }

    /// Returns the nearest number, ties to even; the largest one for numbers beyond it.
    pub fn nearest(x: f32) -> Self {
        if x.is_nan() {
            return Self(0x7f);
        }
        let sign = (x.to_bits() >> 24) as u8 & 0x80;
        let x = x.abs().min(Self::MOST);
        // Below 2⁻⁶ numbers are 2⁻⁹ apart; above, three bits of the mantissa stay.
        let code = if x < 1.0 / 64.0 {
            (x * 512.0).round_ties_even() as u8
        } else {
            let bits = x.to_bits();
            let rounded = bits + 0x7_ffff + ((bits >> 20) & 1);
            ((rounded >> 20) - (120 << 3)) as u8
        };
        Self(sign | code)
    }
}

const fn values() -> [f32; 128] {
    let mut values = [0.0; 128];
    let mut code = 0;
    while code < 127 {
        values[code as usize] = if code < 8 {
            code as f32 / 512.0
        } else {
            f32::from_bits((code << 20) + (120 << 23))
        };
        code += 1;
    }
    values[127] = f32::NAN;
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_values_of_the_format() {
        for (code, value) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x07, 7.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(E4m3(code).value(), value, "{code:#x}");
        }
        assert!(E4m3(0x7f).value().is_nan() && E4m3(0xff).value().is_nan());
        assert_eq!(E4m3(0x80).value().to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn every_number_is_its_own_nearest_and_others_go_to_the_nearer() {
        let codes: Vec<u8> = (0..0x7f).collect();
        for code in &codes {
            for sign in [0, 0x80] {
                let code = E4m3(code | sign);
                assert_eq!(E4m3::nearest(code.value()), code);
            }
        }
        for pair in codes.windows(2) {
            let [low, high] = [E4m3(pair[0]), E4m3(pair[1])];
            let middle = (low.value() + high.value()) / 2.0;
            let even = if low.0 % 2 == 0 { low } else { high };
            assert_eq!(E4m3::nearest(middle), even);
            assert_eq!(E4m3::nearest(middle.next_down()), low);
            assert_eq!(E4m3::nearest(middle.next_up()), high);
        }
        assert_eq!(E4m3::nearest(f32::INFINITY).value(), E4m3::MOST);
        assert_eq!(E4m3::nearest(-1e9).value(), -E4m3::MOST);
        assert!(E4m3::nearest(f32::NAN).is_nan());
    }
}
