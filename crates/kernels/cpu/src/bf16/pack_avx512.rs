//! Packing by vectors of sixteen words. All is inlined into [`native`] or [`plain`], which have
//! the instructions.

use std::arch::x86_64::*;
use std::mem::transmute;

use half::bf16;

use super::lines::{Line, WORDS};
use super::pack::{DEPTH, Rounds, Vector};

/// A line in a register. `NATIVE`: the processor has an instruction that rounds to brain floats.
/// It takes numbers below the smallest normal one for zero, as the products do.
#[derive(Clone, Copy)]
pub struct By<const NATIVE: bool>(__m512i);

/// Runs packing with rounding by instruction.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub fn native(run: impl FnOnce()) {
    run();
}

/// Runs packing without.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub fn plain(run: impl FnOnce()) {
    run();
}

/// The first of as many bits as a mask has.
#[inline(always)]
fn first(count: usize) -> u32 {
    if count >= 32 { u32::MAX } else { (1 << count) - 1 }
}

/// 32 numbers rounded: first those of `low`, then those of `high`.
#[inline(always)]
unsafe fn round<const NATIVE: bool>(low: __m512, high: __m512) -> __m512i {
    // SAFETY: the caller vouches for the instructions; the types differ in name only.
    unsafe {
        if NATIVE {
            return transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
        }
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(round_plain(low)), round_plain(high))
    }
}

/// Sixteen by whole numbers, as [`super::convert::rounded`] does.
#[inline(always)]
unsafe fn round_plain(wide: __m512) -> __m256i {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let bits = _mm512_castps_si512(wide);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let even = _mm512_add_epi32(bits, up);
        let none = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
        let is_none = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(wide, wide);
        let bits = _mm512_mask_mov_epi32(even, is_none, none);
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bits))
    }
}

/// Puts the second sixteen halves of words between the first sixteen.
#[inline(always)]
unsafe fn interleaved(halves: __m512i) -> __m512i {
    const ORDER: [u16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 16 {
            order[2 * i] = i as u16;
            order[2 * i + 1] = (16 + i) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: it is as long as what is read; the caller vouches for the instructions.
    unsafe { _mm512_permutexvar_epi16(_mm512_loadu_si512(ORDER.as_ptr().cast()), halves) }
}

/// Two rows of numbers across lanes are far apart, and 32 are read by turns: more than the
/// processor follows by itself.
#[inline(always)]
fn ask_for_next_block<T>(from: *const T, at: [usize; 2]) {
    let ahead = DEPTH * (at[1] - at[0]);
    for at in at {
        // SAFETY: any processor with vectors can be asked for memory, whether it is there or not.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + ahead).cast()) };
    }
}

/// `count` numbers from a place on, then zeros.
#[inline(always)]
unsafe fn reals(from: *const f32, count: usize) -> __m512 {
    // SAFETY: the caller vouches for them and for the instructions; the mask leaves others alone.
    unsafe { _mm512_maskz_loadu_ps(first(count) as u16, from) }
}

impl<const NATIVE: bool> Rounds<f32> for By<NATIVE> {
    #[inline(always)]
    unsafe fn along(numbers: &[f32], at: usize, count: usize) -> Self {
        let from = numbers.as_ptr().wrapping_add(at);
        // SAFETY: the caller vouches for `count` numbers.
        unsafe {
            let high = reals(from.wrapping_add(WORDS), count.saturating_sub(WORDS));
            Self(round::<NATIVE>(reals(from, count), high))
        }
    }

    #[inline(always)]
    unsafe fn across(numbers: &[f32], at: [usize; 2], count: [usize; 2]) -> Self {
        let from = numbers.as_ptr();
        ask_for_next_block(from, at);
        // SAFETY: the caller vouches for as many numbers at each.
        unsafe {
            let [low, high] = [0, 1].map(|i| reals(from.wrapping_add(at[i]), count[i]));
            Self(interleaved(round::<NATIVE>(low, high)))
        }
    }
}

impl<const NATIVE: bool> Rounds<bf16> for By<NATIVE> {
    #[inline(always)]
    unsafe fn along(numbers: &[bf16], at: usize, count: usize) -> Self {
        let from = numbers.as_ptr().wrapping_add(at);
        // SAFETY: the caller vouches for `count` numbers; the mask leaves the others alone.
        Self(unsafe { _mm512_maskz_loadu_epi16(first(count), from.cast()) })
    }

    #[inline(always)]
    unsafe fn across(numbers: &[bf16], at: [usize; 2], count: [usize; 2]) -> Self {
        let from = numbers.as_ptr().cast::<i16>();
        ask_for_next_block(from, at);
        // SAFETY: the caller vouches for as many numbers at each; masks leave the others alone.
        unsafe {
            let [low, high] = [0, 1].map(|i| {
                _mm256_maskz_loadu_epi16(first(count[i]) as u16, from.wrapping_add(at[i]))
            });
            Self(interleaved(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)))
        }
    }
}

impl<const NATIVE: bool> Vector for By<NATIVE> {
    #[inline(always)]
    unsafe fn of(line: Line) -> Self {
        // SAFETY: the types differ in name only.
        Self(unsafe { transmute::<Line, __m512i>(line) })
    }

    #[inline(always)]
    unsafe fn transposed(r: [Self; WORDS]) -> [Self; WORDS] {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let mut t = r;
            for i in (0..WORDS).step_by(2) {
                t[i].0 = _mm512_unpacklo_epi32(r[i].0, r[i + 1].0);
                t[i + 1].0 = _mm512_unpackhi_epi32(r[i].0, r[i + 1].0);
            }
            // Four rows of column 4 l + c, for each quarter l, are in u[4 g + c].
            let mut u = t;
            for g in (0..WORDS).step_by(4) {
                u[g].0 = _mm512_unpacklo_epi64(t[g].0, t[g + 2].0);
                u[g + 1].0 = _mm512_unpackhi_epi64(t[g].0, t[g + 2].0);
                u[g + 2].0 = _mm512_unpacklo_epi64(t[g + 1].0, t[g + 3].0);
                u[g + 3].0 = _mm512_unpackhi_epi64(t[g + 1].0, t[g + 3].0);
            }
            let mut out = u;
            for c in 0..4 {
                let first = _mm512_shuffle_i32x4::<0x44>(u[c].0, u[4 + c].0);
                let second = _mm512_shuffle_i32x4::<0xee>(u[c].0, u[4 + c].0);
                let third = _mm512_shuffle_i32x4::<0x44>(u[8 + c].0, u[12 + c].0);
                let fourth = _mm512_shuffle_i32x4::<0xee>(u[8 + c].0, u[12 + c].0);
                out[c].0 = _mm512_shuffle_i32x4::<0x88>(first, third);
                out[4 + c].0 = _mm512_shuffle_i32x4::<0xdd>(first, third);
                out[8 + c].0 = _mm512_shuffle_i32x4::<0x88>(second, fourth);
                out[12 + c].0 = _mm512_shuffle_i32x4::<0xdd>(second, fourth);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn write(self, to: &mut Line) {
        // SAFETY: a line is as long as a register, and aligned; the caller vouches for the rest.
        unsafe { _mm512_store_si512((&raw mut *to).cast(), self.0) }
    }
}
