//! Positions of tokens in device memory, uploaded once per micro-batch size.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use regatta_device::ops::{Device, TOKEN_DTYPE};
use regatta_device::tensor::Tensor;

/// Positions by batch size and sequence length.
#[derive(Debug, Default)]
pub struct PositionCache(Mutex<HashMap<(usize, usize), Arc<Tensor>>>);

impl PositionCache {
    /// The positions of a micro-batch; `positions` computes them on the first use of its size.
    pub fn get(
        &self,
        device: &dyn Device,
        size: (usize, usize),
        positions: impl FnOnce() -> Vec<u32>,
    ) -> Arc<Tensor> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let upload = || {
            let positions = positions();
            let mut tensor = device.zeros(positions.len(), TOKEN_DTYPE);
            device.copy_tokens_from_host(&positions, tensor.view_mut());
            Arc::new(tensor)
        };
        cached.entry(size).or_insert_with(upload).clone()
    }
}
