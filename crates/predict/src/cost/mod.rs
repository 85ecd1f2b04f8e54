//! What a split costs: what each rank holds, and what it sends, reads and writes in a step.
//! Counted from the model's blocks and from what the engine does, in whole bytes. No I/O.
//!
//! With P parameters, n data ranks, t tensor ranks, s·b tokens of a micro-batch of width h, all of it
//! comes to the usual formulas: states 16·P/t bytes a rank (all is f32), (8+8/n)·P/t under ZeRO 1,
//! (4+12/n)·P/t under ZeRO 2, 16·P/(n·t) and the blocks that are gathered under ZeRO 3; data parallel
//! sends 2(n-1)/n of the gradients, ZeRO 3 (n-1)/n of the parameters twice and of the gradients once
//! a micro-batch; tensor parallel 8(t-1)/t·s·b·h numbers a layer; a pipeline s·b·h numbers a boundary
//! and way. What they leave out, such as padding, norms and positions, is counted here.

mod blocks;
mod holds;
mod moves;
mod sends;

use std::collections::HashMap;

use blocks::{Alike, Blocks, Place};

use crate::moved::Moved;
use crate::pipeline::{Stage, StageError};
use crate::plan::ParallelPlan;
use crate::shape::Shape;
use crate::{axis::Axis, mesh::Seat};

/// How numbers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Bytes of a number of parameters, gradients, moments, and of the stream.
    pub real: u64,
    /// Bytes of a number of other activations.
    pub activation: u64,
    /// Whether layers compute their activations again instead of keeping them.
    pub recompute: bool,
}

impl Form {
    /// With f32 parameters and residual stream.
    pub fn new(activation_bytes: u64, recompute: bool) -> Self {
        Self { real: 4, activation: activation_bytes, recompute }
    }
}

/// Bytes of one kind of state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Held {
    /// What is always there.
    pub kept: u64,
    /// For blocks that come and go during a step.
    pub passing: u64,
}

impl Held {
    /// The most at any time.
    pub fn most(&self) -> u64 {
        self.kept + self.passing
    }
}

/// What a rank holds, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Holds {
    /// Parameters.
    pub parameters: Held,
    /// Their gradients.
    pub gradients: Held,
    /// What the optimizer remembers: two moments of each.
    pub moments: Held,
    /// What forward passes leave for backward passes, of all micro-batches that are under way at once.
    pub activations: u64,
    /// What passes work with beside that: gradients of activations on their way back through a layer,
    /// the logits that are in memory at once, messages between stages, and copies of a tied table's
    /// gradients where two stages sum them.
    pub working: u64,
}

impl Holds {
    /// Parameters, gradients and the optimizer's state.
    pub fn state(&self) -> u64 {
        self.parameters.most() + self.gradients.most() + self.moments.most()
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.state() + self.activations + self.working
    }
}

/// What a rank sends in a step, in bytes by the rules of [`regatta_comm::count::must_send`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sends {
    by_axis: [u64; Axis::ALL.len()],
}

impl Sends {
    /// On an axis.
    pub fn on(&self, axis: Axis) -> u64 {
        self.by_axis[axis as usize]
    }

    /// On all.
    pub fn total(&self) -> u64 {
        self.by_axis.iter().sum()
    }
}

/// What a rank of a split has to do with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cost {
    /// The names of the blocks that it has, or has shares of.
    pub blocks: Vec<String>,
    /// What it holds.
    pub holds: Holds,
    /// What it sends in a step.
    pub sends: Sends,
    /// What it reads from disk and writes there in a step.
    pub moves: Moved,
}

/// Why a split's cost cannot be said.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CostError {
    /// The model is not cut so.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Its bytes would not fit into 64 bits.
    #[error(
        "a step over {tokens:.1e} tokens with {parameters:.1e} parameters is more than can be \
         counted: make train.batch, model.context or the model smaller"
    )]
    TooLarge {
        /// Tokens of a copy of the model.
        tokens: f64,
        /// Parameters.
        parameters: f64,
    },
}

