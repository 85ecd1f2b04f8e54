//! AttentionShape, positions, embeddings, the loss, dropout.

use regatta_device::ops::{AttentionShape, AttentionDropout, AttentionSaved, Device, RopeDirection};
use regatta_device::random::{self, DropoutMask};

use crate::check::{Operation, activation, added, begun, real, unread};
use crate::slice::fetch;

/// `attention`.
#[derive(Debug, Clone, Copy)]
pub struct Attending {
    pub of: AttentionShape,
    pub drop: Option<AttentionDropout>,
}

impl Attending {
    /// What comes out, and the logarithms of the sums.
    fn both(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> (Vec<f64>, Vec<f64>) {
        let (of, rows) = (self.of, self.of.rows());
        let qkv = activation(device, &inputs[0]);
        let mut y = activation(device, &unread(rows * of.width()));
        let mut sums = real(device, &unread(rows * of.heads));
        device.attention(of, qkv.view(), self.drop, y.view_mut(), sums.view_mut());
        (fetch(device, y.view()), fetch(device, sums.view()))
    }
}

impl Operation for Attending {
    fn inputs(&self) -> Vec<usize> {
        vec![self.of.rows() * self.of.qkv_width()]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        self.both(device, inputs).0
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (y, sums) = self.both(device, inputs);
        let (qkv, y, dy) = (&inputs[0], activation(device, &y), activation(device, dy));
        let (qkv, sums) = (activation(device, qkv), real(device, &sums));
        let saved = AttentionSaved { qkv: qkv.view(), y: y.view(), lse: sums.view() };
        let mut dqkv = activation(device, &unread(qkv.len()));
        device.attention_back(self.of, saved, self.drop, dy.view(), dqkv.view_mut());
        vec![fetch(device, dqkv.view())]
    }
}

/// `rope`.
#[derive(Debug, Clone, Copy)]
pub struct Rope {
    pub of: AttentionShape,
    pub base: f64,
    pub seed: u64,
}

impl Rope {
    fn turned(&self, device: &dyn Device, qkv: &[f64], turn: RopeDirection) -> Vec<f64> {
        let mut qkv = activation(device, qkv);
        let places = tokens(self.of.sequence, 60, self.seed);
        device.rope(self.of, self.base, &places, turn, qkv.view_mut());
        fetch(device, qkv.view())
    }
}

impl Operation for Rope {
    fn inputs(&self) -> Vec<usize> {
        vec![self.of.rows() * self.of.qkv_width()]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        self.turned(device, &inputs[0], RopeDirection::There)
    }

    fn backward(&self, device: &dyn Device, _: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        vec![self.turned(device, dy, RopeDirection::Back)]
    }
}

/// Random tokens below a number.
pub fn tokens(count: usize, below: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|i| (random::mix(seed ^ (i << 8)) % below as u64) as u32).collect()
}

/// `embed`, of the tokens from `first` on of a vocabulary.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    pub rows: usize,
    pub vocabulary: usize,
    pub first: usize,
    pub here: usize,
    pub width: usize,
    pub seed: u64,
}

impl Embedding {
    fn tokens(&self) -> Vec<u32> {
        tokens(self.rows, self.vocabulary, self.seed)
    }
}

