//! e4m3: fp8 with 4 bits of exponent (bias 7) and 3 of mantissa, without infinities.

/// Largest finite value.
pub const MAX: f32 = 448.0;

/// The bits of NaN.
const NAN: u8 = 0x7f;

/// Smallest normal value is 2^-6; below it, values are multiples of 2^-9.
const MIN_NORMAL_EXPONENT: i32 = -6;
const MANTISSA_BITS: i32 = 3;

/// The nearest value, ties to even. Magnitudes above [`MAX`] become [`MAX`]; NaN stays NaN.
pub fn encode(x: f32) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 7;
    if x.is_nan() {
        return sign | NAN;
    }
    let magnitude = x.abs().min(MAX);
    let exponent = (magnitude.to_bits() >> 23) as i32 - 127;
    let exponent = exponent.max(MIN_NORMAL_EXPONENT);
    let spacing = 2f32.powi(exponent - MANTISSA_BITS);
    let steps = (magnitude / spacing).round_ties_even() as i32;
    // Steps that round up to the next power of two carry into the exponent.
    let biased = exponent - MIN_NORMAL_EXPONENT;
    sign | ((biased << MANTISSA_BITS) + steps) as u8
}

/// The value of some bits.
pub fn decode(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (0xf, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(MIN_NORMAL_EXPONENT - MANTISSA_BITS),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 7 - MANTISSA_BITS),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_values_are_encoded_as_themselves() {
        for bits in 0..=u8::MAX {
            match decode(bits) {
                value if value.is_nan() => assert_eq!(bits & 0x7f, NAN),
                value => assert_eq!(encode(value), bits, "{value}"),
            }
        }
        assert_eq!([decode(0x7e), decode(0x08), decode(0x01)], [MAX, 0.015_625, 0.001_953_125]);
    }

    #[test]
    fn values_in_between_become_the_nearest() {
        for bits in 0..0x7e {
            let (low, high) = (decode(bits), decode(bits + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(encode(middle.next_down()), bits);
            assert_eq!(encode(middle.next_up()), bits + 1);
            // Ties have an even mantissa.
            assert_eq!(encode(middle), bits + (bits & 1));
            assert_eq!(encode(-middle), 0x80 | (bits + (bits & 1)));
        }
    }

    #[test]
    fn large_values_saturate_and_nan_is_kept() {
        assert_eq!([encode(500.0), encode(f32::INFINITY), encode(-1e30)], [0x7e, 0x7e, 0xfe]);
        assert!(decode(encode(f32::NAN)).is_nan());
    }
}
