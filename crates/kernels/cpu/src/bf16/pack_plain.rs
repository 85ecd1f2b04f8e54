//! Packing without any instructions in particular.

use std::ops::Range;

use half::bf16;

use super::convert::rounded;
use super::lines::{Line, WORDS};
use super::pack::{DEPTH, Rounds, Vector};

/// A number that is packed.
pub trait Number: Copy {
    /// As a brain float.
    fn bits(self) -> u16;
}

impl Number for f32 {
    #[inline(always)]
    fn bits(self) -> u16 {
        rounded(self)
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

/// A line of numbers that do not lie together.
pub fn gathered<N: Number>(numbers: &[N], at: usize, stride: usize, count: usize) -> Line {
    let bits = |i: usize| if i < count { u32::from(numbers[at + i * stride].bits()) } else { 0 };
    Line(std::array::from_fn(|word| bits(2 * word) | bits(2 * word + 1) << 16))
}

impl Vector for Line {
    #[inline(always)]
    unsafe fn of(line: Line) -> Self {
        line
    }

    #[inline(always)]
    unsafe fn transposed(block: [Self; WORDS]) -> [Self; WORDS] {
        let mut out = block;
        for (i, line) in block.iter().enumerate() {
            for (j, word) in line.0.iter().enumerate() {
                out[j].0[i] = *word;
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn write(self, to: &mut Line) {
        *to = self;
    }
}

impl<N: Number> Rounds<N> for Line {
    #[inline(always)]
    unsafe fn along(numbers: &[N], at: usize, count: usize) -> Self {
        let mut halves = [0; DEPTH];
        let numbers = numbers.get(at..at + count).unwrap_or_default();
        // Whole lines are the most, and their length is known to the compiler.
        if let Some(numbers) = numbers.first_chunk::<DEPTH>() {
            round_all(&mut halves, numbers);
        } else {
            round_all(&mut halves, numbers);
        }
        Self(std::array::from_fn(|i| u32::from(halves[2 * i]) | u32::from(halves[2 * i + 1]) << 16))
    }

    #[inline(always)]
    unsafe fn across(numbers: &[N], at: [usize; 2], count: [usize; 2]) -> Self {
        let mut line = Self::ZERO;
        let halves: [Range<usize>; 2] = [0, 1].map(|i| at[i]..at[i] + count[i]);
        for (shift, half) in [0, 16].into_iter().zip(halves) {
            for (word, number) in line.0.iter_mut().zip(numbers.get(half).unwrap_or_default()) {
                *word |= u32::from(number.bits()) << shift;
            }
        }
        line
    }
}

#[inline(always)]
fn round_all<N: Number>(halves: &mut [u16; DEPTH], numbers: &[N]) {
    for (half, number) in halves.iter_mut().zip(numbers) {
        *half = number.bits();
    }
}
