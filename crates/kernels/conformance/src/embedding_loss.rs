//! Token and position embeddings, and cross-entropy.

use std::ops::Range;

use regatta_device::ops::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyPartialsArgs, Device,
    EmbeddingBackwardArgs, PositionBackwardArgs,
};
use regatta_device::random;
use regatta_device::tensor::Tensor;

use crate::gradient_check::{Operation, assert_close, assert_same, random_values};
use crate::guarded::{
    Guarded, accumulated, initial_grad, logits, master_output, residual, residual_grad,
    residual_output, weight,
};
use crate::host_copy::{read_scalar, scalar, tokens};

/// Random tokens.
pub fn random_tokens(count: usize, vocab: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|i| (random::mix(seed ^ (i << 8)) % vocab as u64) as u32).collect()
}

/// Embedding by a vocab-parallel table of `local_vocab` rows from token `first` on.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    /// Tokens.
    pub rows: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Token of the first local row.
    pub first: usize,
    /// Local rows.
    pub local_vocab: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Seed of the tokens.
    pub seed: u64,
}

impl Embedding {
    fn tokens(&self, device: &dyn Device) -> Tensor {
        tokens(device, &random_tokens(self.rows, self.vocab, self.seed))
    }
}

impl Operation for Embedding {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.local_vocab * self.dim]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (tokens, table) = (self.tokens(device), weight(device, &inputs[0]));
        let mut y = residual_output(device, self.rows * self.dim);
        device.embedding(tokens.view(), self.first, table.view(), y.view_mut());
        y.read(device)
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (tokens, dy) = (self.tokens(device), residual_grad(device, dy));
        let mut dtable = initial_grad(device, inputs[0].len());
        device.embedding_backward(EmbeddingBackwardArgs {
            tokens: tokens.view(),
            first: self.first,
            dy: dy.view(),
            dtable: dtable.view_mut(),
        });
        vec![accumulated(device, &dtable)]
    }
}

/// Position embedding: inputs are the table and the tokens' embeddings.
#[derive(Debug, Clone, Copy)]
pub struct PositionEmbedding {
    /// Sequences.
    pub batch: usize,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Rows of the table.
    pub max_positions: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Seed of the positions.
    pub seed: u64,
}

impl PositionEmbedding {
    fn positions(&self, device: &dyn Device) -> Tensor {
        tokens(device, &random_tokens(self.seq_len, self.max_positions, self.seed))
    }
}

impl Operation for PositionEmbedding {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.max_positions * self.dim, self.batch * self.seq_len * self.dim]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (table, mut y) = (weight(device, &inputs[0]), residual(device, &inputs[1]));
        let positions = self.positions(device);
        device.add_position_embedding(self.dim, positions.view(), table.view(), y.view_mut());
        y.read(device)
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (grad, mut dtable) = (residual_grad(device, dy), initial_grad(device, inputs[0].len()));
        device.position_embedding_backward(PositionBackwardArgs {
            dim: self.dim,
            positions: self.positions(device).view(),
            dy: grad.view(),
            dtable: dtable.view_mut(),
        });
        vec![accumulated(device, &dtable), dy.to_vec()]
    }
}

/// Initial value of scalars that losses are added to.
const INITIAL_LOSS: f64 = 0.25;

/// What was added to a scalar.
fn added_loss(device: &dyn Device, loss: &Tensor) -> f64 {
    read_scalar(device, loss) - INITIAL_LOSS
}

/// Asserts equality of two losses up to the rounding of f32.
fn assert_same_loss(loss: f64, other: f64, what: &str) {
    assert!((loss - other).abs() <= 1e-6 * loss.abs(), "{what}: {loss} {other}");
}

/// Rows of logits with padding, which is NaN: no operation may read it.
struct PaddedLogits {
    elements: Guarded,
    columns: usize,
    padding: usize,
}

impl PaddedLogits {
    fn new(device: &dyn Device, values: &[f64], columns: usize, padding: usize) -> Self {
        let padded = |row: &[f64]| [row, &vec![f64::NAN; padding]].concat();
        let values: Vec<f64> = values.chunks_exact(columns).flat_map(padded).collect();
        Self { elements: logits(device, &values), columns, padding }
    }

    /// The gradient that replaced the logits.
    fn read_gradient(&self, device: &dyn Device) -> Vec<f64> {
        let elements = self.elements.read(device);
        let (logits, padding): (Vec<&[f64]>, Vec<&[f64]>) = elements
            .chunks_exact(self.columns + self.padding)
            .map(|row| row.split_at(self.columns))
            .unzip();
        assert!(padding.concat().iter().all(|x| *x == 0.0), "the gradient of padding is not 0");
        logits.concat()
    }
}

/// Cross-entropy; the output is the loss.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropy {
    /// Tokens.
    pub rows: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Padding of a row of logits.
    pub padding: usize,
    /// Seed of the targets.
    pub seed: u64,
}

impl CrossEntropy {
    fn targets(&self, device: &dyn Device) -> Tensor {
        tokens(device, &random_tokens(self.rows, self.vocab, self.seed))
    }

    fn logits(&self, device: &dyn Device, values: &[f64]) -> PaddedLogits {
        PaddedLogits::new(device, values, self.vocab, self.padding)
    }

