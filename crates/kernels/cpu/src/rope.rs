//! Rotary position embedding.

use std::sync::{Arc, Mutex, PoisonError};

use crate::isa::kernel;
use crate::lanes::WIDTH;
use crate::slice::{SliceMut, load_padded};
use regatta_device::ops::RopeDirection;

/// Cached cosines and sines, which are expensive to compute.
#[derive(Debug, Default)]
pub struct RopeTable(Mutex<Arc<CosSin>>);

/// Cosines and sines of the angles of all positions.
#[derive(Debug, Default)]
pub struct CosSin {
    theta: f64,
    half_dim: usize,
    /// Per position the cosines of all pairs, then their sines.
    pub values: Vec<f32>,
}

impl RopeTable {
    /// At least `positions` positions.
    pub fn get(&self, theta: f64, half_dim: usize, positions: usize) -> Arc<CosSin> {
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

kernel! {
    /// Rotates all heads of a row.
    pub fn rope_kernel<V>(direction: RopeDirection, cos: &[f32], sin: &[f32], heads: SliceMut<'_>) {
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
