//! Attention: by cuDNN, by own kernels on tensor cores, or by generic kernels.

mod backend;

use regatta_comm::DType;
use regatta_device::AttentionOps;
use regatta_device::ops::{
    AttentionChunkSaved, AttentionChunkShape, AttentionDropout, AttentionSaved, AttentionShape,
    RopeDirection,
};
use regatta_device::tensor::{View, ViewMut};

use crate::cudnn::Pass;
use crate::flash::{
    BackwardInputs, DecodeOperands, ForwardOutputs, Grads, Problem, packed_offsets,
};
use crate::{CudaDevice, Ptr};
use backend::{Backend, Request};

impl AttentionOps for CudaDevice {
    fn attention(
        &self,
        shape: AttentionShape,
        qkv: View<'_>,
        dropout: Option<AttentionDropout>,
        y: ViewMut<'_>,
        lse: ViewMut<'_>,
    ) {
        let problem = self.bind_mask(Problem::packed(shape, qkv, dropout));
        let outputs = forward_outputs(&problem, &y, &lse);
        if problem.is_empty() || self.has_failed() {
            return;
        }
        let request = Request {
            problem: &problem,
            packed: Some((Pass::Forward, shape)),
            others: &[(outputs.y, outputs.y_dtype == DType::Bf16)],
        };
        match self.attention_backend_for(&request) {
            Some(Backend::Cudnn { workspace_bytes }) => {
                self.cudnn_forward(shape, &problem, outputs, workspace_bytes);
            }
            Some(Backend::Flash) => self.flash_forward(&problem, outputs),
            Some(Backend::Generic) => self.generic_forward(&problem, outputs),
            None => {}
        }
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        saved: AttentionSaved<'_>,
        dropout: Option<AttentionDropout>,
        dy: View<'_>,
        dqkv: ViewMut<'_>,
    ) {
        let problem = self.bind_mask(Problem::packed(shape, saved.qkv, dropout));
        let inputs = backward_inputs(&problem, saved.y, saved.lse, dy);
        assert_eq!(dqkv.len(), saved.qkv.len(), "dqkv does not have the shape");
        let (dq, dtype, stride) = (Ptr::of_mut(&dqkv), dqkv.dtype(), shape.qkv_dim());
        let [dk, dv] = packed_offsets(shape).map(|at| dq.offset_bytes(at * dtype.size()));
        let grads = Grads { dq, dk, dv, dtype, dq_stride: stride, dkv_stride: stride };
        if problem.is_empty() || self.has_failed() {
            return;
        }
        let others = [
            (inputs.dy, inputs.dy_dtype == DType::Bf16),
            (dq, dtype == DType::Bf16),
            (inputs.y, true),
        ];
        // cuDNN's output is bf16, too.
        let packed = (inputs.y_dtype == DType::Bf16).then_some((Pass::Backward, shape));
        let request = Request { problem: &problem, packed, others: &others };
        match self.attention_backend_for(&request) {
            Some(Backend::Cudnn { workspace_bytes }) => {
                self.cudnn_backward(shape, &problem, inputs, grads, workspace_bytes);
            }
            Some(Backend::Flash) => self.flash_backward(&problem, inputs, grads),
            Some(Backend::Generic) => self.generic_backward(&problem, inputs, grads),
            None => {}
        }
    }

    fn attention_chunk(
        &self,
        shape: AttentionChunkShape,
        q: View<'_>,
        kv: View<'_>,
        dropout: Option<AttentionDropout>,
        y: ViewMut<'_>,
        lse: ViewMut<'_>,
    ) {
        let problem = self.bind_mask(Problem::chunk(shape, q, kv, dropout));
        let outputs = forward_outputs(&problem, &y, &lse);
        if problem.is_empty() || self.has_failed() {
            return;
        }
        let others = [(outputs.y, outputs.y_dtype == DType::F32)];
        let request = Request { problem: &problem, packed: None, others: &others };
        match self.attention_backend_for(&request) {
            Some(Backend::Flash) => self.flash_forward(&problem, outputs),
            Some(_) => self.generic_forward(&problem, outputs),
            None => {}
        }
    }

