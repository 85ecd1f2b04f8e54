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

mod entropy;
mod sizes;

use std::ops::Range;

use crate::memory::{Format, Tensor, View, ViewMut};
use crate::optimizer::{AdamW, Sgd};
use crate::random::Mask;

pub use entropy::{EntropyPart, merge_entropies};
pub use sizes::{
    Attention, AttentionDrop, AttentionPart, AttentionPartSaved, AttentionSaved, Linear, Norm,
    NormGrads, NormSaved, Turn,
};

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

    /// Some columns of rows: those of `from` are `wide`, those of `to` have just these columns. The
    /// two may be stored differently.
    fn take_columns(&self, from: View<'_>, wide: usize, columns: Range<usize>, to: ViewMut<'_>);

    /// The other way: rows of `from` go into these columns of the rows of `to`, which are `wide`.
    /// Other columns stay as they are.
    fn put_columns(&self, from: View<'_>, to: ViewMut<'_>, wide: usize, columns: Range<usize>);

    /// All become this number.
    fn fill(&self, number: f64, x: ViewMut<'_>);

    /// All become zero.
    fn clear(&self, x: ViewMut<'_>) {
        self.fill(0.0, x);
    }

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
    /// softmax's numbers.
    fn attention(
        &self,
        of: Attention,
        qkv: View<'_>,
        drop: Option<AttentionDrop>,
        y: ViewMut<'_>,
        log_sums: ViewMut<'_>,
    );

    /// `dqkv =` the gradient.
    fn attention_back(
        &self,
        of: Attention,
        saved: AttentionSaved<'_>,
        drop: Option<AttentionDrop>,
        dy: View<'_>,
        dqkv: ViewMut<'_>,
    );

    /// Merges what queries find with these keys into what they found with others. `y` are reals,
    /// for parts are added to each other; `log_sums` has a row a query with a number a head. Where
    /// that is -∞ nothing was found yet, and what is in `y` does not count.
    fn attention_part(
        &self,
        of: AttentionPart,
        q: View<'_>,
        kv: View<'_>,
        drop: Option<AttentionDrop>,
        y: ViewMut<'_>,
        log_sums: ViewMut<'_>,
    );

    /// Adds to `dq` and `dkv`, which are reals, the gradients by way of these keys, once `y` and
    /// `log_sums` are those of all parts.
    fn attention_part_back(
        &self,
        of: AttentionPart,
        saved: AttentionPartSaved<'_>,
        drop: Option<AttentionDrop>,
        dy: View<'_>,
        dq: ViewMut<'_>,
        dkv: ViewMut<'_>,
    );

    /// One new token of one sequence: its `q` (all heads) against `keys` and `values`, each with a
    /// row of `kv_heads * head_width` numbers a token so far, itself included.
    fn attend(&self, of: Attention, q: View<'_>, keys: View<'_>, values: View<'_>, y: ViewMut<'_>);

    /// Turns queries and keys in place by their positions: `places` are those of the tokens of a
    /// sequence. Number `i` of a head is paired with number `i + head_width / 2`.
    fn rope(&self, of: Attention, base: f64, places: &[u32], turn: Turn, qkv: ViewMut<'_>);

    /// `y = gelu(x)`, in the form with the hyperbolic tangent. `x` becomes its slope there: both are
    /// made of the same exponential, and the backward pass needs nothing else.
    fn gelu(&self, x: ViewMut<'_>, y: ViewMut<'_>);

    /// `dy` becomes the gradient of what was activated, in place.
    fn gelu_back(&self, slopes: View<'_>, dy: ViewMut<'_>);

    /// `y = silu(gate) * up`. A row of `x` has `width` gates, then as many ups.
    fn swiglu(&self, width: usize, x: View<'_>, y: ViewMut<'_>);

    /// `dx =` the gradient, of gates and ups.
    fn swiglu_back(&self, width: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>);

    /// `y =` the rows that the tokens name of a table whose rows from `first` on are here: zeros
    /// for tokens that are elsewhere. The width is that of `y`'s rows.
    fn embed(&self, tokens: &[u32], first: usize, table: View<'_>, y: ViewMut<'_>);

    /// Adds rows of `dy` to the rows of `dtable` that they came from, if those are here.
    fn embed_back(&self, tokens: &[u32], first: usize, dy: View<'_>, dtable: ViewMut<'_>);

    /// Adds to the rows of `y`, of this width, the rows of `positions` that `places` name: to the
    /// first row the first of them, and when all were used, the first again.
    fn add_positions(&self, width: usize, places: &[u32], positions: View<'_>, y: ViewMut<'_>);

    /// Adds rows of `dy` to the rows of `dpositions` that they came from.
    fn add_positions_back(
        &self,
        width: usize,
        places: &[u32],
        dy: View<'_>,
        dpositions: ViewMut<'_>,
    );

    /// The sum of the cross entropies of the rows of `logits`, as many numbers each as there are
    /// kinds of tokens. With a scale, `logits` become their gradient, times the scale.
    fn cross_entropy(&self, targets: &[u32], logits: ViewMut<'_>, scale: Option<f64>) -> f64;

    /// What the loss needs of each row of `logits`, which are those of the tokens from `first` on.
    /// `parts` gets three numbers a row: the largest, the sum of the exponentials of all less the
    /// largest, and the target's, or 0 if it is elsewhere.
    fn entropy_part(&self, targets: &[u32], first: usize, logits: View<'_>, parts: ViewMut<'_>);

    /// Makes one part of several, which are one after the other, each of all rows: `whole` gets the
    /// three numbers of each row. Returns the sum of the cross entropies, if all columns are in it.
    fn entropy_whole(&self, parts: View<'_>, whole: ViewMut<'_>) -> f64;

    /// `logits`, those of the tokens from `first` on, become their gradient, times the scale, by
    /// what [`Device::entropy_whole`] made of all columns.
    fn entropy_back(
        &self,
        targets: &[u32],
        first: usize,
        whole: View<'_>,
        logits: ViewMut<'_>,
        scale: f64,
    );

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
