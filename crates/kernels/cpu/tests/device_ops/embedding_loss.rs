//! Token and position embeddings, and cross-entropy.

use regatta_device::ops::Device;
use regatta_device::random;

use crate::gradient_check::{Operation, accumulated, initial_grad, master, nans};
use crate::host_copy::copy_to_f64;

/// Random tokens.
pub fn random_tokens(count: usize, vocab: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|i| (random::mix(seed ^ (i << 8)) % vocab as u64) as u32).collect()
}

/// Embedding by a vocab-parallel table of `local_vocab` rows from token `first` on.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    pub rows: usize,
    pub vocab: usize,
    pub first: usize,
    pub local_vocab: usize,
    pub dim: usize,
    pub seed: u64,
}

impl Embedding {
    fn tokens(&self) -> Vec<u32> {
        random_tokens(self.rows, self.vocab, self.seed)
    }
}

impl Operation for Embedding {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.local_vocab * self.dim]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let table = master(device, &inputs[0]);
        let mut y = master(device, &nans(self.rows * self.dim));
        device.embedding(&self.tokens(), self.first, table.view(), y.view_mut());
        copy_to_f64(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (dy, mut dtable) = (master(device, dy), initial_grad(device, inputs[0].len()));
        device.embedding_backward(&self.tokens(), self.first, dy.view(), dtable.view_mut());
        vec![accumulated(device, &dtable)]
    }
}

/// Position embedding: inputs are the table and the tokens' embeddings.
#[derive(Debug, Clone, Copy)]
pub struct PositionEmbedding {
    pub batch: usize,
    pub seq_len: usize,
    pub max_positions: usize,
    pub dim: usize,
    pub seed: u64,
}

impl PositionEmbedding {
    fn positions(&self) -> Vec<u32> {
        random_tokens(self.seq_len, self.max_positions, self.seed)
    }
}

impl Operation for PositionEmbedding {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.max_positions * self.dim, self.batch * self.seq_len * self.dim]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (table, mut y) = (master(device, &inputs[0]), master(device, &inputs[1]));
        device.add_position_embedding(self.dim, &self.positions(), table.view(), y.view_mut());
        copy_to_f64(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (grad, mut dtable) = (master(device, dy), initial_grad(device, inputs[0].len()));
        let (positions, to) = (self.positions(), dtable.view_mut());
        device.position_embedding_backward(self.dim, &positions, grad.view(), to);
        vec![accumulated(device, &dtable), dy.to_vec()]
    }
}

/// Cross-entropy; the output is the loss.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropy {
    pub rows: usize,
    pub vocab: usize,
    pub seed: u64,
}

impl CrossEntropy {
    fn targets(&self) -> Vec<u32> {
        random_tokens(self.rows, self.vocab, self.seed)
    }
}

impl Operation for CrossEntropy {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.rows * self.vocab]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let mut logits = master(device, &inputs[0]);
        let loss = device.cross_entropy(&self.targets(), logits.view_mut(), None);
        vec![loss]
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let mut logits = master(device, &inputs[0]);
        let loss = device.cross_entropy(&self.targets(), logits.view_mut(), Some(dy[0]));
        assert_eq!(vec![loss], self.forward(device, inputs), "the loss depends on the scale");
        vec![copy_to_f64(device, logits.view())]
    }
}

/// Vocabulary-parallel cross-entropy on two ranks; the first one has `split` columns.
#[derive(Debug, Clone, Copy)]
pub struct VocabParallelCrossEntropy {
    pub full: CrossEntropy,
    pub split: usize,
}

impl VocabParallelCrossEntropy {
    /// Loss, and gradient of each rank's logits.
    fn loss_and_gradients(
        &self,
        device: &dyn Device,
        inputs: &[Vec<f64>],
        grad_scale: f64,
    ) -> (f64, Vec<Vec<f64>>) {
        let (rows, targets) = (self.full.rows, self.full.targets());
        let mut partials = master(device, &nans(2 * 3 * rows));
        let mut merged = master(device, &nans(3 * rows));
        let mut logits: Vec<_> = inputs.iter().map(|logits| master(device, logits)).collect();
        for (rank, logits) in logits.iter().enumerate() {
            let mut partials = partials.view_mut();
            let local = partials.slice(3 * rows * rank..3 * rows * (rank + 1));
            device.cross_entropy_partials(&targets, rank * self.split, logits.view(), local);
        }
        let loss = device.merge_cross_entropy_partials(partials.view(), merged.view_mut());
        // Merging is idempotent.
        let mut again = master(device, &nans(3 * rows));
        let same = device.merge_cross_entropy_partials(merged.view(), again.view_mut());
        assert!((loss - same).abs() <= 1e-6 * loss.abs(), "{loss} {same}");
        assert_eq!(copy_to_f64(device, merged.view()), copy_to_f64(device, again.view()));
        for (rank, logits) in logits.iter_mut().enumerate() {
            let (first, logits) = (rank * self.split, logits.view_mut());
            device.cross_entropy_backward(&targets, first, merged.view(), logits, grad_scale);
        }
        (loss, logits.iter().map(|logits| copy_to_f64(device, logits.view())).collect())
    }
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
