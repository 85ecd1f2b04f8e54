//! Test data whose reduction is known exactly.
//!
//! An element depends on its rank and index, with a prime period that no chunk is a multiple of.
//! Values are small integers, so every partial reduction over all ranks is exact in every type and
//! in any order.

use half::{bf16, f16};
use regatta_comm::{DType, ReduceOp};

/// Period of the pattern: a prime, so that misplaced data is detected.
const PERIOD: usize = 4093;

/// Origin of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Data of one rank.
    Rank(u32),
    /// The reduction over all ranks.
    All,
}

/// The data of all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Pattern {
    pub dtype: DType,
    /// Reduction operator, if the operation reduces.
    pub op: Option<ReduceOp>,
    pub ranks: u32,
}

/// One period of elements, encoded.
pub struct Period {
    dtype: DType,
    bytes: Vec<u8>,
    /// Relative tolerance of an element.
    tolerance: f64,
}

impl Pattern {
    /// One period of a rank's data, or of the reduction.
    pub fn period(&self, owner: Owner) -> Period {
        let mut bytes = Vec::with_capacity(PERIOD * self.dtype.size());
        for index in 0..PERIOD {
            let value = match owner {
                Owner::Rank(rank) => self.value(rank, index) as f64,
                Owner::All => self.reduced(index),
            };
            encode(self.dtype, value, &mut bytes);
        }
        // A device may divide before it sums, and then rounds on every rank.
        let averages = owner == Owner::All && self.op == Some(ReduceOp::Average);
        let roundings = f64::from(self.ranks) / 2.0 + 2.0;
        let tolerance = if averages { roundings * epsilon(self.dtype) } else { 0.0 };
        Period { dtype: self.dtype, bytes, tolerance }
    }

    /// The element of a rank at an index.
    fn value(&self, rank: u32, index: usize) -> u64 {
        let mixed = hash(u64::from(rank) * PERIOD as u64 + index as u64);
        let turn = (u64::from(rank) + index as u64) % u64::from(self.ranks);
        match self.op {
            None | Some(ReduceOp::Min | ReduceOp::Max) => mixed % 100,
            // At most six ranks contribute a 2: 64 is exact in every type.
            Some(ReduceOp::Product) if turn >= 6 => 1,
            Some(ReduceOp::Product) => 1 + mixed % 2,
            Some(ReduceOp::Sum | ReduceOp::Average) => {
                let (max, ranks) = (max_exact_integer(self.dtype), u64::from(self.ranks));
                match max / ranks {
                    // More ranks than the type can count: some contribute 0.
                    0 => u64::from(turn < max),
                    each => mixed % (each.min(15) + 1),
                }
            }
        }
    }

    /// The reduction over all ranks at an index.
    fn reduced(&self, index: usize) -> f64 {
        let all = (0..self.ranks).map(|rank| self.value(rank, index));
        let truncate = |mean: f64| if epsilon(self.dtype) > 0.0 { mean } else { mean.trunc() };
        match self.op.unwrap_or(ReduceOp::Sum) {
            ReduceOp::Sum => all.sum::<u64>() as f64,
            ReduceOp::Average => truncate(all.sum::<u64>() as f64 / f64::from(self.ranks)),
            ReduceOp::Product => all.product::<u64>() as f64,
            ReduceOp::Min => all.min().unwrap_or(0) as f64,
            ReduceOp::Max => all.max().unwrap_or(0) as f64,
        }
    }
}

impl Period {
    /// Writes elements, starting with the one at index `start`.
    pub fn fill(&self, to: &mut [u8], start: usize) {
        self.for_each_chunk(to.len(), start, |at, chunk| {
            to[at..at + chunk.len()].copy_from_slice(chunk);
        });
    }

    /// Counts elements that differ from the pattern.
    pub fn count_wrong(&self, received: &[u8], start: usize) -> u64 {
        let mut wrong = 0;
        self.for_each_chunk(received.len(), start, |at, chunk| {
            let received = &received[at..at + chunk.len()];
            if received != chunk {
                let size = self.dtype.size();
                let pairs = received.chunks_exact(size).zip(chunk.chunks_exact(size));
                wrong += pairs.filter(|(received, own)| self.differ(received, own)).count() as u64;
            }
        });
        wrong
    }

    fn differ(&self, received: &[u8], expected: &[u8]) -> bool {
        let (received, expected) = (decode(self.dtype, received), decode(self.dtype, expected));
        let far = (received - expected).abs() > self.tolerance * expected.abs();
        far || received.is_nan()
    }

    /// Splits a range of bytes at the period's boundaries.
    fn for_each_chunk(&self, bytes: usize, start: usize, mut each: impl FnMut(usize, &[u8])) {
        let (mut at, mut from) = (0, start % PERIOD * self.dtype.size());
        while at < bytes {
            let chunk = &self.bytes[from..];
            let chunk = &chunk[..chunk.len().min(bytes - at)];
            each(at, chunk);
            at += chunk.len();
            from = 0;
        }
    }
}

