//! What a device must be able to do: the fused operations that training is made of, forward and
//! backward.
//!
//! There are two devices so far: [`crate::reference::Reference`], plain loops in double precision
//! that are easy to believe, and [`crate::cpu::Cpu`], the fast one.
//!
//! Conventions: a tensor of activations has one row a token, row after row. The *stream*, which
//! runs through the layers by addition, parameters, gradients of parameters, and statistics are
//! [`Device::real`]s; what an operation leaves for another one, and the gradients of that, are
//! [`Device::activation`]s, which may be stored in fewer bits. Operations take either, by the format of the
//! view. Gradients of parameters are always added to what is there; what is said of other
//! outputs is said with each operation. Wrong lengths are faults of the caller: they panic.

use crate::memory::{Format, Tensor, View, ViewMut};
use crate::optimizer::{AdamW, Sgd};
use crate::random::Mask;

/// A matrix product: `rows` times `inputs` in, `rows` times `outputs` out; the weight is `outputs`
/// times `inputs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    /// Tokens.
    pub rows: usize,
    /// Numbers of a token that go in.
    pub inputs: usize,
    /// Numbers of a token that come out.
    pub outputs: usize,
}

/// How rows are brought to the same scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Norm {
    /// Mean 0 and variance 1.
    Layer {
        /// Added to the variance.
        epsilon: f64,
    },
    /// Mean square 1.
    Rms {
        /// Added to the mean square.
        epsilon: f64,
    },
}

/// Causal attention. A row of `qkv` has the queries of all heads, then the keys of all key heads,
/// then their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub sequence: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_width: usize,
}

impl Attention {
    /// Numbers of a row of `qkv`.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_width
    }

    /// Numbers of a row that comes out.
    pub fn width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.batch * self.sequence
    }
}

/// Which way rotary positions turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Forward.
    There,
    /// Backward: the gradient's way.
    Back,
}

/// A device.
pub trait Device: Send + Sync {
    /// How parameters, their gradients, the stream and statistics are stored.
    fn real_format(&self) -> Format;

    /// How activations are stored.
    fn activation_format(&self) -> Format;

    /// Zeros in this device's memory.
    fn zeros(&self, elements: usize, format: Format) -> Tensor;

    /// Zeros, as parameters are stored.
    fn real(&self, elements: usize) -> Tensor {
        self.zeros(elements, self.real_format())
    }

    /// Zeros, as activations are stored.
    fn activation(&self, elements: usize) -> Tensor {
        self.zeros(elements, self.activation_format())
    }

