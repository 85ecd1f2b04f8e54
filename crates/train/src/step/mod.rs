//! One training step: forward, backward, exchange, update.

mod bank;
mod net;
mod pass;
mod update;

pub use net::Net;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::parallel::Groups;
use crate::parallel::context::Ring;
pub use crate::state::StepError;
use crate::state::{Sharing, State};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_predict::pipeline::Stage;

/// Sequences that go through the model at once.
#[derive(Debug, Clone, Copy)]
pub struct Micro<'a> {
    /// Tokens, sequence after sequence.
    pub inputs: &'a [u32],
    /// The token behind each.
    pub targets: &'a [u32],
    /// How many sequences.
    pub batch: usize,
    /// The number of the first one among all of the step.
    pub first: u64,
}

impl Micro<'_> {
    pub(crate) fn sequence(&self) -> usize {
        self.inputs.len() / self.batch.max(1)
    }
}

/// This rank's tokens of sequences that it may share with others.
struct Own<'a> {
    inputs: Cow<'a, [u32]>,
    targets: Cow<'a, [u32]>,
    batch: usize,
    first: u64,
}

impl<'a> Own<'a> {
    fn of(micro: Micro<'a>, ring: &Ring) -> Self {
        let (whole, Micro { inputs, targets, batch, first }) = (micro.sequence(), micro);
        let [inputs, targets] = [inputs, targets].map(|tokens| ring.take(tokens, whole));
        Self { inputs, targets, batch, first }
    }

    fn micro(&self) -> Micro<'_> {
        let Self { inputs, targets, batch, first } = self;
        Micro { inputs, targets, batch: *batch, first: *first }
    }
}

/// How parameters follow their gradients in this step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// AdamW; its decay is for matrices only, its scale is set here.
    AdamW(AdamW),
    /// Gradient descent; likewise.
    Sgd(Sgd),
}

/// What is the same for all of a step.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The step's number, from 0.
    pub step: u64,
    /// Tokens of all ranks and passes: what the loss is a mean over.
    pub tokens: u64,
    /// How parameters are changed.
    pub rule: Rule,
    /// The greatest norm that gradients may have, all together; 0: any.
    pub clip: f64,
    /// The share of numbers that is left out.
    pub dropout: f32,
    /// The seed of the training.
    pub seed: u64,
    /// Whether layers compute their activations again instead of keeping them.
    pub recompute: bool,
}

/// Where the time of a step went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Laps {
    /// Embedding and layers.
    pub forward: Duration,
    /// The head, whose loss and gradients are one pass, layers and embedding.
    pub backward: Duration,
    /// Waiting for other ranks, or for the disk, when there was nothing else to do.
    pub communication: Duration,
    /// Clearing, adding up and clipping gradients, and the update.
    pub optimizer: Duration,
}

/// What a step came to on this rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The sum of the losses of this rank's tokens.
    pub loss_sum: f64,
    /// The norm of the gradients of all ranks, before it was clipped.
    pub gradient_norm: f64,
    /// Where the time went.
    pub laps: Laps,
}

/// A model in training.
pub struct Engine {
    /// What is trained, and where.
    pub net: Net,
    /// Parameters and what belongs to them.
    pub state: State,
    /// The other ranks.
    pub groups: Groups,
    /// Which part of the model this rank has, and what it does in a step.
    pub stage: Stage,
}

impl Engine {
    /// A model with its initial parameters, on one rank.
    pub fn alone(net: Net, seed: u64) -> Self {
        let stage = Stage::whole(&net.model.shape);
        match Self::new(net, Groups::alone(), stage, &Sharing::default(), seed) {
            Ok(engine) => engine,
            Err(_) => unreachable!("nobody else is there, and nothing is on disk"),
        }
    }

    /// A model with its initial parameters, shared with other ranks.
    pub fn new(
        mut net: Net,
        groups: Groups,
        stage: Stage,
        how: &Sharing,
        seed: u64,
    ) -> Result<Self, StepError> {
        let held = net.model.keep(&stage);
        let is_held = |block: usize| held[block];
        let state = State::new(&net.model, &*net.device, &groups, how, is_held, seed)?;
        Ok(Self { net, state, groups, stage })
    }

    /// One step over this rank's part of the batch, in as many passes as it comes in.
    pub fn step<'a>(
        &mut self,
        plan: &Plan,
        micros: impl Iterator<Item = Micro<'a>>,
    ) -> Result<Outcome, StepError> {
        let mut laps = Laps::default();
        self.state.take_waited();
        self.net.ask(&mut self.state.weights, self.stage.parts[self.stage.stage].start);
        timed(&mut laps.optimizer, || self.state.gradients.clear(&*self.net.device));
        let own: Vec<Own<'a>> = micros.map(|micro| Own::of(micro, &self.net.context)).collect();
        let micros: Vec<Micro<'_>> = own.iter().map(Own::micro).collect();
        let loss_sum = self.passes(plan, &micros, &mut laps)?;
        let began = Instant::now();
        self.state.gradients.finish(&*self.net.device)?;
        laps.optimizer += worked(&self.net, &mut self.state, began, &mut laps.communication);
        let gradient_norm = timed(&mut laps.optimizer, || self.update(plan))?;
        Ok(Outcome { loss_sum: self.counted(loss_sum), gradient_norm, laps })
    }

    /// The sum of the losses of sequences, without training. Of ranks that share a model, one says
    /// it and the others nothing.
    pub fn loss(&mut self, micro: &Micro<'_>) -> Result<f64, StepError> {
        let own = Own::of(*micro, &self.net.context);
        let loss = self.forward_loss(&own.micro())?;
        Ok(self.counted(loss))
    }

    /// Ranks that share matrices all know the whole loss; it counts once.
    fn counted(&self, loss: f64) -> f64 {
        if self.groups.seat.tp == 0 { loss } else { 0.0 }
    }
}

/// How long this rank was at work since then; what it waited for other ranks or the disk is added to
/// communication.
fn worked(net: &Net, state: &mut State, began: Instant, communication: &mut Duration) -> Duration {
    let waited = net.waited() + state.take_waited();
    *communication += waited;
    began.elapsed().saturating_sub(waited)
}

fn timed<T>(lap: &mut Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = work();
    *lap += started.elapsed();
    done
}
