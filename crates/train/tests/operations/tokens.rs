//! Attention, positions, embeddings, the loss, dropout.

use regatta_train::device::{Attention, AttentionSaved, Device, Turn};
use regatta_train::random::{self, Mask};

use crate::check::{Operation, activation, added, begun, real, unread};
use crate::numbers::fetch;

/// `attention`.
#[derive(Debug, Clone, Copy)]
pub struct Attending {
    pub of: Attention,
    pub drop: Option<Mask>,
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
        let saved = AttentionSaved { qkv: qkv.view(), y: y.view(), log_sums: sums.view() };
        let mut dqkv = activation(device, &unread(qkv.len()));
        device.attention_back(self.of, saved, self.drop, dy.view(), dqkv.view_mut());
        vec![fetch(device, dqkv.view())]
    }
}

/// `rope`.
#[derive(Debug, Clone, Copy)]
pub struct Rope {
    pub of: Attention,
    pub base: f64,
    pub first: usize,
}

impl Rope {
    fn turned(&self, device: &dyn Device, qkv: &[f64], turn: Turn) -> Vec<f64> {
        let mut qkv = activation(device, qkv);
        device.rope(self.of, self.base, self.first, turn, qkv.view_mut());
        fetch(device, qkv.view())
    }
}

impl Operation for Rope {
    fn inputs(&self) -> Vec<usize> {
        vec![self.of.rows() * self.of.qkv_width()]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        self.turned(device, &inputs[0], Turn::There)
    }

    fn backward(&self, device: &dyn Device, _: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        vec![self.turned(device, dy, Turn::Back)]
    }
}

/// Random tokens below a number.
pub fn tokens(count: usize, below: usize, seed: u64) -> Vec<u32> {
    (0..count as u64).map(|i| (random::mix(seed ^ (i << 8)) % below as u64) as u32).collect()
}

/// `embed`: the table, perhaps positions.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    pub batch: usize,
    pub sequence: usize,
    pub vocabulary: usize,
    pub width: usize,
    pub positions: bool,
    pub seed: u64,
}

impl Embedding {
    fn tokens(&self) -> Vec<u32> {
        tokens(self.batch * self.sequence, self.vocabulary, self.seed)
    }
}

impl Operation for Embedding {
    fn inputs(&self) -> Vec<usize> {
        let mut all = vec![self.vocabulary * self.width];
        all.extend(self.positions.then_some(self.sequence * self.width));
        all
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let table = real(device, &inputs[0]);
        let positions = inputs.get(1).map(|positions| real(device, positions));
        let positions = positions.as_ref().map(|positions| positions.view());
        let mut y = real(device, &unread(self.batch * self.sequence * self.width));
        device.embed(&self.tokens(), self.sequence, table.view(), positions, y.view_mut());
        fetch(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (dy, mut dtable) = (real(device, dy), begun(device, inputs[0].len()));
        let mut dpositions = inputs.get(1).map(|positions| begun(device, positions.len()));
        let to = dpositions.as_mut().map(|positions| positions.view_mut());
        device.embed_back(&self.tokens(), self.sequence, dy.view(), dtable.view_mut(), to);
        let mut all = vec![added(device, &dtable)];
        all.extend(dpositions.map(|positions| added(device, &positions)));
        all
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

/// `dropout`.
#[derive(Debug, Clone, Copy)]
pub struct Dropping {
    pub count: usize,
    pub mask: Mask,
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
