//! Models as chains of blocks, each with its own forward and backward pass: embedding, layers, head.
//! There is no graph: what the backward pass needs, the forward pass leaves in a `Saved`.

mod attention;
mod bank;
mod decode;
mod embedding;
mod feed_forward;
mod head;
mod held;
mod layer;
mod parts;
mod product;
mod scratch;
mod table;

pub use bank::{Bank, Given, Params};
pub use decode::Cache;
pub use embedding::Embedding;
pub use head::Head;
pub use held::Held;
pub use layer::{Layer, Saved};
pub use product::Later;
pub use scratch::{Home, Lent, Scratch};
pub use table::Table;

use std::ops::Range;

use crate::parallel::context::Ring;
use crate::parallel::tensor::Group;
use regatta_device::device::Device;
use regatta_device::memory::{Tensor, ViewMut};
use regatta_device::random::{self, Mask};
use regatta_predict::head::LogitChunks;
use regatta_predict::pipeline::Stage;
use regatta_predict::shape::{Block, BlockLayout, Matrices, Shape, Share, TABLE};

/// A model: what its blocks do, and which parameters they have. The parameters themselves are
/// elsewhere: whoever calls a block brings them.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its sizes.
    pub shape: Shape,
    /// The parameters of each block: embedding, layers, head, then tiles of their matrices.
    pub blocks: Vec<Block>,
    /// The block whose passes use each of them: itself, or of a tile the one that it was cut from.
    pub users: Vec<usize>,
    /// The first block.
    pub embedding: Embedding,
    /// The blocks between.
    pub layers: Vec<Layer>,
    /// The last block.
    pub head: Head,
}

impl Model {
    /// The model of a shape, which must have been checked.
    pub fn new(shape: Shape) -> Self {
        Self::of(shape, Share::ALL)
    }

    /// What a rank of a tensor group has of it.
    pub fn of(shape: Shape, share: Share) -> Self {
        Self::tiled(shape, share, 1)
    }

    /// The same, with the matrices of layers, the table of tokens and the head's matrix in so many
    /// tiles each.
    pub fn tiled(shape: Shape, share: Share, count: usize) -> Self {
        let layout = BlockLayout::new(&shape, share, count);
        let embedding = Embedding::new(&shape, &layout.matrices(0));
        let layer = |layer| Layer::new(&shape, layer, &layout.matrices(layer + 1));
        let layers = (0..shape.layers).map(layer).collect();
        let tied = shape.tied.then_some(&embedding.table);
        let logits = LogitChunks::new(&shape, &layout);
        let head = Head::new(&shape, &layout.matrices(shape.layers + 1), tied, logits);
        let BlockLayout { blocks, users, .. } = layout;
        Self { shape, blocks, users, embedding, layers, head }
    }

    /// Leaves what a stage of a pipeline has of it, and says of each block whether it is among that.
    /// Where a tied head is without the embedding, it has the table.
    pub fn keep(&mut self, stage: &Stage) -> Vec<bool> {
        let has_copy = stage.has_copy(&self.shape);
        if has_copy {
            self.blocks[0].parameters.retain(|parameter| parameter.name == TABLE);
        }
        let is_held = |(block, user): (&Block, &usize)| {
            !block.is_empty() && (stage.has(*user) || *user == 0 && has_copy)
        };
        self.blocks.iter().zip(&self.users).map(is_held).collect()
    }

    /// The number of the head's block.
    pub fn last(&self) -> usize {
        self.shape.layers + 1
    }
}

/// What a pass through blocks works with.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// Where it is computed.
    pub device: &'a dyn Device,
    /// Memory for what is computed.
    pub scratch: &'a Scratch,
    /// The ranks that share matrices.
    pub tensor: &'a Group,
    /// The ranks that share sequences.
    pub context: &'a Ring,
    /// Sequences in this pass.
    pub batch: usize,
    /// This rank's tokens of each.
    pub sequence: usize,
    /// What is left out, in training.
    pub dropout: Option<Dropout>,
    /// Whether layers keep only their input, and compute the rest again in the backward pass.
    pub recompute: bool,
}

