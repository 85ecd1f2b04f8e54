//! Non-temporal (streaming) copies, for data that another core reads next or that is not read soon.
//! They avoid the read for ownership, and the reader does not fetch the line from this core's cache.

/// Copies with streaming stores, which are ordered before later stores only by [`sfence`].
pub fn copy(out: &mut [u8], from: &[u8]) {
    let length = out.len().min(from.len());
    let (out, from) = (&mut out[..length], &from[..length]);
    #[cfg(target_arch = "x86_64")]
    if length >= LINE_BYTES && is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU supports these instructions.
        return unsafe { copy_avx2(out, from) };
    }
    out.copy_from_slice(from);
}

/// Orders streaming stores before all later stores.
#[inline]
pub fn sfence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn copy_avx2(out: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    let head = out.as_ptr().align_offset(LINE_BYTES).min(out.len());
    let (out_head, out) = out.split_at_mut(head);
    let (from_head, from) = from.split_at(head);
    out_head.copy_from_slice(from_head);
    let (out, out_tail) = out.as_chunks_mut::<LINE_BYTES>();
    let (from, from_tail) = from.as_chunks::<LINE_BYTES>();
    for (out, from) in out.iter_mut().zip(from) {
        let (out, from) = (out.as_mut_ptr().cast::<__m256i>(), from.as_ptr().cast::<__m256i>());
        // SAFETY: both are one cache line long, and the output is aligned to a line.
        unsafe {
            let (low, high) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            _mm256_stream_si256(out, low);
            _mm256_stream_si256(out.add(1), high);
        }
    }
    out_tail.copy_from_slice(from_tail);
}

#[cfg(test)]
mod tests {
    #[test]
    fn copies_unaligned_ranges_exactly() {
        for (start, length) in [(0, 0), (1, 63), (3, 64), (5, 1000), (64, 128), (63, 257)] {
            let from: Vec<u8> = (0..start + length).map(|i| i as u8).collect();
            let mut out = vec![0xff; length + 64];
            super::copy(&mut out[start % 64..][..length], &from[start..]);
            super::sfence();
            assert_eq!(out[start % 64..][..length], from[start..]);
            assert!(out[start % 64 + length..].iter().all(|b| *b == 0xff));
        }
    }
}