    /// Copies numbers to the device. Both have the same length.
    fn put(&self, from: &[f32], to: ViewMut<'_>);

    /// Copies numbers from the device. Both have the same length.
    fn fetch(&self, from: View<'_>, to: &mut [f32]);

    /// Copies between tensors, which may be stored differently.
    fn copy(&self, from: View<'_>, to: ViewMut<'_>);

    /// All become zero.
    fn clear(&self, x: ViewMut<'_>);

    /// `y = x weightᵀ + bias`.
    fn linear(
        &self,
        of: Linear,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
    );

    /// `dx = dy weight`, or added to what is there.
    fn linear_back_input(
        &self,
        of: Linear,
        dy: View<'_>,
        weight: View<'_>,
        dx: ViewMut<'_>,
        add: bool,
    );

    /// `dweight += dyᵀ x` and `dbias +=` the sum of `dy`'s rows.
    fn linear_back_weight(
        &self,
        of: Linear,
        x: View<'_>,
        dy: View<'_>,
        dweight: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
    );

    /// `y = norm(x) * weight + bias` of rows as wide as `weight`. `statistics` gets two numbers a
    /// row: the mean (0 for RMS) and one over the deviation.
    fn norm(
        &self,
        how: Norm,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
        statistics: ViewMut<'_>,
    );

    /// `dx +=` the gradient, for it is that of the stream; `dweight` and `dbias` likewise.
    fn norm_back(
        &self,
        how: Norm,
        saved: NormSaved<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        grads: NormGrads<'_>,
    );

    /// Causal attention of each head: `y = softmax(q kᵀ / √head_width) v`. `log_sums` gets, for each
    /// sequence, head and token, the logarithm of the softmax's sum. `drop` leaves out some of the
    /// softmax's numbers, by the index that they have in batch, head, query, key order.
    fn attention(
        &self,
        of: Attention,
        qkv: View<'_>,
        drop: Option<Mask>,
        y: ViewMut<'_>,
        log_sums: ViewMut<'_>,
    );

    /// `dqkv =` the gradient.
    fn attention_back(
        &self,
        of: Attention,
        saved: AttentionSaved<'_>,
        drop: Option<Mask>,
        dy: View<'_>,
        dqkv: ViewMut<'_>,
    );

    /// One new token of one sequence: its `q` (all heads) against `keys` and `values`, each with a
    /// row of `kv_heads * head_width` numbers a token so far, itself included.
    fn attend(&self, of: Attention, q: View<'_>, keys: View<'_>, values: View<'_>, y: ViewMut<'_>);

    /// Turns queries and keys in place by their positions; the first row's is `first`. Number `i`
    /// of a head is paired with number `i + head_width / 2`.
    fn rope(&self, of: Attention, base: f64, first: usize, turn: Turn, qkv: ViewMut<'_>);

    /// `y = gelu(x)`, in the form with the hyperbolic tangent.
    fn gelu(&self, x: View<'_>, y: ViewMut<'_>);

    /// `dy` becomes the gradient of `x`, in place.
    fn gelu_back(&self, x: View<'_>, dy: ViewMut<'_>);

    /// `y = silu(gate) * up`. A row of `x` has `width` gates, then as many ups.
    fn swiglu(&self, width: usize, x: View<'_>, y: ViewMut<'_>);

    /// `dx =` the gradient, of gates and ups.
    fn swiglu_back(&self, width: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>);

    /// `y =` the rows of `table` that the tokens name, plus the rows of `positions` from the first
    /// on, again for each `sequence` tokens. The width is that of `y`'s rows.
    fn embed(
        &self,
        tokens: &[u32],
        sequence: usize,
        table: View<'_>,
        positions: Option<View<'_>>,
        y: ViewMut<'_>,
    );

    /// Adds rows of `dy` to the rows of `dtable` and `dpositions` that they came from.
    fn embed_back(
        &self,
        tokens: &[u32],
        sequence: usize,
        dy: View<'_>,
        dtable: ViewMut<'_>,
        dpositions: Option<ViewMut<'_>>,
    );

    /// The sum of the cross entropies of the rows of `logits`, as many numbers each as there are
    /// kinds of tokens. With a scale, `logits` become their gradient, times the scale.
    fn cross_entropy(&self, targets: &[u32], logits: ViewMut<'_>, scale: Option<f64>) -> f64;

    /// `z = x + y`.
    fn sum(&self, x: View<'_>, y: View<'_>, z: ViewMut<'_>);

    /// `y += x`.
    fn add(&self, x: View<'_>, y: ViewMut<'_>);

    /// Leaves out some numbers, and makes the others larger by as much. The number at `i` is the
    /// mask's number `i`. The same mask does the same to the gradient.
    fn dropout(&self, mask: Mask, x: ViewMut<'_>);

    /// `x *= by`.
    fn scale(&self, by: f64, x: ViewMut<'_>);

    /// The sum of the squares.
    fn square_sum(&self, x: View<'_>) -> f64;

    /// One step of AdamW. All have the same length.
    fn adamw(
        &self,
        how: &AdamW,
        gradients: View<'_>,
        state: [ViewMut<'_>; 2],
        parameters: ViewMut<'_>,
    );

    /// One step of gradient descent with momentum. All have the same length.
    fn sgd(&self, how: &Sgd, gradients: View<'_>, momentum: ViewMut<'_>, parameters: ViewMut<'_>);
}

/// What a norm's backward pass needs of the forward one.
#[derive(Debug, Clone, Copy)]
pub struct NormSaved<'a> {
    /// What went in.
    pub x: View<'a>,
    /// The weight.
    pub weight: View<'a>,
    /// The mean and one over the deviation of each row.
    pub statistics: View<'a>,
}

/// Where the gradients of a norm's parameters are added.
#[derive(Debug)]
pub struct NormGrads<'a> {
    /// Of the weight.
    pub weight: ViewMut<'a>,
    /// Of the bias, if it has one.
    pub bias: Option<ViewMut<'a>>,
}

/// What attention's backward pass needs of the forward one.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSaved<'a> {
    /// What went in.
    pub qkv: View<'a>,
    /// What came out.
    pub y: View<'a>,
    /// The logarithm of each softmax's sum.
    pub log_sums: View<'a>,
}
