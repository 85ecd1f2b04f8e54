//! Packing by AVX-512. Everything is inlined into functions that enable the instructions.

use std::arch::x86_64::*;
use std::mem::transmute;

use half::bf16;

use super::aligned_lines::{CacheLine, WORDS};
use super::pack::{DEPTH, LineVector, LoadLine};
use crate::lanes_avx512::round_to_bf16;

/// A line in a register. `BF16`: with `vcvtne2ps2bf16`, which flushes subnormals to zero, as do the GEMM
/// instructions.
#[derive(Clone, Copy)]
pub struct ZmmLine<const BF16: bool>(__m512i);

/// A mask of the first `count` elements.
#[inline(always)]
fn mask_first(count: usize) -> u32 {
    if count >= 32 { u32::MAX } else { (1 << count) - 1 }
}

/// Rounds 32 elements: those of `low`, then those of `high`.
#[inline(always)]
unsafe fn round<const BF16: bool>(low: __m512, high: __m512) -> __m512i {
    // SAFETY: the caller has the instructions; both types are 512 bits.
    unsafe {
        if BF16 {
            return transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
        }
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(round_to_bf16(low)), round_to_bf16(high))
    }
}

/// Interleaves the first sixteen 16-bit elements with the second sixteen.
#[inline(always)]
unsafe fn interleave(elements: __m512i) -> __m512i {
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
    // SAFETY: ORDER is 512 bits; the caller has the instructions.
    unsafe { _mm512_permutexvar_epi16(_mm512_loadu_si512(ORDER.as_ptr().cast()), elements) }
}

/// Prefetches two rows of the next block: 32 rows are read in turn, more than hardware prefetchers track.
#[inline(always)]
fn prefetch_next_block<T>(from: *const T, at: [usize; 2]) {
    let ahead = DEPTH * (at[1] - at[0]);
    for at in at {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + ahead).cast()) };
    }
}

/// Loads `count` elements, padded with zeros.
#[inline(always)]
unsafe fn load_f32(from: *const f32, count: usize) -> __m512 {
    // SAFETY: the caller promises them and the instructions; masked elements are not read.
    unsafe { _mm512_maskz_loadu_ps(mask_first(count) as u16, from) }
}

impl<const BF16: bool> LoadLine<f32> for ZmmLine<BF16> {
    #[inline(always)]
    unsafe fn load_along_k(elements: &[f32], at: usize, count: usize) -> Self {
        let from = elements.as_ptr().wrapping_add(at);
        // SAFETY: the caller promises `count` elements.
        unsafe {
            let high = load_f32(from.wrapping_add(WORDS), count.saturating_sub(WORDS));
            Self(round::<BF16>(load_f32(from, count), high))
        }
    }

    #[inline(always)]
    unsafe fn load_across_lanes(elements: &[f32], at: [usize; 2], count: [usize; 2]) -> Self {
        let from = elements.as_ptr();
        prefetch_next_block(from, at);
        // SAFETY: the caller promises `count` elements at each index.
        unsafe {
            let [low, high] = [0, 1].map(|i| load_f32(from.wrapping_add(at[i]), count[i]));
            Self(interleave(round::<BF16>(low, high)))
        }
    }
}

impl<const BF16: bool> LoadLine<bf16> for ZmmLine<BF16> {
    #[inline(always)]
    unsafe fn load_along_k(elements: &[bf16], at: usize, count: usize) -> Self {
        let from = elements.as_ptr().wrapping_add(at);
        // SAFETY: the caller promises `count` elements; masked ones are not read.
        Self(unsafe { _mm512_maskz_loadu_epi16(mask_first(count), from.cast()) })
    }

    #[inline(always)]
    unsafe fn load_across_lanes(elements: &[bf16], at: [usize; 2], count: [usize; 2]) -> Self {
        let from = elements.as_ptr().cast::<i16>();
        prefetch_next_block(from, at);
        // SAFETY: the caller promises `count` elements at each index; masked ones are not read.
        unsafe {
            let [low, high] = [0, 1].map(|i| {
                _mm256_maskz_loadu_epi16(mask_first(count[i]) as u16, from.wrapping_add(at[i]))
            });
            Self(interleave(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)))
        }
    }
}

impl<const BF16: bool> LineVector for ZmmLine<BF16> {
    #[inline(always)]
    unsafe fn from_line(line: CacheLine) -> Self {
        // SAFETY: both are 512 bits.
        Self(unsafe { transmute::<CacheLine, __m512i>(line) })
    }

    #[inline(always)]
    unsafe fn transpose(r: [Self; WORDS]) -> [Self; WORDS] {
        // Not the transpose of `lanes_avx512`, which is up to 40 % slower here, as this one is there.
        // SAFETY: the caller has the instructions.
        unsafe {
            let mut t = r;
            for i in (0..WORDS).step_by(2) {
                t[i].0 = _mm512_unpacklo_epi32(r[i].0, r[i + 1].0);
                t[i + 1].0 = _mm512_unpackhi_epi32(r[i].0, r[i + 1].0);
            }
            // u[4 g + c] has four rows of column 4 l + c for each 128-bit quarter l.
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
    unsafe fn store(self, to: &mut CacheLine) {
        // SAFETY: a line is 512 bits and aligned; the caller has the instructions.
        unsafe { _mm512_store_si512((&raw mut *to).cast(), self.0) }
    }
}
