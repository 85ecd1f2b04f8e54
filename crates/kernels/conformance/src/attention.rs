//! Attention of full sequences and of one token, and RoPE.

use regatta_device::ops::{
    AttentionArgs, AttentionBackwardArgs, AttentionDropout, AttentionSaved, AttentionShape,
    DecodeAttentionArgs, Device, RopeArgs, RopeDirection,
};

use crate::embedding_loss::random_tokens;
use crate::gradient_check::{Operation, assert_close, exact_values};
use crate::guarded::{Guarded, activation, activation_output, master_output};
use crate::host_copy::tokens;

/// Causal attention.
#[derive(Debug, Clone, Copy)]
pub struct CausalAttention {
    /// Shape.
    pub shape: AttentionShape,
    /// Dropout.
    pub dropout: Option<AttentionDropout>,
}

impl CausalAttention {
    /// Input, output and log-sum-exp.
    fn forward_with_lse(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> [Guarded; 3] {
        let (shape, rows) = (self.shape, self.shape.rows());
        let qkv = activation(device, &inputs[0]);
        let mut y = activation_output(device, rows * shape.out_dim());
        let mut lse = master_output(device, rows * shape.heads);
        device.attention(AttentionArgs {
            shape,
            qkv: qkv.view(),
            dropout: self.dropout,
            y: y.view_mut(),
            lse: lse.view_mut(),
        });
        [qkv, y, lse]
    }
}

impl Operation for CausalAttention {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.shape.rows() * self.shape.qkv_dim()]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let [_, y, _] = self.forward_with_lse(device, inputs);
        y.read(device)
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let [qkv, y, lse] = self.forward_with_lse(device, inputs);
        let (dy, mut dqkv) = (activation(device, dy), activation_output(device, qkv.len()));
        let saved = AttentionSaved { qkv: qkv.view(), y: y.view(), lse: lse.view() };
        let (shape, dropout) = (self.shape, self.dropout);
        let (dy, to) = (dy.view(), dqkv.view_mut());
        let args = AttentionBackwardArgs { shape, saved, dropout, dy, dqkv: to };
        device.attention_backward(args);
        vec![dqkv.read(device)]
    }
}

/// RoPE.
#[derive(Debug, Clone, Copy)]
pub struct Rope {
    /// Shape.
    pub shape: AttentionShape,
    /// Base of the wavelengths.
    pub theta: f64,
    /// Seed of the positions.
    pub seed: u64,
}

impl Rope {
    fn rotate(&self, device: &dyn Device, qkv: &[f64], direction: RopeDirection) -> Vec<f64> {
        let mut qkv = activation(device, qkv);
        let positions = tokens(device, &random_tokens(self.shape.seq_len, 60, self.seed));
        device.apply_rope(RopeArgs {
            shape: self.shape,
            theta: self.theta,
            positions: positions.view(),
            direction,
            qkv: qkv.view_mut(),
        });
        qkv.read(device)
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

/// Asserts that decoding gives the last row of attention to all tokens of one sequence.
pub fn check_decode_attention(
    device: &dyn Device,
    shape: &AttentionShape,
    seed: u64,
    tolerance: f64,
) {
    let shape = AttentionShape { batch: 1, ..*shape };
    let qkv = exact_values(shape.seq_len * shape.qkv_dim(), seed);
    let full = CausalAttention { shape, dropout: None };
    let expected = full.forward(device, std::slice::from_ref(&qkv));
    let (q_dim, k_dim) = (shape.out_dim(), shape.kv_heads * shape.head_dim);
    let rows = || qkv.chunks_exact(shape.qkv_dim());
    let columns = |first: usize, count: usize| -> Vec<f64> {
        rows().flat_map(|row| row[first..first + count].to_vec()).collect()
    };
    let q = activation(device, &rows().next_back().unwrap()[..q_dim]);
    let k = activation(device, &columns(q_dim, k_dim));
    let v = activation(device, &columns(q_dim + k_dim, k_dim));
    let mut y = activation_output(device, q_dim);
    let (q, keys, values, to) = (q.view(), k.view(), v.view(), y.view_mut());
    device.decode_attention(DecodeAttentionArgs { shape, q, keys, values, y: to });
    let last = &expected[expected.len() - q_dim..];
    assert_close(&y.read(device), last, tolerance, &format!("decode_attention of {shape:?}"));
}
