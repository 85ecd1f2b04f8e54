//! Sixteen lanes in an AVX-512 register.

use std::arch::x86_64::*;
use std::mem::transmute;

use crate::lanes::{Lanes, WIDTH};
use crate::lanes_avx2::Avx2;

/// An AVX-512 register. `BF16`: with `vcvtneps2bf16`, which flushes subnormals to zero.
#[derive(Clone, Copy)]
pub struct Avx512<const BF16: bool>(__m512);

/// Methods that apply an intrinsic.
macro_rules! intrinsics {
    ($($name:ident($($arg:ident),*) = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            // SAFETY: only kernels dispatched for AVX-512 use this type.
            Self(unsafe { $intrinsic(self.0, $($arg.0),*) })
        }
    )*};
}

impl<const BF16: bool> Lanes for Avx512<BF16> {
    const HAS_32_REGISTERS: bool = true;

    intrinsics! {
        add(b) = _mm512_add_ps;
        sub(b) = _mm512_sub_ps;
        mul(b) = _mm512_mul_ps;
        div(b) = _mm512_div_ps;
        mul_add(b, c) = _mm512_fmadd_ps;
        max(b) = _mm512_max_ps;
        min(b) = _mm512_min_ps;
        sqrt() = _mm512_sqrt_ps;
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: only kernels dispatched for AVX-512 use this type.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = if BF16 {
                transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(self.0))
            } else {
                round_to_bf16(self.0)
            };
            _mm256_storeu_si256(to.cast(), bits);
        }
    }

    #[inline(always)]
    fn recip(self) -> Self {
        // A division would dominate the time of an activation. One Newton step refines the estimate, except
        // where it is 0: there the step would compute infinity times zero.
        // SAFETY: only kernels dispatched for AVX-512 use this type.
        unsafe {
            let estimate = _mm512_rcp14_ps(self.0);
            let error = _mm512_fnmadd_ps(self.0, estimate, _mm512_set1_ps(1.0));
            let nonzero = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(estimate, _mm512_setzero_ps());
            Self(_mm512_mask_fmadd_ps(estimate, nonzero, error, estimate))
        }
    }

    #[inline(always)]
    fn select_first(self, count: usize, b: Self) -> Self {
        // SAFETY: only kernels dispatched for AVX-512 use this type.
        Self(unsafe { _mm512_mask_mov_ps(b.0, ((1_u32 << count) - 1) as u16, self.0) })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.halves().sum()
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        self.halves().reduce_max()
    }

    #[inline(always)]
    fn scale_pow2(self, exponent: Self) -> Self {
        // SAFETY: only kernels dispatched for AVX-512 use this type.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(exponent.0));
            let sum = _mm512_add_epi32(_mm512_castps_si512(self.0), exponent);
            Self(_mm512_castsi512_ps(sum))
        }
    }

    #[inline(always)]
    fn prefetch(address: *const f32) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn transpose(rows: [Self; WIDTH]) -> [Self; WIDTH] {
        // SAFETY: only kernels dispatched for AVX-512 use this type.
        unsafe { transpose(rows.map(|row| row.0)).map(Self) }
    }
}

impl<const BF16: bool> Avx512<BF16> {
    #[inline(always)]
    fn halves(self) -> Avx2 {
        // SAFETY: only kernels dispatched for AVX-512 use this type.
        unsafe { Avx2(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0)) }
    }
}

/// Rounds to bf16 without AVX512_BF16: to nearest even, NaNs become quiet.
///
/// # Safety
/// The CPU must have AVX-512 F.
#[inline(always)]
pub unsafe fn round_to_bf16(lanes: __m512) -> __m256i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let bits = _mm512_castps_si512(lanes);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_add_epi32(bits, up);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(lanes, lanes);
        let result = _mm512_mask_mov_epi32(rounded, is_nan, quiet);
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(result))
    }
}

/// Interleaves pairs of rows, then pairs of pairs, then 128-bit quarters.
#[inline(always)]
unsafe fn transpose(rows: [__m512; WIDTH]) -> [__m512; WIDTH] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let [mut pairs, mut fours, mut eights, mut all] = [[_mm512_setzero_ps(); WIDTH]; 4];
        for at in (0..WIDTH).step_by(2) {
            pairs[at] = _mm512_unpacklo_ps(rows[at], rows[at + 1]);
            pairs[at + 1] = _mm512_unpackhi_ps(rows[at], rows[at + 1]);
        }
        for at in (0..WIDTH).step_by(4) {
            for odd in 0..2 {
                let (a, b) = (pairs[at + odd], pairs[at + odd + 2]);
                fours[at + 2 * odd] = _mm512_shuffle_ps::<0x44>(a, b);
                fours[at + 2 * odd + 1] = _mm512_shuffle_ps::<0xee>(a, b);
            }
        }
        // Register n of four now has columns n, n + 4, n + 8 and n + 12 of its four rows.
        for at in (0..WIDTH).step_by(8) {
            for n in 0..4 {
                let (a, b) = (fours[at + n], fours[at + n + 4]);
                eights[at + n] = _mm512_shuffle_f32x4::<0x88>(a, b);
                eights[at + n + 4] = _mm512_shuffle_f32x4::<0xdd>(a, b);
            }
        }
        for n in 0..8 {
            let (a, b) = (eights[n], eights[n + 8]);
            all[n] = _mm512_shuffle_f32x4::<0x88>(a, b);
            all[n + 8] = _mm512_shuffle_f32x4::<0xdd>(a, b);
        }
        all
    }
}
