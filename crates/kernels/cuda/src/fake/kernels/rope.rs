//! `rope.cu`.

use super::super::launch::Launch;
use super::{Run, VECTOR};

pub(super) fn kernel(operation: &str) -> Option<Run> {
    (operation == "rope").then_some(rope)
}

/// `THREADS` of the source.
const THREADS: usize = 256;

/// A block has a position of every `blocks[1]`-th sequence.
fn rope(launch: &Launch<'_>) {
    launch.assert_threads(THREADS);
    let mut args = launch.args();
    let (qkv, positions) = (args.ptr(), args.ptr());
    let (batch, seq_len, heads) = (args.size32(), args.size32(), args.size32());
    let (head_dim, row_len, exponent) = (args.size32(), args.size(), args.f64());
    let (sign, is_vectorised) = (args.f32(), args.flag());
    let (half, width) = (head_dim / 2, if is_vectorised { VECTOR } else { 1 });
    let positions = launch.values::<i32>(positions, launch.blocks[0]);
    let qkv = launch.array(qkv, launch.dtypes[0], batch * seq_len * row_len);
    assert!(launch.shared_bytes >= 2 * half * size_of::<f32>(), "shared memory");
    assert!(half.is_multiple_of(width), "{half} pairs in vectors of {width}");
    for token in 0..launch.blocks[0] {
        let rotations: Vec<(f32, f32)> = (0..half)
            .map(|i| {
                let frequency = (i as f64 * exponent).exp2();
                let angle = f64::from(positions.get(token)) * frequency;
                (angle.cos() as f32, sign * angle.sin() as f32)
            })
            .collect();
        for (sequence, head) in (0..batch).flat_map(|at| (0..heads).map(move |head| (at, head))) {
            let start = (sequence * seq_len + token) * row_len + head * head_dim;
            qkv.assert_vector(start, width);
            qkv.assert_vector(start + half, width);
            for (i, (cosine, sine)) in rotations.iter().enumerate() {
                let (a, b) = (qkv.get(start + i), qkv.get(start + half + i));
                qkv.set(start + i, a * cosine - b * sine);
                qkv.set(start + half + i, b * cosine + a * sine);
            }
        }
    }
}
