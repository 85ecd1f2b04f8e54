//! Sixteen numbers in a register of AVX-512.

use std::arch::x86_64::*;
use std::mem::transmute;

use crate::lanes::{Lanes, WIDTH};
use crate::lanes_avx2::{largest, sum};

/// One register of AVX-512. `HALVES`: the processor has an instruction that rounds to brain floats. It
/// takes numbers below the smallest normal one for zero.
#[derive(Clone, Copy)]
pub struct Avx512<const HALVES: bool>(__m512);

/// An operation of AVX-512 on whole registers.
macro_rules! wide {
    ($($name:ident($($arg:ident),*) = $intrinsic:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            // SAFETY: only kernels for AVX-512 have these lanes.
            Self(unsafe { $intrinsic(self.0, $($arg.0),*) })
        }
    )*};
}

impl<const HALVES: bool> Lanes for Avx512<HALVES> {
    const WIDE: bool = true;

    wide! {
        plus(b) = _mm512_add_ps;
        minus(b) = _mm512_sub_ps;
        times(b) = _mm512_mul_ps;
        over(b) = _mm512_div_ps;
        fused(b, c) = _mm512_fmadd_ps;
        most(b) = _mm512_max_ps;
        least(b) = _mm512_min_ps;
        root() = _mm512_sqrt_ps;
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: only kernels for AVX-512 have these lanes.
        Self(unsafe { _mm512_set1_ps(number) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller sees to it.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller sees to it.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        // SAFETY: the caller sees to it.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16) {
        // SAFETY: the caller sees to it.
        unsafe {
            if HALVES {
                let halves = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(self.0));
                return _mm256_storeu_si256(to.cast(), halves);
            }
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_add_epi32(bits, up);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let strange = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let result = _mm512_mask_blend_epi32(strange, rounded, quiet);
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(result));
            _mm256_storeu_si256(to.cast(), halves);
        }
    }

    #[inline(always)]
    fn inverse(self) -> Self {
        // A division takes longer than all else that an activation is made of. What is infinite has
        // no correction: infinity times zero is no number.
        // SAFETY: only kernels for AVX-512 have these lanes.
        unsafe {
            let near = _mm512_rcp14_ps(self.0);
            let miss = _mm512_fnmadd_ps(self.0, near, _mm512_set1_ps(1.0));
            let whole = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(near, _mm512_setzero_ps());
            Self(_mm512_mask_fmadd_ps(near, whole, miss, near))
        }
    }

    #[inline(always)]
    fn first(self, count: usize, b: Self) -> Self {
        // SAFETY: only kernels for AVX-512 have these lanes.
        Self(unsafe { _mm512_mask_mov_ps(b.0, ((1_u32 << count) - 1) as u16, self.0) })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: only kernels for AVX-512 have these lanes.
        unsafe {
            let [low, high] = halves(self.0);
            sum(_mm256_add_ps(low, high))
        }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: only kernels for AVX-512 have these lanes.
        unsafe {
            let [low, high] = halves(self.0);
            largest(_mm256_max_ps(low, high))
        }
    }

    #[inline(always)]
    fn shifted(self, by: Self) -> Self {
        // SAFETY: only kernels for AVX-512 have these lanes.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(by.0));
            let sum = _mm512_add_epi32(_mm512_castps_si512(self.0), exponent);
            Self(_mm512_castsi512_ps(sum))
        }
    }

    #[inline(always)]
    fn expect(there: *const f32) {
        // SAFETY: it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(there.cast()) }
    }

    #[inline(always)]
    fn transposed(rows: [Self; WIDTH]) -> [Self; WIDTH] {
        // SAFETY: only kernels for AVX-512 have these lanes.
        unsafe { transposed(rows.map(|row| row.0)).map(Self) }
    }
}

#[inline(always)]
unsafe fn halves(lanes: __m512) -> [__m256; 2] {
    // SAFETY: the caller has AVX-512.
    unsafe { [_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes)] }
}

/// Turns pairs of rows, then fours, then the quarters of registers, each step twice as far apart.
#[inline(always)]
unsafe fn transposed(rows: [__m512; WIDTH]) -> [__m512; WIDTH] {
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
        // Now number `n` of a four is columns n, n + 4, n + 8 and n + 12 of its four rows.
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
