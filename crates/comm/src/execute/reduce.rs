//! Reductions of bytes, element by element.

use half::{bf16, f16};

use crate::{DType, ReduceOp};

/// Reduces elements with others, in place. An average is a sum until it is [`divide`]d.
pub fn reduce(dtype: DType, op: ReduceOp, into: &mut [u8], from: &[u8]) {
    macro_rules! integers {
        ($type:ty) => {
            match op {
                ReduceOp::Sum | ReduceOp::Average => each(into, from, |a, b| {
                    <$type>::from_ne_bytes(a).wrapping_add(<$type>::from_ne_bytes(b)).to_ne_bytes()
                }),
                ReduceOp::Product => each(into, from, |a, b| {
                    <$type>::from_ne_bytes(a).wrapping_mul(<$type>::from_ne_bytes(b)).to_ne_bytes()
                }),
                ReduceOp::Min => each(into, from, |a, b| {
                    <$type>::from_ne_bytes(a).min(<$type>::from_ne_bytes(b)).to_ne_bytes()
                }),
                ReduceOp::Max => each(into, from, |a, b| {
                    <$type>::from_ne_bytes(a).max(<$type>::from_ne_bytes(b)).to_ne_bytes()
                }),
            }
        };
    }
    macro_rules! floats {
        ($type:ty, $wide:ty, $read:expr, $write:expr) => {{
            let two = |a: [u8; size_of::<$type>()],
                       b: [u8; size_of::<$type>()],
                       f: fn($wide, $wide) -> $wide| {
                $write(f($read(<$type>::from_ne_bytes(a)), $read(<$type>::from_ne_bytes(b))))
                    .to_ne_bytes()
            };
            match op {
                ReduceOp::Sum | ReduceOp::Average => {
                    each(into, from, |a, b| two(a, b, |a, b| a + b))
                }
                ReduceOp::Product => each(into, from, |a, b| two(a, b, |a, b| a * b)),
                // What is not a number stays so.
                ReduceOp::Min => each(into, from, |a, b| {
                    two(a, b, |a, b| if a < b || a.is_nan() { a } else { b })
                }),
                ReduceOp::Max => each(into, from, |a, b| {
                    two(a, b, |a, b| if a > b || a.is_nan() { a } else { b })
                }),
            }
        }};
    }
    match dtype {
        DType::F16 => floats!(f16, f32, f16::to_f32, f16::from_f32),
        DType::Bf16 => floats!(bf16, f32, bf16::to_f32, bf16::from_f32),
        DType::F32 => floats!(f32, f32, std::convert::identity, std::convert::identity),
        DType::F64 => floats!(f64, f64, std::convert::identity, std::convert::identity),
        DType::I8 => integers!(i8),
        DType::I16 => integers!(i16),
        DType::I32 => integers!(i32),
        DType::I64 => integers!(i64),
        DType::U8 => integers!(u8),
    }
}

/// Makes an average of a sum: integers are rounded towards zero.
pub fn divide(dtype: DType, into: &mut [u8], ranks: u32) {
    let by = f64::from(ranks);
    macro_rules! integers {
        ($type:ty) => {
            one(into, |a| {
                ((<$type>::from_ne_bytes(a) as i64 / i64::from(ranks)) as $type).to_ne_bytes()
            })
        };
    }
    match dtype {
        DType::F16 => {
            one(into, |a| f16::from_f64(f16::from_ne_bytes(a).to_f64() / by).to_ne_bytes());
        }
        DType::Bf16 => {
            one(into, |a| bf16::from_f64(bf16::from_ne_bytes(a).to_f64() / by).to_ne_bytes());
        }
        DType::F32 => {
            one(into, |a| ((f64::from(f32::from_ne_bytes(a)) / by) as f32).to_ne_bytes());
        }
        DType::F64 => one(into, |a| (f64::from_ne_bytes(a) / by).to_ne_bytes()),
        DType::I8 => integers!(i8),
        DType::I16 => integers!(i16),
        DType::I32 => integers!(i32),
        DType::I64 => integers!(i64),
        DType::U8 => integers!(u8),
    }
}

fn each<const N: usize>(into: &mut [u8], from: &[u8], two: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (into, _) = into.as_chunks_mut::<N>();
    let (from, _) = from.as_chunks::<N>();
    for (a, b) in into.iter_mut().zip(from) {
        *a = two(*a, *b);
    }
}

fn one<const N: usize>(into: &mut [u8], one: impl Fn([u8; N]) -> [u8; N]) {
    for a in into.as_chunks_mut::<N>().0 {
        *a = one(*a);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::bytes_of;
    use crate::{Counts, Kind, reference};

    #[test]
    fn is_what_the_reference_says() {
        let (a, b) = ([1.5f32, f32::NAN, -2.0, 0.0], [0.25f32, 1.0, 7.0, f32::NAN]);
        let inputs = [bytes_of(&a).to_vec(), bytes_of(&b).to_vec()];
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let counts = Counts::Equal(16 / dtype.size());
                let right = reference::outputs(Kind::AllReduce, dtype, op, 0, &counts, &inputs);
                let mut got = inputs[0].clone();
                reduce(dtype, op, &mut got, &inputs[1]);
                if op == ReduceOp::Average {
                    divide(dtype, &mut got, 2);
                }
                // Of what is not a number the bits may differ.
                let float = matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
                assert!(float || got == right[0], "{dtype} {op}");
                if dtype == DType::F32 {
                    for (got, right) in got.chunks(4).zip(right[0].chunks(4)) {
                        let of = |b: &[u8]| f32::from_ne_bytes(b.try_into().unwrap());
                        assert!(got == right || (of(got).is_nan() && of(right).is_nan()), "{op}");
                    }
                }
            }
        }
    }
}
