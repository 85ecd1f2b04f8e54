//! Graphs of causal attention. cuDNN recognises their pattern and runs them as one fused kernel.

use std::sync::Arc;

use regatta_device::ops::AttentionShape;

use super::descriptor::CudnnError;
use super::graph::{Dims, Graph, GraphTensor};
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

/// Sizes and strides of the tensors.
struct Layout {
    /// Queries, and the rows of a key/value head.
    q: Dims,
    kv: Dims,
    /// Strides of packed queries, keys and values.
    packed: Dims,
    /// Strides of the output.
    y: Dims,
    /// Scores, and their strides.
    scores: Dims,
    score_strides: Dims,
    /// Statistics of rows, and their strides.
    rows: Dims,
    row_strides: Dims,
    /// Strides of heads that are contiguous.
    by_head: Dims,
    scale: f32,
    /// Score of masked keys.
    masked: f32,
}

impl Layout {
    fn new(shape: AttentionShape, version: usize) -> Self {
        let AttentionShape { batch, seq_len, heads, kv_heads, head_dim } = shape;
        let [b, s, h, kv, d] = [batch, seq_len, heads, kv_heads, head_dim].map(|n| n as i64);
        let (packed, y) = (shape.qkv_dim() as i64, shape.out_dim() as i64);
        Self {
            q: [b, h, s, d],
            kv: [b, kv, s, d],
            packed: [s * packed, d, packed, 1],
            y: [s * y, d, y, 1],
            scores: [b, h, s, s],
            score_strides: [h * s * s, s * s, s, 1],
            rows: [b, h, s, 1],
            row_strides: [h * s, s, 1, 1],
            by_head: [h * s * d, s * d, d, 1],
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            // Versions before 9.10 expect a finite number.
            masked: if version < 91_000 { f32::MIN } else { f32::NEG_INFINITY },
        }
    }

    fn is_grouped(&self) -> bool {
        self.q != self.kv
    }
}

/// Swaps rows and columns.
fn transposed([b, h, rows, columns]: Dims) -> Dims {
    [b, h, columns, rows]
}

/// `y` and `lse` of packed queries, keys and values.
pub(crate) fn forward(
    functions: &Arc<Functions>,
    shape: AttentionShape,
) -> Result<Graph, CudnnError> {
    let layout = Layout::new(shape, functions.version());
    let mut graph = Graph::new(functions);
    let g = &mut graph;
    let q = g.tensor(TensorId::Q as i64, Bfloat16, layout.q, layout.packed)?;
    let (k_dims, k_strides) = (transposed(layout.kv), transposed(layout.packed));
    let k = g.tensor(TensorId::K as i64, Bfloat16, k_dims, k_strides)?;
    let v = g.tensor(TensorId::V as i64, Bfloat16, layout.kv, layout.packed)?;
    let y = g.tensor(TensorId::Y as i64, Bfloat16, layout.q, layout.y)?;
    let lse = g.tensor(TensorId::Lse as i64, Float, layout.rows, layout.row_strides)?;

    let scores = scaled_scores(g, &layout, q, k)?;
    let scores = g.causal_mask(scores, layout.masked)?;
    let max = g.intermediate(Float, layout.rows, layout.row_strides)?;
    g.reduce(ReductionOperator::Max, scores, max)?;
    let shifted = g.pointwise(PointwiseMode::Sub, scores, Some(max))?;
    let exponentials = g.pointwise(PointwiseMode::Exp, shifted, None)?;
    let sum = g.intermediate(Float, layout.rows, layout.row_strides)?;
    g.reduce(ReductionOperator::Add, exponentials, sum)?;
    let log = g.pointwise(PointwiseMode::Log, sum, None)?;
    g.pointwise_into(PointwiseMode::Add, max, Some(log), lse)?;
    let p = g.intermediate(Bfloat16, layout.scores, layout.score_strides)?;
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
    let q = g.tensor(TensorId::Q as i64, Bfloat16, layout.q, layout.packed)?;
    let (kv_dims, kv_strides) = (transposed(layout.kv), transposed(layout.packed));
    let k = g.tensor(TensorId::K as i64, Bfloat16, kv_dims, kv_strides)?;
    let v = g.tensor(TensorId::V as i64, Bfloat16, kv_dims, kv_strides)?;
    let y = g.tensor(TensorId::Y as i64, Bfloat16, layout.q, layout.y)?;
    let lse = g.tensor(TensorId::Lse as i64, Float, layout.rows, layout.row_strides)?;
    let dy = g.tensor(TensorId::Dy as i64, Bfloat16, layout.q, layout.y)?;
    let dq = g.tensor(TensorId::Dq as i64, Bfloat16, layout.q, layout.packed)?;
    let dk = g.tensor(TensorId::Dk as i64, Bfloat16, layout.kv, layout.packed)?;
    let dv = g.tensor(TensorId::Dv as i64, Bfloat16, layout.kv, layout.packed)?;
    let delta = g.tensor(TensorId::Delta as i64, Float, layout.rows, layout.row_strides)?;
    let dq_sum = g.tensor(TensorId::DqSum as i64, Float, layout.q, layout.by_head)?;

    row_sums(g, &layout, dy, y, delta)?;
    let scores = scaled_scores(g, &layout, q, k)?;
    let scores = g.pointwise(PointwiseMode::Sub, scores, Some(lse))?;
    let scores = g.causal_mask(scores, layout.masked)?;
    let p = g.pointwise(PointwiseMode::Exp, scores, None)?;
    kv_grad(g, &layout, p, dy, dv)?;

    let dp = g.intermediate(Float, layout.scores, layout.score_strides)?;
    g.matmul(dy, v, dp)?;
    let dp = g.pointwise(PointwiseMode::Sub, dp, Some(delta))?;
    let ds = g.pointwise(PointwiseMode::Mul, dp, Some(p))?;
    let scale = g.scalar(layout.scale)?;
    let ds = g.pointwise(PointwiseMode::Mul, ds, Some(scale))?;
    kv_grad(g, &layout, ds, q, dk)?;

    let k_rows = g.intermediate(Bfloat16, layout.kv, layout.packed)?;
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
    let scores = g.intermediate(Float, layout.scores, layout.score_strides)?;
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
    let [batch_stride, head_stride, ..] = layout.by_head;
    let [_, heads, _, head_dim] = layout.q;
    let strides = [batch_stride, head_stride, heads * head_dim, 1];
    let product = g.intermediate(Float, layout.q, strides)?;
    g.pointwise_into(PointwiseMode::Mul, dy, Some(y), product)?;
    let sum = g.intermediate(Float, layout.rows, layout.row_strides)?;
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
    let transposed = g.intermediate(Bfloat16, layout.scores, transposed(layout.score_strides))?;
    g.reshape(weights, transposed)?;
    if !layout.is_grouped() {
        return g.matmul(transposed, x, grad);
    }
    let by_head = g.intermediate(Bfloat16, layout.q, layout.by_head)?;
    g.matmul(transposed, x, by_head)?;
    g.reduce(ReductionOperator::Add, by_head, grad)
}