/// Decorrelates consecutive integers.
fn hash(number: u64) -> u64 {
    let mixed = (number ^ (number >> 15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// All integers up to this are exact in the type.
fn max_exact_integer(dtype: DType) -> u64 {
    match dtype {
        DType::I8 => 127,
        DType::U8 => 255,
        DType::Bf16 => 256,
        DType::F16 => 2048,
        DType::I16 => 32767,
        DType::F32 | DType::F64 | DType::I32 | DType::I64 => 1 << 24,
    }
}

/// Relative rounding error of a type; 0 for integers.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::Bf16 => 2f64.powi(-7),
        DType::F32 => 2f64.powi(-23),
        DType::F64 => 2f64.powi(-52),
        _ => 0.0,
    }
}

fn encode(dtype: DType, value: f64, to: &mut Vec<u8>) {
    match dtype {
        DType::F16 => to.extend(f16::from_f64(value).to_ne_bytes()),
        DType::Bf16 => to.extend(bf16::from_f64(value).to_ne_bytes()),
        DType::F32 => to.extend((value as f32).to_ne_bytes()),
        DType::F64 => to.extend(value.to_ne_bytes()),
        DType::I8 => to.extend((value as i8).to_ne_bytes()),
        DType::I16 => to.extend((value as i16).to_ne_bytes()),
        DType::I32 => to.extend((value as i32).to_ne_bytes()),
        DType::I64 => to.extend((value as i64).to_ne_bytes()),
        DType::U8 => to.push(value as u8),
    }
}

/// Decodes one element.
fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        let mut all = [0; N];
        all.copy_from_slice(bytes);
        all
    }
    match dtype {
        DType::F16 => f16::from_ne_bytes(array(bytes)).to_f64(),
        DType::Bf16 => bf16::from_ne_bytes(array(bytes)).to_f64(),
        DType::F32 => f64::from(f32::from_ne_bytes(array(bytes))),
        DType::F64 => f64::from_ne_bytes(array(bytes)),
        DType::I8 => f64::from(i8::from_ne_bytes(array(bytes))),
        DType::I16 => f64::from(i16::from_ne_bytes(array(bytes))),
        DType::I32 => f64::from(i32::from_ne_bytes(array(bytes))),
        DType::I64 => i64::from_ne_bytes(array(bytes)) as f64,
        DType::U8 => f64::from(bytes[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_pattern() -> impl Strategy<Value = Pattern> {
        let op = prop_oneof![
            Just(None),
            (0..ReduceOp::ALL.len()).prop_map(|at| Some(ReduceOp::ALL[at]))
        ];
        (0..DType::ALL.len(), op, prop_oneof![1u32..20, 100u32..300, Just(5000)])
            .prop_map(|(at, op, ranks)| Pattern { dtype: DType::ALL[at], op, ranks })
    }

    proptest! {
        /// No order of reduction leaves the exact range of the type.
        #[test]
        fn partial_reductions_are_exact(pattern in any_pattern(), index in 0..PERIOD) {
            let max = if pattern.op == Some(ReduceOp::Product) { 64 } else { max_exact_integer(pattern.dtype) };
            let all = (0..pattern.ranks).map(|rank| pattern.value(rank, index));
            let reached = match pattern.op {
                Some(ReduceOp::Sum | ReduceOp::Average) => all.sum::<u64>(),
                Some(ReduceOp::Product) => all.product::<u64>(),
                _ => all.max().unwrap_or(0),
            };
            prop_assert!(reached <= max, "{reached} of {pattern:?}");
        }

        #[test]
        fn filled_buffers_are_correct_and_a_flipped_bit_is_counted(
            pattern in any_pattern(), count in 1usize..20_000, start in 0usize..10_000,
            at in any::<prop::sample::Index>(),
        ) {
            let size = pattern.dtype.size();
            let period = pattern.period(Owner::Rank(0));
            let mut bytes = vec![0; count * size];
            period.fill(&mut bytes, start);
            prop_assert_eq!(period.count_wrong(&bytes, start), 0);
            let at = at.index(count);
            // The lowest exponent bit of a float, or a bit of an integer.
            bytes[at * size + size - 1] ^= 1 << 6;
            prop_assert_eq!(period.count_wrong(&bytes, start), 1);
        }
    }

    #[test]
    fn pattern_depends_on_rank_and_index() {
        let pattern = Pattern { dtype: DType::F32, op: None, ranks: 4 };
        let (one, other) = (pattern.period(Owner::Rank(1)), pattern.period(Owner::Rank(2)));
        let mut bytes = vec![0; 4 * 1000];
        one.fill(&mut bytes, 0);
        assert!(other.count_wrong(&bytes, 0) > 900 && one.count_wrong(&bytes, 1) > 900);
        assert!(one.count_wrong(&bytes, 256) > 900);
    }

    #[test]
    fn averages_tolerate_one_rounding_error() {
        let pattern = Pattern { dtype: DType::F32, op: Some(ReduceOp::Average), ranks: 3 };
        let expected = pattern.period(Owner::All);
        let mut bytes = vec![0; 40];
        expected.fill(&mut bytes, 0);
        let add_ulps = |bits: u32, by: u32| (bits + by).to_ne_bytes();
        let at = (0..10).find(|at| bytes[at * 4..at * 4 + 4] != [0; 4]).unwrap() * 4;
        let bits = u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        bytes[at..at + 4].copy_from_slice(&add_ulps(bits, 1));
        assert_eq!(expected.count_wrong(&bytes, 0), 0);
        bytes[at..at + 4].copy_from_slice(&add_ulps(bits, 100));
        assert_eq!(expected.count_wrong(&bytes, 0), 1);
    }
}
