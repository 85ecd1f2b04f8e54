//! Sixteen lanes in two AVX2 registers.

use std::arch::x86_64::*;

use crate::lanes::{Lanes, WIDTH};

/// Two AVX2 registers.
#[derive(Clone, Copy)]
pub struct Avx2(pub __m256, pub __m256);

/// Methods that apply an intrinsic to both registers.
macro_rules! both {
    ($($name:ident($($arg:ident),*) = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            // SAFETY: only kernels dispatched for AVX2 use this type.
            unsafe { Self($intrinsic(self.0, $($arg.0),*), $intrinsic(self.1, $($arg.1),*)) }
        }
    )*};
}

impl Lanes for Avx2 {
    const HAS_32_REGISTERS: bool = false;

    both! {
        add(b) = _mm256_add_ps;
        sub(b) = _mm256_sub_ps;
        mul(b) = _mm256_mul_ps;
        div(b) = _mm256_div_ps;
        mul_add(b, c) = _mm256_fmadd_ps;
        max(b) = _mm256_max_ps;
        min(b) = _mm256_min_ps;
        sqrt() = _mm256_sqrt_ps;
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: only kernels dispatched for AVX2 use this type.
        let half = unsafe { _mm256_set1_ps(value) };
        Self(half, half)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(WIDTH / 2))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(WIDTH / 2), self.1);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(load_8_bf16(from), load_8_bf16(from.add(WIDTH / 2))) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            // Packs within 128-bit halves, so the middle quarters are swapped afterwards.
            let packed = _mm256_packus_epi32(round_to_bf16(self.0), round_to_bf16(self.1));
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    fn select_first(self, count: usize, b: Self) -> Self {
        // SAFETY: only kernels dispatched for AVX2 use this type.
        unsafe {
            let (low, high) = (mask_first(count), mask_first(count.saturating_sub(WIDTH / 2)));
            Self(_mm256_blendv_ps(b.0, self.0, low), _mm256_blendv_ps(b.1, self.1, high))
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: only kernels dispatched for AVX2 use this type.
        unsafe { sum_8(_mm256_add_ps(self.0, self.1)) }
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        // SAFETY: only kernels dispatched for AVX2 use this type.
        unsafe { max_8(_mm256_max_ps(self.0, self.1)) }
    }

    #[inline(always)]
    fn scale_pow2(self, exponent: Self) -> Self {
        // SAFETY: only kernels dispatched for AVX2 use this type.
        unsafe { Self(scale_pow2(self.0, exponent.0), scale_pow2(self.1, exponent.1)) }
    }
}

#[inline(always)]
unsafe fn load_8_bf16(from: *const u16) -> __m256 {
    // SAFETY: the caller promises eight elements and AVX2.
    unsafe {
        let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
}

#[inline(always)]
unsafe fn round_to_bf16(lanes: __m256) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let bits = _mm256_castps_si256(lanes);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(lanes, lanes));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, is_nan))
    }
}

#[inline(always)]
unsafe fn scale_pow2(lanes: __m256, exponent: __m256) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(exponent));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(lanes), exponent))
    }
}

/// All bits of the first `count` lanes.
#[inline(always)]
unsafe fn mask_first(count: usize) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let indices = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), indices))
    }
}

/// Reductions of eight lanes, by halves as the default methods of [`Lanes`] do.
macro_rules! reduce_8 {
    ($($name:ident = $packed:ident, $scalar:ident;)*) => {$(
        #[inline(always)]
        unsafe fn $name(lanes: __m256) -> f32 {
            // SAFETY: the caller has AVX2.
            unsafe {
                let low = _mm256_castps256_ps128(lanes);
                let four = $packed(low, _mm256_extractf128_ps::<1>(lanes));
                let two = $packed(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32($scalar(two, _mm_movehdup_ps(two)))
            }
        }
    )*};
}

reduce_8! {
    sum_8 = _mm_add_ps, _mm_add_ss;
    max_8 = _mm_max_ps, _mm_max_ss;
}
