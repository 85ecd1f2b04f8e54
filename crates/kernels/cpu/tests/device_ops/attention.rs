//! Attention of full sequences, and RoPE.

use regatta_device::ops::{
    AttentionDropout, AttentionSaved, AttentionShape, Device, RopeDirection,
};

use crate::embedding_loss::random_tokens;
use crate::gradient_check::{Operation, activation, master, nans};
use crate::host_copy::copy_to_f64;

/// Causal attention.
#[derive(Debug, Clone, Copy)]
pub struct CausalAttention {
    pub shape: AttentionShape,
    pub dropout: Option<AttentionDropout>,
}

impl CausalAttention {
    /// Output and log-sum-exp.
    fn forward_with_lse(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> (Vec<f64>, Vec<f64>) {
        let (shape, rows) = (self.shape, self.shape.rows());
        let qkv = activation(device, &inputs[0]);
        let mut y = activation(device, &nans(rows * shape.out_dim()));
        let mut lse = master(device, &nans(rows * shape.heads));
        device.attention(shape, qkv.view(), self.dropout, y.view_mut(), lse.view_mut());
        (copy_to_f64(device, y.view()), copy_to_f64(device, lse.view()))
    }
}

impl Operation for CausalAttention {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.shape.rows() * self.shape.qkv_dim()]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        self.forward_with_lse(device, inputs).0
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (y, lse) = self.forward_with_lse(device, inputs);
        let (qkv, y, dy) = (&inputs[0], activation(device, &y), activation(device, dy));
        let (qkv, lse) = (activation(device, qkv), master(device, &lse));
        let saved = AttentionSaved { qkv: qkv.view(), y: y.view(), lse: lse.view() };
        let mut dqkv = activation(device, &nans(qkv.len()));
        device.attention_backward(self.shape, saved, self.dropout, dy.view(), dqkv.view_mut());
        vec![copy_to_f64(device, dqkv.view())]
    }
}

/// RoPE.
#[derive(Debug, Clone, Copy)]
pub struct Rope {
    pub shape: AttentionShape,
    pub theta: f64,
    pub seed: u64,
}

impl Rope {
    fn rotate(&self, device: &dyn Device, qkv: &[f64], direction: RopeDirection) -> Vec<f64> {
        let mut qkv = activation(device, qkv);
        let positions = random_tokens(self.shape.seq_len, 60, self.seed);
        device.apply_rope(self.shape, self.theta, &positions, direction, qkv.view_mut());
        copy_to_f64(device, qkv.view())
    }
}

impl Operation for Rope {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.shape.rows() * self.shape.qkv_dim()]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        self.rotate(device, &inputs[0], RopeDirection::Forward)
    }

    fn backward(&self, device: &dyn Device, _: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        vec![self.rotate(device, dy, RopeDirection::Inverse)]
    }
}
