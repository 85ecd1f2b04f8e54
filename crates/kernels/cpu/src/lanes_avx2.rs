//! Sixteen numbers in two registers of AVX2.

use std::arch::x86_64::*;

use crate::lanes::{Lanes, WIDTH};

/// Two registers of AVX2.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

/// An operation of AVX2 on both registers.
macro_rules! both {
    ($($name:ident($($arg:ident),*) = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            // SAFETY: only kernels for AVX2 have these lanes.
            unsafe { Self($intrinsic(self.0, $($arg.0),*), $intrinsic(self.1, $($arg.1),*)) }
        }
    )*};
}

impl Lanes for Avx2 {
    const WIDE: bool = false;

    both! {
        plus(b) = _mm256_add_ps;
        minus(b) = _mm256_sub_ps;
        times(b) = _mm256_mul_ps;
        over(b) = _mm256_div_ps;
        fused(b, c) = _mm256_fmadd_ps;
        most(b) = _mm256_max_ps;
        least(b) = _mm256_min_ps;
        root() = _mm256_sqrt_ps;
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: only kernels for AVX2 have these lanes.
        let half = unsafe { _mm256_set1_ps(number) };
        Self(half, half)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller sees to it.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(WIDTH / 2))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller sees to it.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(WIDTH / 2), self.1);
        }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        // SAFETY: the caller sees to it.
        unsafe { Self(widened(from), widened(from.add(WIDTH / 2))) }
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16) {
        // SAFETY: the caller sees to it.
        unsafe {
            // Packs within each half of 128 bits, so the middle quarters change places.
            let packed = _mm256_packus_epi32(rounded(self.0), rounded(self.1));
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    fn first(self, count: usize, b: Self) -> Self {
        // SAFETY: only kernels for AVX2 have these lanes.
        unsafe {
            let [low, high] = [count, count.saturating_sub(WIDTH / 2)].map(|count| below(count));
            Self(_mm256_blendv_ps(b.0, self.0, low), _mm256_blendv_ps(b.1, self.1, high))
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: only kernels for AVX2 have these lanes.
        unsafe { sum(_mm256_add_ps(self.0, self.1)) }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: only kernels for AVX2 have these lanes.
        unsafe { largest(_mm256_max_ps(self.0, self.1)) }
    }

    #[inline(always)]
    fn shifted(self, by: Self) -> Self {
        // SAFETY: only kernels for AVX2 have these lanes.
        unsafe { Self(shifted(self.0, by.0), shifted(self.1, by.1)) }
    }
}

#[inline(always)]
unsafe fn widened(from: *const u16) -> __m256 {
    // SAFETY: the caller sees to it that eight are there, and has AVX2.
    unsafe {
        let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
}

#[inline(always)]
unsafe fn rounded(numbers: __m256) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let bits = _mm256_castps_si256(numbers);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        let strange = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(numbers, numbers));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, strange))
    }
}

#[inline(always)]
unsafe fn shifted(number: __m256, by: __m256) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(by));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(number), exponent))
    }
}

/// All bits of the first so many lanes.
#[inline(always)]
unsafe fn below(count: usize) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), places))
    }
}

/// The sum of eight, halves by halves as [`Lanes::sum`] folds them.
///
/// # Safety
/// Here and below: the processor must have AVX2.
#[inline(always)]
pub unsafe fn sum(eight: __m256) -> f32 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The same of the largest.
#[inline(always)]
pub unsafe fn largest(eight: __m256) -> f32 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
}