/// What the ranks of a split cost.
#[derive(Debug, Clone)]
pub struct Costs {
    /// Of each kind of rank, counted once. Some kinds may cost the same.
    pub kinds: Vec<Cost>,
    /// Which kind each rank is of.
    pub of: Vec<usize>,
}

impl Costs {
    /// What a rank costs.
    pub fn rank(&self, rank: usize) -> &Cost {
        &self.kinds[self.of[rank]]
    }
}

/// What each rank of a split costs. Ranks that differ in nothing that matters are of one kind: of the
/// copies of the model there may be thousands.
pub fn costs(shape: &Shape, plan: &ParallelPlan, form: Form) -> Result<Costs, CostError> {
    check_size(shape, plan)?;
    let mesh = &plan.mesh;
    let mut stage = stage(shape, plan, 0)?;
    let mut costs = Costs { kinds: Vec::new(), of: vec![0; mesh.ranks()] };
    for tp in 0..mesh.tp {
        let first = Seat { dp: 0, cp: 0, tp, pp: 0 };
        let blocks = Blocks::new(shape, first.tensor_share(mesh), plan.tiles);
        for pp in 0..mesh.pp {
            stage.stage = pp;
            let seat = Seat { pp, ..first };
            costs.add(Part::new(shape, plan, form, seat, &stage, &blocks));
        }
    }
    Ok(costs)
}

impl Costs {
    /// All ranks that have the same stage and the same part of each matrix.
    fn add(&mut self, mut part: Part<'_>) {
        let mesh = part.plan.mesh;
        let mut known = HashMap::new();
        for data in 0..mesh.data_ranks() {
            part.seat = Seat { dp: data / mesh.cp, cp: data % mesh.cp, ..part.seat };
            let kinds = &mut self.kinds;
            let kind = *known.entry(part.kind()).or_insert_with(|| {
                kinds.push(part.cost());
                kinds.len() - 1
            });
            self.of[mesh.rank(part.seat)] = kind;
        }
    }
}

/// What one rank costs.
pub fn cost(
    shape: &Shape,
    plan: &ParallelPlan,
    form: Form,
    rank: usize,
) -> Result<Cost, CostError> {
    check_size(shape, plan)?;
    let seat = plan.mesh.seat(rank);
    let stage = stage(shape, plan, seat.pp)?;
    let blocks = Blocks::new(shape, seat.tensor_share(&plan.mesh), plan.tiles);
    Ok(Part::new(shape, plan, form, seat, &stage, &blocks).cost())
}

/// A rank's part in the pipeline.
fn stage(shape: &Shape, plan: &ParallelPlan, number: usize) -> Result<Stage, StageError> {
    match plan.mesh.pp {
        1 => Ok(Stage::whole(shape)),
        pp => {
            let how = (plan.schedule, pp, plan.chunks, plan.accumulation);
            Stage::new(shape, how, number)
        }
    }
}

/// Nobody trains what is refused here, but somebody may mistype it.
fn check_size(shape: &Shape, plan: &ParallelPlan) -> Result<(), CostError> {
    // More than any of the sums below has for a number: bytes, ways, passes, and moments.
    const TIMES: f64 = 128.0;
    let parameters = shape.parameters() as f64;
    let tokens = plan.share as f64 * shape.context as f64;
    let widths = [4 * shape.width, shape.qkv_width(), 2 * shape.up_width(), shape.vocabulary];
    let a_token = widths.iter().sum::<usize>() as f64 * (shape.layers + 2) as f64;
    let most = tokens * a_token + parameters * plan.accumulation as f64;
    match most * TIMES < u64::MAX as f64 {
        true => Ok(()),
        false => Err(CostError::TooLarge { tokens, parameters }),
    }
}

