//! Attention: by cuDNN, by own kernels on tensor cores, or by generic kernels.

mod backend;

use regatta_comm::DType;
use regatta_device::AttentionOps;
use regatta_device::ops::{
    AttentionArgs, AttentionBackwardArgs, AttentionChunkArgs, AttentionChunkBackwardArgs,
    AttentionSaved, AttentionShape, DecodeAttentionArgs, RopeArgs,
};
use regatta_device::tensor::View;

use crate::cudnn::Pass;
use crate::flash::{BackwardInputs, Grads, Problem, packed_offsets};
use crate::{CudaDevice, Ptr};
use backend::{Backend, Request};

impl AttentionOps for CudaDevice {
    fn attention(&self, args: AttentionArgs<'_>) {
        let AttentionArgs { shape, qkv, dropout, y, lse } = args;
        shape.check_lengths(qkv.len(), y.len(), lse.len());
        let problem = Problem::packed(shape, qkv, dropout);
        let others = [(Ptr::of_mut(&y), y.dtype() == DType::Bf16)];
        self.forward_by_backend(problem, Some(shape), &others, y.view(), lse.view());
    }

    fn attention_backward(&self, args: AttentionBackwardArgs<'_>) {
        let AttentionBackwardArgs { shape, saved, dropout, dy, dqkv } = args;
        let AttentionSaved { qkv, y, lse } = saved;
        shape.check_lengths(qkv.len(), y.len(), lse.len());
        shape.check_lengths(dqkv.len(), dy.len(), lse.len());
        let problem = Problem::packed(shape, qkv, dropout);
        let (dq, dtype, stride) = (Ptr::of_mut(&dqkv), dqkv.dtype(), shape.qkv_dim());
        let [dk, dv] = packed_offsets(shape).map(|at| dq.offset_bytes(at * dtype.size()));
        let grads = Grads { dq, dk, dv, dtype, dq_stride: stride, dkv_stride: stride };
        let others = [
            (Ptr::of(dy), dy.dtype() == DType::Bf16),
            (dq, dtype == DType::Bf16),
            (Ptr::of(y), true),
        ];
        // cuDNN's output is bf16, too.
        let packed = (y.dtype() == DType::Bf16).then_some(shape);
        self.backward_by_backend(problem, packed, &others, BackwardInputs { y, dy, lse }, grads);
    }

    fn attention_chunk(&self, args: AttentionChunkArgs<'_>) {
        let AttentionChunkArgs { shape, q, kv, dropout, y, lse } = args;
        shape.check_lengths(q.len(), kv.len(), y.len(), lse.len());
        let problem = Problem::chunk(shape, q, kv, dropout);
        let others = [(Ptr::of_mut(&y), y.dtype() == DType::F32)];
        self.forward_by_backend(problem, None, &others, y.view(), lse.view());
    }

    fn attention_chunk_backward(&self, args: AttentionChunkBackwardArgs<'_>) {
        let AttentionChunkBackwardArgs { shape, q, kv, y, lse, dropout, dy, dq, dkv } = args;
        shape.check_lengths(q.len(), kv.len(), y.len(), lse.len());
        shape.check_lengths(dq.len(), dkv.len(), dy.len(), lse.len());
        assert_eq!(dq.dtype(), dkv.dtype(), "the dtypes of dq and dkv differ");
        let problem = Problem::chunk(shape, q, kv, dropout);
        let (dtype, dk) = (dq.dtype(), Ptr::of_mut(&dkv));
        let values_at = shape.kv_heads * shape.head_dim * dtype.size();
        let grads = Grads {
            dq: Ptr::of_mut(&dq),
            dk,
            dv: dk.offset_bytes(values_at),
            dtype,
            dq_stride: shape.out_dim(),
            dkv_stride: shape.kv_dim(),
        };
        let is_f32 = dtype == DType::F32;
        let others = [(Ptr::of(dy), dy.dtype() == DType::Bf16), (grads.dq, is_f32), (dk, is_f32)];
        self.backward_by_backend(problem, None, &others, BackwardInputs { y, dy, lse }, grads);
    }

    fn decode_attention(&self, args: DecodeAttentionArgs<'_>) {
        self.decode(args);
    }

    fn apply_rope(&self, args: RopeArgs<'_>) {
        self.rope(args);
    }
}

impl CudaDevice {
    /// The forward pass by the fastest kernels. Queries, keys and values are packed if there is a shape for
    /// that; `others` are the other tensors, as in [`Request`].
    fn forward_by_backend(
        &self,
        problem: Problem,
        packed: Option<AttentionShape>,
        others: &[(Ptr, bool)],
        y: View<'_>,
        lse: View<'_>,
    ) {
        assert!(lse.dtype() == DType::F32, "lse is f32");
        let problem = self.bind_mask(problem);
        if problem.is_empty() || self.has_failed() {
            return;
        }
        let packed = packed.map(|shape| (Pass::Forward, shape));
        match self.attention_backend_for(&Request { problem: &problem, packed, others }) {
            Some(Backend::Cudnn { shape, workspace_bytes }) => {
                self.cudnn_forward(shape, &problem, y, lse, workspace_bytes);
            }
            Some(Backend::Flash) => self.flash_forward(&problem, y, lse),
            Some(Backend::Generic) => self.generic_forward(&problem, y, lse),
            None => {}
        }
    }

    /// The backward pass, as [`Self::forward_by_backend`].
    fn backward_by_backend(
        &self,
        problem: Problem,
        packed: Option<AttentionShape>,
        others: &[(Ptr, bool)],
        inputs: BackwardInputs<'_>,
        grads: Grads,
    ) {
        assert!(inputs.lse.dtype() == DType::F32, "lse is f32");
        let problem = self.bind_mask(problem);
        if problem.is_empty() || self.has_failed() {
            return;
        }
        let packed = packed.map(|shape| (Pass::Backward, shape));
        match self.attention_backend_for(&Request { problem: &problem, packed, others }) {
            Some(Backend::Cudnn { shape, workspace_bytes }) => {
                self.cudnn_backward(shape, &problem, inputs, grads, workspace_bytes);
            }
            Some(Backend::Flash) => self.flash_backward(&problem, inputs, grads),
            Some(Backend::Generic) => self.generic_backward(&problem, inputs, grads),
            None => {}
        }
    }
}
