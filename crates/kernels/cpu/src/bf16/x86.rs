//! Tiles by the vectors of x86 processors.

use std::arch::x86_64::*;
use std::mem::transmute;

use half::bf16;

use super::finish::{COLUMNS, Goal, Plainly, Rounding, Sums};
use super::lines::{Line, WORDS};
use super::tile::{self, Lanes, Tile};

/// Two products and two sums of sixteen columns in one instruction.
pub struct Avx512Bf16;

impl Lanes for Avx512Bf16 {
    // 28 sums, two lines of the right operand and one pair of the left: 31 of 32 registers.
    const ROWS: usize = 14;
    const PANELS: usize = 2;
    const LEFT_LINES: usize = 1;
    type Rounding = Natively;
    type Sum = __m512;
    type Left = __m512i;
    type Right = __m512i;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn zero() -> __m512 {
        _mm512_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn left(word: *const u32) -> __m512i {
        // SAFETY: the word is there.
        _mm512_set1_epi32(unsafe { *word } as i32)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn right(line: *const Line) -> __m512i {
        // SAFETY: the line is there, and aligned.
        unsafe { _mm512_load_si512(line.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn add(sum: __m512, left: __m512i, right: __m512i) -> __m512 {
        // SAFETY: the types differ in name only.
        let (left, right) = unsafe {
            (transmute::<__m512i, __m512bh>(left), transmute::<__m512i, __m512bh>(right))
        };
        _mm512_dpbf16_ps(sum, left, right)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(sum: __m512, to: *mut f32) {
        // SAFETY: there is room for sixteen.
        unsafe { _mm512_storeu_ps(to, sum) }
    }
}

/// By the instruction that rounds to brain floats. It takes numbers below the smallest normal one for
/// zero.
pub struct Natively;

impl Rounding for Natively {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn row(wide: &[f32; COLUMNS], to: &mut [bf16; COLUMNS]) {
        let wide = wide.as_ptr();
        // SAFETY: 32 are there, and there is room for as many; the types differ in name only.
        unsafe {
            let [low, high] = [_mm512_loadu_ps(wide), _mm512_loadu_ps(wide.add(WORDS))];
            let halves = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_si512(to.as_mut_ptr().cast(), halves);
        }
    }
}

/// The right operand is widened in registers, the left one beforehand.
pub struct Avx512;

impl Lanes for Avx512 {
    // 24 sums, four widened vectors of the right operand, two of the left: 30 of 32 registers.
    const ROWS: usize = 12;
    const PANELS: usize = 2;
    const LEFT_LINES: usize = 2;
    type Rounding = Plainly;
    type Sum = __m512;
    type Left = [__m512; 2];
    type Right = [__m512; 2];

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn zero() -> __m512 {
        _mm512_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn left(word: *const u32) -> [__m512; 2] {
        // SAFETY: the second word is a line behind the first.
        let [even, odd] = unsafe { [*word, *word.add(WORDS)] };
        [_mm512_set1_ps(f32::from_bits(even)), _mm512_set1_ps(f32::from_bits(odd))]
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn right(line: *const Line) -> [__m512; 2] {
        // SAFETY: the line is there, and aligned.
        let pairs = unsafe { _mm512_load_si512(line.cast()) };
        let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(odd)]
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add(sum: __m512, left: [__m512; 2], right: [__m512; 2]) -> __m512 {
        _mm512_fmadd_ps(left[1], right[1], _mm512_fmadd_ps(left[0], right[0], sum))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(sum: __m512, to: *mut f32) {
        // SAFETY: there is room for sixteen.
        unsafe { _mm512_storeu_ps(to, sum) }
    }
}

/// The same by vectors of eight.
pub struct Avx2;

impl Lanes for Avx2 {
    // 8 sums, four widened vectors of the right operand, two of the left: 14 of 16 registers.
    const ROWS: usize = 4;
    const PANELS: usize = 1;
    const LEFT_LINES: usize = 2;
    type Rounding = Plainly;
    type Sum = [__m256; 2];
    type Left = [__m256; 2];
    type Right = [[__m256; 2]; 2];

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn zero() -> [__m256; 2] {
        [_mm256_setzero_ps(); 2]
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn left(word: *const u32) -> [__m256; 2] {
        // SAFETY: the second word is a line behind the first.
        let [even, odd] = unsafe { [*word, *word.add(WORDS)] };
        [_mm256_set1_ps(f32::from_bits(even)), _mm256_set1_ps(f32::from_bits(odd))]
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn right(line: *const Line) -> [[__m256; 2]; 2] {
        let half = |pairs: __m256i| {
            let odd = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(odd)]
        };
        let line = line.cast::<__m256i>();
        // SAFETY: the line is there, and aligned.
        unsafe { [half(_mm256_load_si256(line)), half(_mm256_load_si256(line.add(1)))] }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn add(sum: [__m256; 2], left: [__m256; 2], right: [[__m256; 2]; 2]) -> [__m256; 2] {
        let half = |sum, right: [__m256; 2]| {
            _mm256_fmadd_ps(left[1], right[1], _mm256_fmadd_ps(left[0], right[0], sum))
        };
        [half(sum[0], right[0]), half(sum[1], right[1])]
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn store(sum: [__m256; 2], to: *mut f32) {
        // SAFETY: there is room for sixteen.
        unsafe {
            _mm256_storeu_ps(to, sum[0]);
            _mm256_storeu_ps(to.add(8), sum[1]);
        }
    }
}

/// # Safety
/// See [`tile::Run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub unsafe fn run_avx512_bf16(tile: &Tile, sums: &mut Sums, goal: Goal<'_>) {
    // SAFETY: as the caller says.
    unsafe { tile::run::<Avx512Bf16>(tile, sums, goal) }
}

/// # Safety
/// See [`tile::Run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub unsafe fn run_avx512(tile: &Tile, sums: &mut Sums, goal: Goal<'_>) {
    // SAFETY: as the caller says.
    unsafe { tile::run::<Avx512>(tile, sums, goal) }
}

/// # Safety
/// See [`tile::Run`].
#[target_feature(enable = "avx2,fma")]
pub unsafe fn run_avx2(tile: &Tile, sums: &mut Sums, goal: Goal<'_>) {
    // SAFETY: as the caller says.
    unsafe { tile::run::<Avx2>(tile, sums, goal) }
}
