//! Graphs of causal attention. cuDNN recognises their pattern and runs them as one fused kernel.

use std::sync::Arc;

use regatta_device::ops::AttentionShape;

use super::descriptor::CudnnError;
use super::graph::{Graph, GraphTensor, TensorShape};
use super::sys::DataType::{Bfloat16, Float};
use super::sys::{Functions, PointwiseMode, ReductionOperator};

/// Identifiers of the tensors that are bound to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TensorId {
    Q = 1,
    K,
    V,
    Y,
    Lse,
    Dy,
    Dq,
    Dk,
    Dv,
    /// Row sums of `dy * y`.
    Delta,
    /// Gradient of the queries in f32.
    DqSum,
}

/// The tensors.
struct Layout {
    /// Packed queries, and the rows of a key/value head.
    q: TensorShape,
    kv: TensorShape,
    /// The output.
    y: TensorShape,
    /// Scores, and statistics of their rows.
    scores: TensorShape,
    rows: TensorShape,
    /// Rows of heads that are contiguous.
    by_head: TensorShape,
    scale: f32,
    /// Score of masked keys.
    masked: f32,
}

impl Layout {
    fn new(shape: AttentionShape, version: usize) -> Self {
        let AttentionShape { batch, seq_len, heads, kv_heads, head_dim } = shape;
        let [b, s, h, kv, d] = [batch, seq_len, heads, kv_heads, head_dim].map(|n| n as i64);
        let (packed, y) = (shape.qkv_dim() as i64, shape.out_dim() as i64);
        let bf16 = |dims, strides| TensorShape { dtype: Bfloat16, dims, strides };
        let float = |dims, strides| TensorShape { dtype: Float, dims, strides };
        Self {
            q: bf16([b, h, s, d], [s * packed, d, packed, 1]),
            kv: bf16([b, kv, s, d], [s * packed, d, packed, 1]),
            y: bf16([b, h, s, d], [s * y, d, y, 1]),
            scores: float([b, h, s, s], [h * s * s, s * s, s, 1]),
            rows: float([b, h, s, 1], [h * s, s, 1, 1]),
            by_head: bf16([b, h, s, d], [h * s * d, s * d, d, 1]),
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            // Versions before 9.10 expect a finite number.
            masked: if version < 91_000 { f32::MIN } else { f32::NEG_INFINITY },
        }
    }

    fn is_grouped(&self) -> bool {
        self.q != self.kv
    }
}

/// `y` and `lse` of packed queries, keys and values.
pub(crate) fn forward(
    functions: &Arc<Functions>,
    shape: AttentionShape,
) -> Result<Graph, CudnnError> {
    let layout = Layout::new(shape, functions.version());
    let mut graph = Graph::new(functions);
    let g = &mut graph;
    let q = g.tensor(TensorId::Q as i64, layout.q)?;
    let k = g.tensor(TensorId::K as i64, layout.kv.transposed())?;
    let v = g.tensor(TensorId::V as i64, layout.kv)?;
    let y = g.tensor(TensorId::Y as i64, layout.y)?;
    let lse = g.tensor(TensorId::Lse as i64, layout.rows)?;

    let scores = scaled_scores(g, &layout, q, k)?;
    let scores = g.causal_mask(scores, layout.masked)?;
    let max = g.intermediate(layout.rows)?;
    g.reduce(ReductionOperator::Max, scores, max)?;
    let shifted = g.pointwise(PointwiseMode::Sub, scores, Some(max))?;
    let exponentials = g.pointwise(PointwiseMode::Exp, shifted, None)?;
    let sum = g.intermediate(layout.rows)?;
    g.reduce(ReductionOperator::Add, exponentials, sum)?;
    let log = g.pointwise(PointwiseMode::Log, sum, None)?;
    g.pointwise_into(PointwiseMode::Add, max, Some(log), lse)?;
    let p = g.intermediate(layout.scores.of(Bfloat16))?;
    g.pointwise_into(PointwiseMode::Div, exponentials, Some(sum), p)?;
    g.matmul(p, v, y)?;
    Ok(graph)
}

