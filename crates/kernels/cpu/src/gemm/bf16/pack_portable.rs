//! Packing without particular instructions.

use std::ops::Range;

use super::aligned_lines::{CacheLine, WORDS};
use super::convert::Element;
use super::pack::{DEPTH, LineVector, LoadLine};

/// A line of strided elements.
pub fn gather_line<T: Element>(
    elements: &[T],
    at: usize,
    stride: usize,
    count: usize,
) -> CacheLine {
    let bits = |i: usize| {
        if i < count { u32::from(elements[at + i * stride].to_bf16_bits()) } else { 0 }
    };
    CacheLine(std::array::from_fn(|word| bits(2 * word) | bits(2 * word + 1) << 16))
}

impl LineVector for CacheLine {
    #[inline(always)]
    unsafe fn from_line(line: CacheLine) -> Self {
        line
    }

    #[inline(always)]
    unsafe fn transpose(block: [Self; WORDS]) -> [Self; WORDS] {
        let mut out = block;
        for (i, line) in block.iter().enumerate() {
            for (j, word) in line.0.iter().enumerate() {
                out[j].0[i] = *word;
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn store(self, to: &mut CacheLine) {
        *to = self;
    }
}

impl<T: Element> LoadLine<T> for CacheLine {
    #[inline(always)]
    unsafe fn load_along_k(elements: &[T], at: usize, count: usize) -> Self {
        let mut bits = [0; DEPTH];
        let elements = elements.get(at..at + count).unwrap_or_default();
        // Most lines are full, and their length is then a constant.
        if let Some(elements) = elements.first_chunk::<DEPTH>() {
            round_all(&mut bits, elements);
        } else {
            round_all(&mut bits, elements);
        }
        Self(std::array::from_fn(|i| u32::from(bits[2 * i]) | u32::from(bits[2 * i + 1]) << 16))
    }

    #[inline(always)]
    unsafe fn load_across_lanes(elements: &[T], at: [usize; 2], count: [usize; 2]) -> Self {
        let mut line = Self::ZERO;
        let halves: [Range<usize>; 2] = [0, 1].map(|i| at[i]..at[i] + count[i]);
        for (shift, half) in [0, 16].into_iter().zip(halves) {
            for (word, element) in line.0.iter_mut().zip(elements.get(half).unwrap_or_default()) {
                *word |= u32::from(element.to_bf16_bits()) << shift;
            }
        }
        line
    }
}

#[inline(always)]
fn round_all<T: Element>(bits: &mut [u16; DEPTH], elements: &[T]) {
    for (bits, element) in bits.iter_mut().zip(elements) {
        *bits = element.to_bf16_bits();
    }
}