    /// What is added to a loss.
    fn loss(
        &self,
        device: &dyn Device,
        targets: &Tensor,
        logits: &mut PaddedLogits,
        grad_scale: Option<f64>,
    ) -> f64 {
        let mut loss = scalar(device, INITIAL_LOSS);
        device.cross_entropy(CrossEntropyArgs {
            targets: targets.view(),
            vocab: self.vocab,
            logits: logits.elements.view_mut(),
            grad_scale,
            loss: loss.view_mut(),
        });
        added_loss(device, &loss)
    }
}

impl Operation for CrossEntropy {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.rows * self.vocab]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (targets, mut logits) = (self.targets(device), self.logits(device, &inputs[0]));
        vec![self.loss(device, &targets, &mut logits, None)]
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (targets, mut logits) = (self.targets(device), self.logits(device, &inputs[0]));
        let loss = self.loss(device, &targets, &mut logits, Some(dy[0]));
        let without_gradient = self.forward(device, inputs)[0];
        let what = "the loss depends on the scale";
        assert_same_loss(loss, without_gradient, what);
        vec![logits.read_gradient(device)]
    }
}

/// Vocabulary-parallel cross-entropy on two ranks; the first one has `split` columns.
#[derive(Debug, Clone, Copy)]
pub struct VocabParallelCrossEntropy {
    /// Without a split.
    pub full: CrossEntropy,
    /// Columns of the first rank.
    pub split: usize,
}

impl VocabParallelCrossEntropy {
    /// The tokens of a rank.
    fn vocab(&self, rank: usize) -> Range<usize> {
        [0..self.split, self.split..self.full.vocab][rank].clone()
    }

    /// Loss, and gradient of each rank's logits.
    fn loss_and_gradients(
        &self,
        device: &dyn Device,
        inputs: &[Vec<f64>],
        grad_scale: f64,
    ) -> (f64, Vec<Vec<f64>>) {
        let (rows, targets) = (self.full.rows, self.full.targets(device));
        let mut partials = master_output(device, 2 * 3 * rows);
        let padding = self.full.padding;
        let shard = |(rank, values): (usize, &Vec<f64>)| {
            PaddedLogits::new(device, values, self.vocab(rank).len(), padding)
        };
        let mut shards: Vec<_> = inputs.iter().enumerate().map(shard).collect();
        for (rank, logits) in shards.iter().enumerate() {
            let (vocab, mut partials) = (self.vocab(rank), partials.view_mut());
            device.cross_entropy_partials(CrossEntropyPartialsArgs {
                targets: targets.view(),
                vocab,
                logits: logits.elements.view(),
                partials: partials.slice(3 * rows * rank..3 * rows * (rank + 1)),
            });
        }
        let (merged, loss) = merge(device, &partials, rows);
        for (rank, logits) in shards.iter_mut().enumerate() {
            device.cross_entropy_backward(CrossEntropyBackwardArgs {
                targets: targets.view(),
                vocab: self.vocab(rank),
                merged: merged.view(),
                logits: logits.elements.view_mut(),
                grad_scale,
            });
        }
        (loss, shards.iter().map(|logits| logits.read_gradient(device)).collect())
    }
}

/// Merged partials, and the loss.
fn merge(device: &dyn Device, partials: &Guarded, rows: usize) -> (Guarded, f64) {
    let merge = |partials: &Guarded| {
        let mut loss = scalar(device, INITIAL_LOSS);
        let mut merged = master_output(device, 3 * rows);
        let (to, sum) = (merged.view_mut(), Some(loss.view_mut()));
        device.merge_cross_entropy_partials(partials.view(), to, sum);
        (merged, added_loss(device, &loss))
    };
    let (merged, loss) = merge(partials);
    let (again, same) = merge(&merged);
    assert_same_loss(loss, same, "merging is not idempotent");
    assert_same(&again.read(device), &merged.read(device), "merged again");
    let mut without_loss = master_output(device, 3 * rows);
    device.merge_cross_entropy_partials(partials.view(), without_loss.view_mut(), None);
    assert_same(&without_loss.read(device), &merged.read(device), "merged without a loss");
    (merged, loss)
}

impl Operation for VocabParallelCrossEntropy {
    fn input_lens(&self) -> Vec<usize> {
        let CrossEntropy { rows, vocab, .. } = self.full;
        vec![rows * self.split, rows * (vocab - self.split)]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        vec![self.loss_and_gradients(device, inputs, 1.0).0]
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        self.loss_and_gradients(device, inputs, dy[0]).1
    }
}

/// Asserts that the vocabulary-parallel loss equals the loss.
pub fn check_vocab_parallel_loss(
    device: &dyn Device,
    operation: &VocabParallelCrossEntropy,
    seed: u64,
    tolerance: f64,
) {
    let VocabParallelCrossEntropy { full, split } = *operation;
    let logits = random_values(full.rows * full.vocab, seed);
    let columns = |range: std::ops::Range<usize>| -> Vec<f64> {
        logits.chunks_exact(full.vocab).flat_map(|row| row[range.clone()].to_vec()).collect()
    };
    let shards = [columns(0..split), columns(split..full.vocab)];
    let expected = full.forward(device, std::slice::from_ref(&logits));
    assert_close(&operation.forward(device, &shards), &expected, tolerance, "loss");
}

/// Asserts that a NaN logit makes the loss NaN, so that a diverged training is noticed.
pub fn check_nan_loss(device: &dyn Device, full: &CrossEntropy, seed: u64) {
    let mut values = random_values(full.rows * full.vocab, seed);
    let at = seed as usize % values.len();
    values[at] = f64::NAN;
    let loss = full.forward(device, std::slice::from_ref(&values))[0];
    assert!(loss.is_nan(), "the loss is {loss} with NaN as logit {at}");
}
