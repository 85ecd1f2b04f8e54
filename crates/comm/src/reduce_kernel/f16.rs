//! f16 reductions, eight elements at a time with F16C intrinsics, because the compiler does not
//! vectorise f16 conversions. The slice conversions of the `half` crate use F16C too, but need
//! aligned slices and a pass over a temporary f32 buffer per operand: a third of this throughput.
//! Without F16C, `half` converts in software.

use half::f16;

use super::Operands;
use super::reduce_fn::{ReduceFn, Reducible};

/// Bytes of eight f16.
const F16X8_BYTES: usize = 16;

/// Conversion of eight elements.
trait Convert {
    /// # Safety
    /// The CPU must support the instructions.
    unsafe fn to_f32(packed: [u8; F16X8_BYTES]) -> [f32; 8];
    /// # Safety
    /// As above.
    unsafe fn from_f32(values: [f32; 8]) -> [u8; F16X8_BYTES];
}

struct Software;

impl Convert for Software {
    #[inline]
    unsafe fn to_f32(packed: [u8; F16X8_BYTES]) -> [f32; 8] {
        let (pairs, _) = packed.as_chunks::<2>();
        std::array::from_fn(|i| f16::from_ne_bytes(pairs[i]).to_f32())
    }

    #[inline]
    unsafe fn from_f32(values: [f32; 8]) -> [u8; F16X8_BYTES] {
        let mut bytes = [0; F16X8_BYTES];
        for (pair, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
            *pair = f16::from_f32(value).to_ne_bytes();
        }
        bytes
    }
}

#[cfg(target_arch = "x86_64")]
struct F16c;

#[cfg(target_arch = "x86_64")]
impl Convert for F16c {
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn to_f32(packed: [u8; F16X8_BYTES]) -> [f32; 8] {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut values = [0.0; 8];
        // SAFETY: both arrays have the length of the vector.
        unsafe {
            let eight = _mm_loadu_si128(packed.as_ptr().cast());
            _mm256_storeu_ps(values.as_mut_ptr(), _mm256_cvtph_ps(eight));
        }
        values
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn from_f32(values: [f32; 8]) -> [u8; F16X8_BYTES] {
        use std::arch::x86_64::{
            _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps,
        };
        let mut packed = [0; F16X8_BYTES];
        // SAFETY: both arrays have the length of the vector.
        unsafe {
            let eight =
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(values.as_ptr()));
            _mm_storeu_si128(packed.as_mut_ptr().cast(), eight);
        }
        packed
    }
}

/// `out[i] = op(a[i], b[i])`; without `a`, `out` is also the first operand.
///
/// # Safety
/// The CPU must support the instructions of the conversion.
#[inline(always)]
unsafe fn map_with<C: Convert>(
    out: &mut [u8],
    a: Option<&[u8]>,
    b: &[u8],
    op: impl Fn(f32, f32) -> f32,
) {
    let length = out.len().min(b.len()).min(a.map_or(usize::MAX, <[u8]>::len)) & !1;
    let mut at = 0;
    while at < length {
        // The last vector may be partial.
        let bytes = F16X8_BYTES.min(length - at);
        let range = at..at + bytes;
        let load = |from: &[u8]| {
            let mut eight = [0; F16X8_BYTES];
            match from.get(at..at + F16X8_BYTES) {
                Some(full) => eight.copy_from_slice(full),
                None => eight[..bytes].copy_from_slice(&from[range.clone()]),
            }
            eight
        };
        // SAFETY: as required of the caller.
        let (a, b) = unsafe { (C::to_f32(load(a.unwrap_or(out))), C::to_f32(load(b))) };
        // SAFETY: as required of the caller.
        let eight = unsafe { C::from_f32(std::array::from_fn(|i| op(a[i], b[i]))) };
        match out.get_mut(at..at + F16X8_BYTES) {
            Some(full) if bytes == F16X8_BYTES => full.copy_from_slice(&eight),
            _ => out[range].copy_from_slice(&eight[..bytes]),
        }
        at += F16X8_BYTES;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn map_f16c(out: &mut [u8], a: Option<&[u8]>, b: &[u8], op: impl Fn(f32, f32) -> f32) {
    // SAFETY: the target features of this function include those of the conversion.
    unsafe { map_with::<F16c>(out, a, b, op) }
}

fn map(out: &mut [u8], a: Option<&[u8]>, b: &[u8], op: impl Fn(f32, f32) -> f32) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        // SAFETY: the CPU supports these instructions.
        return unsafe { map_f16c(out, a, b, op) };
    }
    // SAFETY: the software conversion needs no special instructions.
    unsafe { map_with::<Software>(out, a, b, op) }
}

pub fn run<F: ReduceFn>(operands: Operands<'_>) {
    match operands {
        Operands::Into(into, from) => map(into, None, from, F::apply::<f32>),
        Operands::Two(out, a, b) => map(out, Some(a), b, F::apply::<f32>),
    }
}

pub fn divide(data: &mut [u8], by: u32) {
    const BLOCK: [u8; 512] = [0; 512];
    for block in data.chunks_mut(BLOCK.len()) {
        map(block, None, &BLOCK, |value, _| f32::div_by(value, by));
    }
}