/// The gradients of packed queries, keys and values. The gradient of queries is accumulated by atomic
/// additions, so its rounding differs between runs.
pub(crate) fn backward(
    functions: &Arc<Functions>,
    shape: AttentionShape,
) -> Result<Graph, CudnnError> {
    let layout = Layout::new(shape, functions.version());
    let mut graph = Graph::new(functions);
    let g = &mut graph;
    let q = g.tensor(TensorId::Q as i64, layout.q)?;
    let k = g.tensor(TensorId::K as i64, layout.kv.transposed())?;
    let v = g.tensor(TensorId::V as i64, layout.kv.transposed())?;
    let y = g.tensor(TensorId::Y as i64, layout.y)?;
    let lse = g.tensor(TensorId::Lse as i64, layout.rows)?;
    let dy = g.tensor(TensorId::Dy as i64, layout.y)?;
    let dq = g.tensor(TensorId::Dq as i64, layout.q)?;
    let dk = g.tensor(TensorId::Dk as i64, layout.kv)?;
    let dv = g.tensor(TensorId::Dv as i64, layout.kv)?;
    let delta = g.tensor(TensorId::Delta as i64, layout.rows)?;
    let dq_sum = g.tensor(TensorId::DqSum as i64, layout.by_head.of(Float))?;

    row_sums(g, &layout, dy, y, delta)?;
    let scores = scaled_scores(g, &layout, q, k)?;
    let scores = g.pointwise(PointwiseMode::Sub, scores, Some(lse))?;
    let scores = g.causal_mask(scores, layout.masked)?;
    let p = g.pointwise(PointwiseMode::Exp, scores, None)?;
    kv_grad(g, &layout, p, dy, dv)?;

    let dp = g.intermediate(layout.scores)?;
    g.matmul(dy, v, dp)?;
    let dp = g.pointwise(PointwiseMode::Sub, dp, Some(delta))?;
    let ds = g.pointwise(PointwiseMode::Mul, dp, Some(p))?;
    let scale = g.scalar(layout.scale)?;
    let ds = g.pointwise(PointwiseMode::Mul, ds, Some(scale))?;
    kv_grad(g, &layout, ds, q, dk)?;

    let k_rows = g.intermediate(layout.kv)?;
    g.reshape(k, k_rows)?;
    g.matmul(ds, k_rows, dq_sum)?;
    g.pointwise_into(PointwiseMode::Identity, dq_sum, None, dq)?;
    Ok(graph)
}

/// `q kᵀ / √head_dim`.
fn scaled_scores(
    g: &mut Graph,
    layout: &Layout,
    q: GraphTensor,
    k: GraphTensor,
) -> Result<GraphTensor, CudnnError> {
    let scores = g.intermediate(layout.scores)?;
    g.matmul(q, k, scores)?;
    let scale = g.scalar(layout.scale)?;
    g.pointwise(PointwiseMode::Mul, scores, Some(scale))
}

/// The row sums of `dy * y`. The factor of 1 is part of the pattern.
fn row_sums(
    g: &mut Graph,
    layout: &Layout,
    dy: GraphTensor,
    y: GraphTensor,
    delta: GraphTensor,
) -> Result<(), CudnnError> {
    let [batch_stride, head_stride, ..] = layout.by_head.strides;
    let [_, heads, _, head_dim] = layout.q.dims;
    let strides = [batch_stride, head_stride, heads * head_dim, 1];
    let product = g.intermediate(TensorShape { dtype: Float, strides, ..layout.q })?;
    g.pointwise_into(PointwiseMode::Mul, dy, Some(y), product)?;
    let sum = g.intermediate(layout.rows)?;
    g.reduce(ReductionOperator::Add, product, sum)?;
    let one = g.scalar(1.0)?;
    g.pointwise_into(PointwiseMode::Mul, sum, Some(one), delta)
}

/// `grad = weightsᵀ x`, summed over the heads that share a key/value head.
fn kv_grad(
    g: &mut Graph,
    layout: &Layout,
    weights: GraphTensor,
    x: GraphTensor,
    grad: GraphTensor,
) -> Result<(), CudnnError> {
    let transposed = g.intermediate(layout.scores.of(Bfloat16).transposed())?;
    g.reshape(weights, transposed)?;
    if !layout.is_grouped() {
        return g.matmul(transposed, x, grad);
    }
    let by_head = g.intermediate(layout.by_head)?;
    g.matmul(transposed, x, by_head)?;
    g.reduce(ReductionOperator::Add, by_head, grad)
}