/// A rank's part of a training.
struct Part<'a> {
    shape: &'a Shape,
    plan: &'a ParallelPlan,
    form: Form,
    seat: Seat,
    stage: &'a Stage,
    /// What all stages of its tensor-parallel rank have.
    blocks: &'a Blocks,
    /// The blocks that this rank has.
    held: Vec<Alike>,
}

/// Shares of blocks begin at a multiple of so many numbers.
const ALIGNED: usize = 32;

impl<'a> Part<'a> {
    fn new(
        shape: &'a Shape,
        plan: &'a ParallelPlan,
        form: Form,
        seat: Seat,
        stage: &'a Stage,
        blocks: &'a Blocks,
    ) -> Self {
        let mut part = Self { shape, plan, form, seat, stage, blocks, held: Vec::new() };
        let layers: u64 = stage.chunks().map(|chunk| part.layers(chunk) as u64).sum();
        let several = |alike: &Alike| Alike { count: alike.count * layers, ..*alike };
        let first = match (stage.has(0), stage.has_copy(shape)) {
            (true, _) => &blocks.embedding[..],
            (_, true) => &blocks.table,
            _ => &[],
        };
        part.held.extend(first);
        part.held.extend(blocks.layer.iter().map(several).filter(|alike| alike.count > 0));
        part.held.extend(part.has_head().then_some(&blocks.head).into_iter().flatten());
        part
    }

    fn cost(&self) -> Cost {
        let (holds, sends, moves) = (self.holds(), self.sends(), self.moves());
        Cost { blocks: self.names(), holds, sends, moves }
    }

    /// The names of the blocks that this rank has. Tiles are parts of others.
    fn names(&self) -> Vec<String> {
        let (stage, last) = (self.stage, self.shape.layers + 1);
        let own = stage.chunks().flat_map(|chunk| stage.parts[chunk].clone());
        let copy = stage.has_copy(self.shape).then_some(0);
        let name = |number: usize| match number {
            0 => "embed".to_owned(),
            head if head == last => "head".to_owned(),
            layer => format!("layer.{}", layer - 1),
        };
        copy.into_iter().chain(own).map(name).collect()
    }

    /// All blocks that this rank has, as many numbers as are asked for of each.
    fn sum(&self, numbers: impl Fn(&Alike) -> u64) -> u64 {
        self.held.iter().map(|alike| alike.count * numbers(alike)).sum()
    }

    /// Whether matrices are in tiles: those of layers, the table of tokens and the head's.
    fn is_tiled(&self) -> bool {
        self.plan.tiles > 1
    }

    fn has_head(&self) -> bool {
        self.stage.has(self.shape.layers + 1)
    }

    /// The layers of each chunk of this rank, as many as there are.
    fn layers(&self, chunk: usize) -> usize {
        let part = &self.stage.parts[chunk];
        part.end.min(self.shape.layers + 1).saturating_sub(part.start.max(1))
    }

    /// What is shared: who shares with nobody has all, and parameters on disk are shared by those who
    /// could.
    fn zero(&self) -> usize {
        match (self.plan.mesh.shard, self.plan.on_disk.parameters) {
            (1, _) => 0,
            (_, true) => 3,
            _ => self.plan.zero,
        }
    }

    /// How many ranks share a block.
    fn sharing(&self) -> usize {
        if self.zero() > 0 { self.plan.mesh.shard } else { 1 }
    }

    /// Numbers of a block, with those that make it share equally.
    fn room(&self, block: &Alike) -> usize {
        match self.sharing() {
            1 => block.room,
            ranks => block.room.next_multiple_of(ranks * ALIGNED),
        }
    }

    /// This rank's tokens of a micro-batch.
    fn rows(&self) -> usize {
        self.plan.micro_batch * self.shape.context / self.plan.mesh.cp
    }

    /// Those of them that it has where tensor-parallel ranks share the stream.
    fn own_rows(&self) -> usize {
        if self.plan.sequence { self.rows() / self.plan.mesh.tp } else { self.rows() }
    }
}
