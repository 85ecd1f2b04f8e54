//! What is sent, so that what must come is known exactly.
//!
//! An element depends on its rank and its place, with a period that no part of a buffer is a multiple
//! of, and is a small whole number: every sum, product and so on of all ranks is one that the type
//! holds exactly, in whatever order it is reduced.

use half::{bf16, f16};
use regatta_comm::{DType, ReduceOp};

/// Elements after which it begins again: a prime, so that what lies in a wrong place is seen.
const PERIOD: usize = 4093;

/// Whose elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Those of a rank.
    Rank(u32),
    /// The reduction of those of all.
    All,
}

/// What all ranks send.
#[derive(Debug, Clone, Copy)]
pub struct Pattern {
    pub dtype: DType,
    /// How it is reduced, if it is.
    pub op: Option<ReduceOp>,
    pub ranks: u32,
}

/// One period of elements, as bytes.
pub struct Period {
    dtype: DType,
    bytes: Vec<u8>,
    /// By how much an element may differ, as a part of it.
    tolerance: f64,
}

impl Pattern {
    /// One period of what a rank sends, or of what all get.
    pub fn period(&self, whose: Whose) -> Period {
        let mut bytes = Vec::with_capacity(PERIOD * self.dtype.size());
        for place in 0..PERIOD {
            let value = match whose {
                Whose::Rank(rank) => self.value(rank, place) as f64,
                Whose::All => self.reduced(place),
            };
            encode(self.dtype, value, &mut bytes);
        }
        // A device may divide before it adds up, and then rounds at each rank.
        let averages = whose == Whose::All && self.op == Some(ReduceOp::Average);
        let roundings = f64::from(self.ranks) / 2.0 + 2.0;
        let tolerance = if averages { roundings * precision(self.dtype) } else { 0.0 };
        Period { dtype: self.dtype, bytes, tolerance }
    }

    /// What a rank sends at a place.
    fn value(&self, rank: u32, place: usize) -> u64 {
        let mixed = mix(u64::from(rank) * PERIOD as u64 + place as u64);
        let turn = (u64::from(rank) + place as u64) % u64::from(self.ranks);
        match self.op {
            None | Some(ReduceOp::Min | ReduceOp::Max) => mixed % 100,
            // At most six ranks have a two, and 64 is in every type.
            Some(ReduceOp::Product) => {
                if turn < 6 {
                    1 + mixed % 2
                } else {
                    1
                }
            }
            Some(ReduceOp::Sum | ReduceOp::Average) => {
                let (most, ranks) = (greatest(self.dtype), u64::from(self.ranks));
                match most / ranks {
                    // So many ranks that not all can have a one.
                    0 => u64::from(turn < most),
                    each => mixed % (each.min(15) + 1),
                }
            }
        }
    }

    /// What all ranks together have at a place.
    fn reduced(&self, place: usize) -> f64 {
        let all = (0..self.ranks).map(|rank| self.value(rank, place));
        let sum = |all: &mut dyn Iterator<Item = u64>| all.sum::<u64>();
        let whole = |number: f64| match self.dtype {
            DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => number,
            _ => number.trunc(),
        };
        match self.op.unwrap_or(ReduceOp::Sum) {
            ReduceOp::Sum => sum(&mut all.into_iter()) as f64,
            ReduceOp::Average => whole(sum(&mut all.into_iter()) as f64 / f64::from(self.ranks)),
            ReduceOp::Product => all.product::<u64>() as f64,
            ReduceOp::Min => all.min().unwrap_or(0) as f64,
            ReduceOp::Max => all.max().unwrap_or(0) as f64,
        }
    }
}

impl Period {
    /// Writes elements, of which the first is the one at `start`.
    pub fn fill(&self, to: &mut [u8], start: usize) {
        self.pieces(to.len(), start, |at, piece| {
            to[at..at + piece.len()].copy_from_slice(piece);
        });
    }

    /// How many elements are not as they should be.
    pub fn wrong(&self, got: &[u8], start: usize) -> u64 {
        let mut wrong = 0;
        self.pieces(got.len(), start, |at, piece| {
            let got = &got[at..at + piece.len()];
            if got != piece {
                let size = self.dtype.size();
                let pairs = got.chunks_exact(size).zip(piece.chunks_exact(size));
                wrong += pairs.filter(|(got, due)| self.differ(got, due)).count() as u64;
            }
        });
        wrong
    }