impl Operation for Embedding {
    fn inputs(&self) -> Vec<usize> {
        vec![self.here * self.width]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let table = real(device, &inputs[0]);
        let mut y = real(device, &unread(self.rows * self.width));
        device.embed(&self.tokens(), self.first, table.view(), y.view_mut());
        fetch(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (dy, mut dtable) = (real(device, dy), begun(device, inputs[0].len()));
        device.embed_back(&self.tokens(), self.first, dy.view(), dtable.view_mut());
        vec![added(device, &dtable)]
    }
}

/// `add_positions`: the positions, and what they are added to.
#[derive(Debug, Clone, Copy)]
pub struct Positions {
    pub batch: usize,
    pub sequence: usize,
    pub context: usize,
    pub width: usize,
    pub seed: u64,
}

impl Positions {
    fn places(&self) -> Vec<u32> {
        tokens(self.sequence, self.context, self.seed)
    }
}

impl Operation for Positions {
    fn inputs(&self) -> Vec<usize> {
        vec![self.context * self.width, self.batch * self.sequence * self.width]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (positions, mut y) = (real(device, &inputs[0]), real(device, &inputs[1]));
        device.add_positions(self.width, &self.places(), positions.view(), y.view_mut());
        fetch(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (gradient, mut dpositions) = (real(device, dy), begun(device, inputs[0].len()));
        let (places, to) = (self.places(), dpositions.view_mut());
        device.add_positions_back(self.width, &places, gradient.view(), to);
        vec![added(device, &dpositions), dy.to_vec()]
    }
}

/// `cross_entropy`, whose one number that comes out is the loss.
#[derive(Debug, Clone, Copy)]
pub struct Loss {
    pub rows: usize,
    pub vocabulary: usize,
    pub seed: u64,
}

impl Loss {
    fn targets(&self) -> Vec<u32> {
        tokens(self.rows, self.vocabulary, self.seed)
    }
}

impl Operation for Loss {
    fn inputs(&self) -> Vec<usize> {
        vec![self.rows * self.vocabulary]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let mut logits = real(device, &inputs[0]);
        let loss = device.cross_entropy(&self.targets(), logits.view_mut(), None);
        vec![loss]
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let mut logits = real(device, &inputs[0]);
        let loss = device.cross_entropy(&self.targets(), logits.view_mut(), Some(dy[0]));
        assert_eq!(vec![loss], self.forward(device, inputs), "the scale changes the loss");
        vec![fetch(device, logits.view())]
    }
}

/// The same loss of logits whose columns two ranks have, the first so many of them.
#[derive(Debug, Clone, Copy)]
pub struct SharedLoss {
    pub of: Loss,
    pub cut: usize,
}

impl SharedLoss {
    /// The loss, and the gradients of each rank's logits.
    fn both(&self, device: &dyn Device, inputs: &[Vec<f64>], scale: f64) -> (f64, Vec<Vec<f64>>) {
        let (rows, targets) = (self.of.rows, self.of.targets());
        let mut parts = real(device, &unread(2 * 3 * rows));
        let mut whole = real(device, &unread(3 * rows));
        let mut logits: Vec<_> = inputs.iter().map(|logits| real(device, logits)).collect();
        for (rank, logits) in logits.iter().enumerate() {
            let mut parts = parts.view_mut();
            let here = parts.part(3 * rows * rank..3 * rows * (rank + 1));
            device.entropy_part(&targets, rank * self.cut, logits.view(), here);
        }
        let loss = device.entropy_whole(parts.view(), whole.view_mut());
        // What was made of parts is one.
        let mut again = real(device, &unread(3 * rows));
        let same = device.entropy_whole(whole.view(), again.view_mut());
        assert!((loss - same).abs() <= 1e-6 * loss.abs(), "{loss} {same}");
        assert_eq!(fetch(device, whole.view()), fetch(device, again.view()));
        for (rank, logits) in logits.iter_mut().enumerate() {
            let (first, logits) = (rank * self.cut, logits.view_mut());
            device.entropy_back(&targets, first, whole.view(), logits, scale);
        }
        (loss, logits.iter().map(|logits| fetch(device, logits.view())).collect())
    }
}

impl Operation for SharedLoss {
    fn inputs(&self) -> Vec<usize> {
        let Loss { rows, vocabulary, .. } = self.of;
        vec![rows * self.cut, rows * (vocabulary - self.cut)]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        vec![self.both(device, inputs, 1.0).0]
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        self.both(device, inputs, dy[0]).1
    }
}

/// `dropout`.
#[derive(Debug, Clone, Copy)]
pub struct Dropping {
    pub count: usize,
    pub mask: DropoutMask,
}

impl Operation for Dropping {
    fn inputs(&self) -> Vec<usize> {
        vec![self.count]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let mut x = activation(device, &inputs[0]);
        device.dropout(self.mask, x.view_mut());
        fetch(device, x.view())
    }

    fn backward(&self, device: &dyn Device, _: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        vec![self.forward(device, &[dy.to_vec()])]
    }
}
