//! Half precision: the compiler makes no vectors of its conversions, so they are called by name,
//! eight at a time; without such instructions they are done in software.

use half::f16;

use super::Work;
use super::number::{Fold, Number};

/// Eight numbers, narrow.
const EIGHT_BYTES: usize = 16;

/// How eight numbers are converted.
trait Convert {
    /// # Safety
    /// The processor must have the instructions.
    unsafe fn wide(narrow: [u8; EIGHT_BYTES]) -> [f32; 8];
    /// # Safety
    /// The same.
    unsafe fn narrow(wide: [f32; 8]) -> [u8; EIGHT_BYTES];
}

struct Software;

impl Convert for Software {
    #[inline]
    unsafe fn wide(narrow: [u8; EIGHT_BYTES]) -> [f32; 8] {
        let (pairs, _) = narrow.as_chunks::<2>();
        std::array::from_fn(|i| f16::from_ne_bytes(pairs[i]).to_f32())
    }

    #[inline]
    unsafe fn narrow(wide: [f32; 8]) -> [u8; EIGHT_BYTES] {
        let mut bytes = [0; EIGHT_BYTES];
        for (pair, wide) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(wide) {
            *pair = f16::from_f32(wide).to_ne_bytes();
        }
        bytes
    }
}

#[cfg(target_arch = "x86_64")]
struct Hardware;

#[cfg(target_arch = "x86_64")]
impl Convert for Hardware {
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn wide(narrow: [u8; EIGHT_BYTES]) -> [f32; 8] {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut wide = [0.0; 8];
        // SAFETY: both are as long as what is read and written.
        unsafe {
            let eight = _mm_loadu_si128(narrow.as_ptr().cast());
            _mm256_storeu_ps(wide.as_mut_ptr(), _mm256_cvtph_ps(eight));
        }
        wide
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn narrow(wide: [f32; 8]) -> [u8; EIGHT_BYTES] {
        use std::arch::x86_64::{
            _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps,
        };
        let mut narrow = [0; EIGHT_BYTES];
        // SAFETY: both are as long as what is read and written.
        unsafe {
            let eight =
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(wide.as_ptr()));
            _mm_storeu_si128(narrow.as_mut_ptr().cast(), eight);
        }
        narrow
    }
}

/// `out[i] = two(a[i], b[i])`; without `a`, `out` is taken for it.
///
/// # Safety
/// The processor must have the instructions of the conversion.
#[inline(always)]
unsafe fn each<C: Convert>(
    out: &mut [u8],
    a: Option<&[u8]>,
    b: &[u8],
    two: impl Fn(f32, f32) -> f32,
) {
    let length = out.len().min(b.len()).min(a.map_or(usize::MAX, <[u8]>::len)) & !1;
    let mut at = 0;
    while at < length {
        // The last are fewer than eight.
        let bytes = EIGHT_BYTES.min(length - at);
        let here = at..at + bytes;
        let taken = |from: &[u8]| {
            let mut eight = [0; EIGHT_BYTES];
            match from.get(at..at + EIGHT_BYTES) {
                Some(whole) => eight.copy_from_slice(whole),
                None => eight[..bytes].copy_from_slice(&from[here.clone()]),
            }
            eight
        };
        // SAFETY: as the caller says.
        let (a, b) = unsafe { (C::wide(taken(a.unwrap_or(out))), C::wide(taken(b))) };
        // SAFETY: as the caller says.
        let eight = unsafe { C::narrow(std::array::from_fn(|i| two(a[i], b[i]))) };
        match out.get_mut(at..at + EIGHT_BYTES) {
            Some(whole) if bytes == EIGHT_BYTES => whole.copy_from_slice(&eight),
            _ => out[here].copy_from_slice(&eight[..bytes]),
        }
        at += EIGHT_BYTES;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn each_in_hardware(out: &mut [u8], a: Option<&[u8]>, b: &[u8], two: impl Fn(f32, f32) -> f32) {
    // SAFETY: this function is only called where there are these instructions.
    unsafe { each::<Hardware>(out, a, b, two) }
}

fn each_anywhere(out: &mut [u8], a: Option<&[u8]>, b: &[u8], two: impl Fn(f32, f32) -> f32) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has these instructions.
        return unsafe { each_in_hardware(out, a, b, two) };
    }
    // SAFETY: software needs none.
    unsafe { each::<Software>(out, a, b, two) }
}

pub fn run<F: Fold>(work: Work<'_>) {
    match work {
        Work::Into(into, from) => each_anywhere(into, None, from, F::two::<f32>),
        Work::Two(out, a, b) => each_anywhere(out, Some(a), b, F::two::<f32>),
    }
}

pub fn divide(data: &mut [u8], by: u32) {
    const BLOCK: [u8; 512] = [0; 512];
    for block in data.chunks_mut(BLOCK.len()) {
        each_anywhere(block, None, &BLOCK, |value, _| value.divided(by));
    }
}