    fn differ(&self, got: &[u8], due: &[u8]) -> bool {
        let (got, due) = (decode(self.dtype, got), decode(self.dtype, due));
        let far = (got - due).abs() > self.tolerance * due.abs();
        far || got.is_nan()
    }

    /// Goes through so many bytes, piece by piece of the period.
    fn pieces(&self, bytes: usize, start: usize, mut each: impl FnMut(usize, &[u8])) {
        let (mut at, mut from) = (0, start % PERIOD * self.dtype.size());
        while at < bytes {
            let piece = &self.bytes[from..];
            let piece = &piece[..piece.len().min(bytes - at)];
            each(at, piece);
            at += piece.len();
            from = 0;
        }
    }
}

/// Spreads numbers that follow each other.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// The greatest whole number up to which a type has all.
fn greatest(dtype: DType) -> u64 {
    match dtype {
        DType::I8 => 127,
        DType::U8 => 255,
        DType::Bf16 => 256,
        DType::F16 => 2048,
        DType::I16 => 32767,
        DType::F32 | DType::F64 | DType::I32 | DType::I64 => 1 << 24,
    }
}

/// By what part of it a number of a type may be off.
fn precision(dtype: DType) -> f64 {
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

/// The number that these bytes are, which are as many as the type has.
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
        /// Whatever is reduced first, no step leaves what the type holds exactly.
        #[test]
        fn every_partial_result_is_exact(pattern in any_pattern(), place in 0..PERIOD) {
            let most = if pattern.op == Some(ReduceOp::Product) { 64 } else { greatest(pattern.dtype) };
            let all = (0..pattern.ranks).map(|rank| pattern.value(rank, place));
            let reached = match pattern.op {
                Some(ReduceOp::Sum | ReduceOp::Average) => all.sum::<u64>(),
                Some(ReduceOp::Product) => all.product::<u64>(),
                _ => all.max().unwrap_or(0),
            };
            prop_assert!(reached <= most, "{reached} of {pattern:?}");
        }

        #[test]
        fn what_is_filled_is_right_and_each_change_is_counted(
            pattern in any_pattern(), count in 1usize..20_000, start in 0usize..10_000,
            at in any::<prop::sample::Index>(),
        ) {
            let size = pattern.dtype.size();
            let period = pattern.period(Whose::Rank(0));
            let mut bytes = vec![0; count * size];
            period.fill(&mut bytes, start);
            prop_assert_eq!(period.wrong(&bytes, start), 0);
            let at = at.index(count);
            // The lowest bit of a float's exponent, or of a whole number.
            bytes[at * size + size - 1] ^= 1 << 6;
            prop_assert_eq!(period.wrong(&bytes, start), 1);
        }
    }

    #[test]
    fn ranks_and_places_differ() {
        let pattern = Pattern { dtype: DType::F32, op: None, ranks: 4 };
        let (one, other) = (pattern.period(Whose::Rank(1)), pattern.period(Whose::Rank(2)));
        let mut bytes = vec![0; 4 * 1000];
        one.fill(&mut bytes, 0);
        assert!(other.wrong(&bytes, 0) > 900 && one.wrong(&bytes, 1) > 900);
        assert!(one.wrong(&bytes, 256) > 900);
    }

    #[test]
    fn an_average_may_be_off_by_a_rounding() {
        let pattern = Pattern { dtype: DType::F32, op: Some(ReduceOp::Average), ranks: 3 };
        let due = pattern.period(Whose::All);
        let mut bytes = vec![0; 40];
        due.fill(&mut bytes, 0);
        let off = |bits: u32, by: u32| (bits + by).to_ne_bytes();
        let at = (0..10).find(|at| bytes[at * 4..at * 4 + 4] != [0; 4]).unwrap() * 4;
        let bits = u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        bytes[at..at + 4].copy_from_slice(&off(bits, 1));
        assert_eq!(due.wrong(&bytes, 0), 0);
        bytes[at..at + 4].copy_from_slice(&off(bits, 100));
        assert_eq!(due.wrong(&bytes, 0), 1);
    }
}