    fn attention_chunk_backward(
        &self,
        shape: AttentionChunkShape,
        saved: AttentionChunkSaved<'_>,
        dropout: Option<AttentionDropout>,
        dy: View<'_>,
        dq: ViewMut<'_>,
        dkv: ViewMut<'_>,
    ) {
        let problem = self.bind_mask(Problem::chunk(shape, saved.q, saved.kv, dropout));
        let inputs = backward_inputs(&problem, saved.y, saved.lse, dy);
        assert_eq!(dq.len(), saved.q.len(), "dq does not have the shape");
        assert_eq!(dkv.len(), saved.kv.len(), "dkv does not have the shape");
        assert_eq!(dq.dtype(), dkv.dtype(), "the dtypes of dq and dkv differ");
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
        if problem.is_empty() || self.has_failed() {
            return;
        }
        let is_f32 = dtype == DType::F32;
        let others =
            [(inputs.dy, inputs.dy_dtype == DType::Bf16), (grads.dq, is_f32), (dk, is_f32)];
        let request = Request { problem: &problem, packed: None, others: &others };
        match self.attention_backend_for(&request) {
            Some(Backend::Flash) => self.flash_backward(&problem, inputs, grads),
            Some(_) => self.generic_backward(&problem, inputs, grads),
            None => {}
        }
    }

    fn decode_attention(
        &self,
        shape: AttentionShape,
        q: View<'_>,
        keys: View<'_>,
        values: View<'_>,
        y: ViewMut<'_>,
    ) {
        let row = shape.kv_heads * shape.head_dim;
        assert!(row > 0 && keys.len().is_multiple_of(row), "keys do not have the shape");
        assert_eq!(keys.len(), values.len(), "there are as many keys as values");
        assert_eq!((q.len(), y.len()), (shape.out_dim(), shape.out_dim()), "one query per head");
        let dtypes = [q.dtype(), keys.dtype(), values.dtype()];
        assert!(dtypes.iter().all(|dtype| *dtype == dtypes[0]), "dtypes differ: {dtypes:?}");
        let tokens = keys.len() / row;
        if tokens == 0 || self.has_failed() {
            return;
        }
        let operands = DecodeOperands {
            q: Ptr::of(q),
            keys: Ptr::of(keys),
            values: Ptr::of(values),
            dtype: q.dtype(),
            y: Ptr::of_mut(&y),
            y_dtype: y.dtype(),
            tokens,
        };
        self.decode(shape, operands);
    }

    fn apply_rope(
        &self,
        shape: AttentionShape,
        theta: f64,
        positions: View<'_>,
        direction: RopeDirection,
        qkv: ViewMut<'_>,
    ) {
        self.rope(shape, theta, positions, direction, qkv);
    }
}

fn forward_outputs(problem: &Problem, y: &ViewMut<'_>, lse: &ViewMut<'_>) -> ForwardOutputs {
    check_rows(problem, y.view(), lse.view());
    ForwardOutputs { y: Ptr::of_mut(y), y_dtype: y.dtype(), lse: Ptr::of_mut(lse) }
}

fn backward_inputs(problem: &Problem, y: View<'_>, lse: View<'_>, dy: View<'_>) -> BackwardInputs {
    check_rows(problem, y, lse);
    assert_eq!(dy.len(), y.len(), "dy does not have the shape");
    let (y_dtype, dy_dtype) = (y.dtype(), dy.dtype());
    BackwardInputs { y: Ptr::of(y), y_dtype, dy: Ptr::of(dy), dy_dtype, lse: Ptr::of(lse) }
}

fn check_rows(problem: &Problem, y: View<'_>, lse: View<'_>) {
    let shape = problem.shape;
    assert_eq!(y.len(), shape.rows() * shape.out_dim(), "y does not have the shape");
    assert_eq!(lse.len(), shape.rows() * shape.heads, "lse does not have the shape");
    assert!(lse.dtype() == DType::F32, "lse is f32");
}
