//! From single precision to brain floats and back, many at once.

use half::bf16;

/// The nearest brain float's bits; of two as near, the even one. What is no number stays none.
#[inline(always)]
pub(super) fn rounded(number: f32) -> u16 {
    let bits = number.to_bits();
    let even = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding could make infinity of it, or cut off what makes it no number.
    let none = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { none } else { even }) as u16
}

/// The number that a brain float is.
#[inline(always)]
pub(super) fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds numbers to the nearest brain floats; of two as near, to the even one.
///
/// # Panics
/// If there are not as many of both.
pub fn round_to(from: &[f32], to: &mut [bf16]) {
    assert_eq!(from.len(), to.len(), "as many are rounded as there is room for");
    fastest(
        #[inline(always)]
        || {
            for (to, from) in to.iter_mut().zip(from) {
                *to = bf16::from_bits(rounded(*from));
            }
        },
    );
}

/// The numbers that brain floats are. Exact.
///
/// # Panics
/// If there are not as many of both.
pub fn widen(from: &[bf16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "as many are widened as there is room for");
    fastest(
        #[inline(always)]
        || {
            for (to, from) in to.iter_mut().zip(from) {
                *to = widened(from.to_bits());
            }
        },
    );
}

/// Runs a loop compiled for the widest vectors that there are.
#[inline(always)]
pub(super) fn fastest(run: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the processor has these instructions.
            return unsafe { with_avx512(run) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has these instructions.
            return unsafe { with_avx2(run) };
        }
    }
    run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn with_avx512(run: impl FnOnce()) {
    run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(run: impl FnOnce()) {
    run();
}
