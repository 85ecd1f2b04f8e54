//! Rotary position embedding.

use std::sync::{Arc, Mutex, PoisonError};

use crate::Cpu;
use crate::isa::kernel;
use crate::lanes::WIDTH;
use crate::slice::{DisjointMut, SliceMut, load_padded};
use regatta_device::ops::{AttentionShape, RopeDirection};
use regatta_device::tensor::ViewMut;

/// Cached cosines and sines, which are expensive to compute.
#[derive(Debug, Default)]
pub struct RopeTable(Mutex<Arc<CosSin>>);

#[derive(Debug, Default)]
struct CosSin {
    theta: f64,
    half_dim: usize,
    /// Per position the cosines of all pairs, then their sines.
    values: Vec<f32>,
}

impl RopeTable {
    fn get(&self, theta: f64, half_dim: usize, positions: usize) -> Arc<CosSin> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let matches = table.theta == theta && table.half_dim == half_dim;
        if !matches || table.values.len() < positions * 2 * half_dim {
            *table = Arc::new(CosSin::new(theta, half_dim, positions.next_power_of_two()));
        }
        table.clone()
    }
}

impl CosSin {
    fn new(theta: f64, half_dim: usize, positions: usize) -> Self {
        let frequency = |pair: usize| theta.powf(-(pair as f64) / half_dim as f64);
        let frequencies: Vec<f64> = (0..half_dim).map(frequency).collect();
        let mut values = Vec::with_capacity(positions * 2 * half_dim);
        for position in 0..positions {
            let angles = frequencies.iter().map(|frequency| position as f64 * frequency);
            values.extend(angles.clone().map(|angle| angle.cos() as f32));
            values.extend(angles.map(|angle| angle.sin() as f32));
        }
        Self { theta, half_dim, values }
    }
}

impl Cpu {
    /// [`AttentionOps::apply_rope`](regatta_device::AttentionOps::apply_rope).
    pub(crate) fn rotate_qk(
        &self,
        shape: AttentionShape,
        theta: f64,
        positions: &[u32],
        direction: RopeDirection,
        qkv: ViewMut<'_>,
    ) {
        let (row_len, half_dim) = (shape.qkv_dim(), shape.head_dim / 2);
        assert!(shape.head_dim.is_multiple_of(2), "RoPE needs an even head_dim");
        assert_eq!(qkv.len(), shape.rows() * row_len, "qkv does not have the given shape");
        assert_eq!(positions.len(), shape.seq_len, "RoPE needs one position per token");
        if qkv.is_empty() || half_dim == 0 {
            return;
        }
        let rotated = (shape.heads + shape.kv_heads) * shape.head_dim;
        let last = positions.iter().max().map_or(0, |last| *last as usize);
        let table = self.rope_table.get(theta, half_dim, last + 1);
        let qkv = DisjointMut::new(qkv);
        self.for_each_row(shape.rows(), row_len, |row| {
            // SAFETY: rows are disjoint.
            let qk = unsafe { qkv.slice(row * row_len..row * row_len + rotated) };
            let position = positions[row % shape.seq_len] as usize;
            let cos_sin = position * 2 * half_dim..(position + 1) * 2 * half_dim;
            let (cos, sin) = table.values[cos_sin].split_at(half_dim);
            rope_kernel(self.isa, direction, cos, sin, qk);
        });
    }
}

kernel! {
    /// Rotates all heads of a row.
    fn rope_kernel<V>(direction: RopeDirection, cos: &[f32], sin: &[f32], heads: SliceMut<'_>) {
        let half_dim = cos.len();
        let sign = V::splat(if direction == RopeDirection::Forward { 1.0 } else { -1.0 });
        for head in (0..heads.len()).step_by(2 * half_dim) {
            let halves = [head..head + half_dim, head + half_dim..head + 2 * half_dim];
            for at in (0..half_dim).step_by(WIDTH) {
                let (cos, sin): (V, V) = (load_padded(cos, at), load_padded::<V>(sin, at).mul(sign));
                let first: V = heads.slice(halves[0].clone()).load_padded(at);
                let second: V = heads.slice(halves[1].clone()).load_padded(at);
                let rotated = first.mul(cos).sub(second.mul(sin));
                heads.slice(halves[0].clone()).store_partial(at, rotated);
                let rotated = second.mul(cos).add(first.mul(sin));
                heads.slice(halves[1].clone()).store_partial(at, rotated);
            }
        }
    }
}
