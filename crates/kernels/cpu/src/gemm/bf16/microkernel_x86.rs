//! x86 micro-kernels.

use std::arch::x86_64::*;
use std::mem::transmute;

use half::bf16;

use super::aligned_lines::{CacheLine, WORDS};
use super::convert::{PortableRounding, Rounding};
use super::epilogue::{Accumulators, TILE_COLUMNS, TileOutput};
use super::microkernel::{self, GemmTile, MicroKernel};

/// Methods that are compiled for some CPU features.
macro_rules! with_features {
    ($features:literal: $(
        unsafe fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block
    )*) => {$(
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $name($($arg: $type),*) $(-> $result)? $body
    )*};
}

/// Runs of a micro-kernel compiled for its CPU features.
macro_rules! run {
    ($($name:ident = $kernel:ident for $features:literal;)*) => {$(
        /// # Safety
        /// See [`microkernel::MicroKernelFn`].
        #[target_feature(enable = $features)]
        pub unsafe fn $name(tile: &GemmTile, acc: &mut Accumulators, output: TileOutput<'_>) {
            // SAFETY: the caller's promise.
            unsafe { microkernel::run::<$kernel>(tile, acc, output) }
        }
    )*};
}

run! {
    run_avx512_bf16 = Avx512Bf16 for "avx512f,avx512bw,avx512vl,avx512bf16";
    run_avx512 = Avx512 for "avx512f,avx512bw,avx512vl";
    run_avx2 = Avx2 for "avx2,fma";
}

/// One `vdpbf16ps` per sixteen columns and pair.
pub struct Avx512Bf16;

impl MicroKernel for Avx512Bf16 {
    // 28 accumulators, two lines of B and one pair of A: 31 of 32 registers.
    const ROWS: usize = 14;
    const PANELS: usize = 2;
    const A_LINES: usize = 1;
    type Rounding = NativeRounding;
    type Acc = __m512;
    type A = __m512i;
    type B = __m512i;

    with_features! { "avx512f,avx512bf16":
        unsafe fn zero() -> __m512 {
            _mm512_setzero_ps()
        }

        unsafe fn broadcast_a(word: *const u32) -> __m512i {
            // SAFETY: the caller's promise.
            _mm512_set1_epi32(unsafe { *word } as i32)
        }

        unsafe fn load_b(line: *const CacheLine) -> __m512i {
            // SAFETY: the caller's promise; lines are aligned.
            unsafe { _mm512_load_si512(line.cast()) }
        }

        unsafe fn dot(acc: __m512, a: __m512i, b: __m512i) -> __m512 {
            // SAFETY: both are 512 bits.
            let (a, b) =
                unsafe { (transmute::<__m512i, __m512bh>(a), transmute::<__m512i, __m512bh>(b)) };
            _mm512_dpbf16_ps(acc, a, b)
        }

        unsafe fn store(acc: __m512, to: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(to, acc) }
        }
    }
}

/// By `vcvtne2ps2bf16`, which flushes subnormals to zero.
pub struct NativeRounding;

impl Rounding for NativeRounding {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn round_row(from: &[f32; TILE_COLUMNS], to: &mut [bf16; TILE_COLUMNS]) {
        let from = from.as_ptr();
        // SAFETY: both have 32 elements; both vector types are 512 bits.
        unsafe {
            let [low, high] = [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(WORDS))];
            let bits = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_si512(to.as_mut_ptr().cast(), bits);
        }
    }
}

/// B is widened in registers, A when packed.
pub struct Avx512;

impl MicroKernel for Avx512 {
    // 24 accumulators, four widened vectors of B, two of A: 30 of 32 registers.
    const ROWS: usize = 12;
    const PANELS: usize = 2;
    const A_LINES: usize = 2;
    type Rounding = PortableRounding;
    type Acc = __m512;
    type A = [__m512; 2];
    type B = [__m512; 2];

    with_features! { "avx512f":
        unsafe fn zero() -> __m512 {
            _mm512_setzero_ps()
        }

        unsafe fn broadcast_a(word: *const u32) -> [__m512; 2] {
            // SAFETY: the caller's promise; the second word is one line after the first.
            let [even, odd] = unsafe { [*word, *word.add(WORDS)] };
            [_mm512_set1_ps(f32::from_bits(even)), _mm512_set1_ps(f32::from_bits(odd))]
        }

        unsafe fn load_b(line: *const CacheLine) -> [__m512; 2] {
            // SAFETY: the caller's promise; lines are aligned.
            let pairs = unsafe { _mm512_load_si512(line.cast()) };
            let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(odd)]
        }

        unsafe fn dot(acc: __m512, a: [__m512; 2], b: [__m512; 2]) -> __m512 {
            _mm512_fmadd_ps(a[1], b[1], _mm512_fmadd_ps(a[0], b[0], acc))
        }

        unsafe fn store(acc: __m512, to: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(to, acc) }
        }
    }
}

/// As [`Avx512`], with two vectors of eight columns.
pub struct Avx2;

impl MicroKernel for Avx2 {
    // 8 accumulators, four widened vectors of B, two of A: 14 of 16 registers.
    const ROWS: usize = 4;
    const PANELS: usize = 1;
    const A_LINES: usize = 2;
    type Rounding = PortableRounding;
    type Acc = [__m256; 2];
    type A = [__m256; 2];
    type B = [[__m256; 2]; 2];

    with_features! { "avx2,fma":
        unsafe fn zero() -> [__m256; 2] {
            [_mm256_setzero_ps(); 2]
        }

        unsafe fn broadcast_a(word: *const u32) -> [__m256; 2] {
            // SAFETY: the caller's promise; the second word is one line after the first.
            let [even, odd] = unsafe { [*word, *word.add(WORDS)] };
            [_mm256_set1_ps(f32::from_bits(even)), _mm256_set1_ps(f32::from_bits(odd))]
        }

        unsafe fn load_b(line: *const CacheLine) -> [[__m256; 2]; 2] {
            let half = |pairs: __m256i| {
                let odd = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
                [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(odd)]
            };
            let line = line.cast::<__m256i>();
            // SAFETY: the caller's promise; lines are aligned.
            unsafe { [half(_mm256_load_si256(line)), half(_mm256_load_si256(line.add(1)))] }
        }

        unsafe fn dot(acc: [__m256; 2], a: [__m256; 2], b: [[__m256; 2]; 2]) -> [__m256; 2] {
            let half =
                |acc, b: [__m256; 2]| _mm256_fmadd_ps(a[1], b[1], _mm256_fmadd_ps(a[0], b[0], acc));
            [half(acc[0], b[0]), half(acc[1], b[1])]
        }

        unsafe fn store(acc: [__m256; 2], to: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe {
                _mm256_storeu_ps(to, acc[0]);
                _mm256_storeu_ps(to.add(8), acc[1]);
            }
        }
    }
}