impl Run<'_> {
    /// Tokens in this pass.
    pub fn rows(&self) -> usize {
        self.batch * self.sequence
    }

    /// How many of them are this rank's where ranks share the stream.
    pub fn own_rows(&self) -> usize {
        self.tensor.rows(self.rows()).len()
    }

    /// Tokens of each sequence, of all ranks that share it.
    pub fn whole(&self) -> usize {
        self.sequence * self.context.share.ranks
    }

    /// The positions of the tokens of a sequence; of all rows, if ranks share sequences.
    fn places(&self) -> Vec<u32> {
        let chunks = self.context.chunks(self.context.share.rank, self.whole());
        let times = if self.context.is_alone() { 1 } else { self.batch };
        let of = |chunk: Range<usize>| (0..times).flat_map(move |_| chunk.clone());
        chunks.into_iter().flat_map(of).map(|place| place as u32).collect()
    }

    /// Memory for numbers of the stream, of gradients of it, and of statistics. Nobody cleared it.
    pub(crate) fn real(&self, elements: usize) -> Lent {
        self.scratch.lend(self.device, elements, self.device.real_format())
    }

    /// Memory for activations. Nobody cleared it.
    pub(crate) fn activation(&self, elements: usize) -> Lent {
        self.scratch.lend(self.device, elements, self.device.activation_format())
    }

    /// Memory for so many numbers as another tensor's are.
    pub(crate) fn like(&self, other: &Tensor, elements: usize) -> Lent {
        self.scratch.lend(self.device, elements, other.format())
    }

    /// The gradient of rows of which some numbers were left out.
    fn dropped<'t>(&self, place: Place, width: usize, dx: &'t Tensor) -> Held<'t> {
        if self.dropout.is_none_or(|dropout| dropout.share <= 0.0) {
            return Held::Other(dx);
        }
        let mut dropped = self.real(dx.len());
        self.device.copy(dx.view(), dropped.view_mut());
        self.drop_rows(place, width, dropped.view_mut());
        Held::Own(dropped)
    }

    /// Leaves out some numbers of this rank's rows of the stream, at one place in the model.
    fn drop_rows(&self, place: Place, width: usize, mut x: ViewMut<'_>) {
        let Some(mask) = self.mask(place, self.whole() * width) else { return };
        for (here, place) in self.spans() {
            let first = mask.first + (place * width) as u64;
            let here = here.start * width..here.end * width;
            self.device.dropout(Mask { first, ..mask }, x.part(here));
        }
    }

    /// This rank's rows of the stream, by where they lie one after the other in those of whole
    /// sequences.
    fn spans(&self) -> Vec<(Range<usize>, usize)> {
        let own = self.tensor.rows(self.rows());
        let first = own.start;
        let mut spans: Vec<(Range<usize>, usize)> = Vec::new();
        if self.context.is_alone() {
            return vec![(0..own.len(), first)];
        }
        let places = self.places();
        let each = self.sequence / 2;
        for row in own {
            let sequence = row / each % self.batch;
            let place = sequence * self.whole() + places[row] as usize;
            match spans.last_mut() {
                Some((here, start)) if *start + here.len() == place => here.end += 1,
                _ => spans.push((row - first..row - first + 1, place)),
            }
        }
        spans
    }

    /// The mask for one place in the model, with so many numbers for each sequence.
    fn mask(&self, place: Place, each: usize) -> Option<Mask> {
        let Dropout { share, seed, step, first } = self.dropout?;
        let Place { block, part } = place;
        let key = random::key(seed, &[DROPOUT, step, block as u64, part]);
        (share > 0.0).then_some(Mask { share, key, first: first * each as u64 })
    }
}

/// What dropout's random numbers are told apart from others by.
const DROPOUT: u64 = 0x6472_6f70;

/// A place in the model where numbers are left out.
#[derive(Debug, Clone, Copy)]
struct Place {
    block: usize,
    part: u64,
}

/// Which numbers are left out: a function of the step and of the number that a sequence has among
/// all of the step, and so the same however the sequences are shared among ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// What share is left out.
    pub share: f32,
    /// The seed of the training.
    pub seed: u64,
    /// The step.
    pub step: u64,
    /// The number of the first sequence of this pass among all of the step.
    pub first: u64,
}
