//! One training step: forward, backward, exchange, update.

use std::time::{Duration, Instant};

use regatta_comm::CommError;

use crate::device::Device;
use crate::memory::{Tensor, View, ViewMut};
use crate::model::{Dropout, HeadGrads, HeadParams, Lent, Model, Run, Saved, Scratch};
use crate::optimizer::{AdamW, Sgd};
use crate::parallel::Exchange;
use crate::state::State;

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
    fn sequence(&self) -> usize {
        self.inputs.len() / self.batch.max(1)
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
    /// Waiting for other ranks' gradients when there was nothing else to do.
    pub communication: Duration,
    /// Clipping and the update.
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

/// A model on a device.
pub struct Net {
    /// What it is.
    pub model: Model,
    /// Where it is.
    pub device: Box<dyn Device>,
    scratch: Scratch,
}

impl Net {
    /// It.
    pub fn new(model: Model, device: Box<dyn Device>) -> Self {
        Self { model, device, scratch: Scratch::new() }
    }

    /// What a pass works with.
    pub fn run(&self, batch: usize, sequence: usize) -> Run<'_> {
        let (device, scratch) = (&*self.device, &self.scratch);
        Run { device, scratch, batch, sequence, dropout: None, recompute: false }
    }

    /// The stream behind the last layer, and what the layers' backward passes need.
    fn forward(&self, run: &Run<'_>, params: &[Tensor], inputs: &[u32]) -> (Lent, Vec<Saved>) {
        let mut x = self.model.embedding.forward(run, params[0].view(), inputs);
        let mut all = Vec::with_capacity(self.model.layers.len());
        for (layer, params) in self.model.layers.iter().zip(&params[1..]) {
            let (out, saved) = layer.forward(run, params.view(), x);
            all.push(saved);
            x = out;
        }
        (x, all)
    }

    /// The sum of the losses of sequences, without training.
    pub fn loss(&self, params: &[Tensor], micro: &Micro<'_>) -> f64 {
        // What layers would save for a backward pass is dropped by each at once.
        let run = Run { recompute: true, ..self.run(micro.batch, micro.sequence()) };
        let (x, _) = self.forward(&run, params, micro.inputs);
        self.model.head.loss(&run, self.head_params(params), &x, micro.targets)
    }

    /// The head's parameters, which may be the embedding's.
    pub fn head_params<'a>(&self, params: &'a [Tensor]) -> HeadParams<'a> {
        let table = self.model.embedding.table(params[0].view());
        HeadParams { own: params[self.model.last()].view(), table }
    }
}

/// A model in training.
pub struct Engine {
    /// What is trained, and where.
    pub net: Net,
    /// Parameters and what belongs to them.
    pub state: State,
    exchange: Box<dyn Exchange>,
}

impl Engine {
    /// A model with its initial parameters.
    pub fn new(net: Net, exchange: Box<dyn Exchange>, seed: u64) -> Self {
        let gradients = |elements| exchange.memory(&*net.device, elements);
        let state = State::new(&net.model, &*net.device, seed, gradients);
        Self { net, state, exchange }
    }

    /// One step over this rank's part of the batch, in as many passes as it comes in.
    pub fn step<'a>(
        &mut self,
        plan: &Plan,
        micros: impl Iterator<Item = Micro<'a>>,
    ) -> Result<Outcome, CommError> {
        let mut laps = Laps::default();
        let mut loss_sum = 0.0;
        let mut micros = micros.peekable();
        timed(&mut laps.optimizer, || self.clear_gradients());
        while let Some(micro) = micros.next() {
            let last = micros.peek().is_none();
            loss_sum += self.pass(plan, &micro, last, &mut laps);
        }
        timed(&mut laps.communication, || self.gather())?;
        let gradient_norm = timed(&mut laps.optimizer, || self.update(plan));
        Ok(Outcome { loss_sum, gradient_norm, laps })
    }

    /// Forward and backward. In the last pass of a step the gradients of a block begin their way to
    /// the other ranks as soon as they are complete.
    fn pass(&mut self, plan: &Plan, micro: &Micro<'_>, last: bool, laps: &mut Laps) -> f64 {
        let Self { net, state, exchange } = self;
        let Plan { dropout: share, seed, step, recompute, .. } = *plan;
        let dropout = Some(Dropout { share, seed, step, first: micro.first });
        let run = Run { dropout, recompute, ..net.run(micro.batch, micro.sequence()) };
        let (params, grads) = (&state.parameters, &mut state.gradients);
        let forward = || net.forward(&run, params, micro.inputs);
        let (x, saved) = timed(&mut laps.forward, forward);
        let started = Instant::now();
        let mut complete = |block: usize, grads: &mut [Option<Tensor>]| {
            if let Some(tensor) = grads[block].take_if(|_| last) {
                exchange.ready(block, tensor);
            }
        };
        let (loss, mut dx) = {
            let mut grads = net.head_grads(grads);
            let (params, scale) = (net.head_params(params), 1.0 / plan.tokens as f64);
            let head = &net.model.head;
            head.loss_and_gradients(&run, params, &mut grads, (&x, micro.targets), scale)
        };
        drop(x);
        complete(net.model.last(), grads);
        let layers = net.model.layers.iter().zip(saved).enumerate();
        for (number, (layer, saved)) in layers.rev() {
            let block = number + 1;
            layer.backward(&run, params[block].view(), of(grads, block), saved, &mut dx);
            complete(block, grads);
        }
        net.model.embedding.backward(&run, of(grads, 0), micro.inputs, dx);
        complete(0, grads);
        laps.backward += started.elapsed();
        loss
    }

    fn clear_gradients(&mut self) {
        for tensor in self.state.gradients.iter_mut().flatten() {
            self.net.device.clear(tensor.view_mut());
        }
    }

    /// Waits for the sums of all ranks.
    fn gather(&mut self) -> Result<(), CommError> {
        for (block, tensor) in self.exchange.finish()? {
            self.state.gradients[block] = Some(tensor);
        }
        Ok(())
    }

    /// Clips, and changes the parameters. Returns the norm of the gradients.
    fn update(&mut self, plan: &Plan) -> f64 {
        let device = &*self.net.device;
        let gradients = self.state.gradients.iter().flatten();
        let norm = gradients.map(|tensor| device.square_sum(tensor.view())).sum::<f64>().sqrt();
        let rule = plan.rule.scaled(clipped(norm, plan.clip));
        for (number, block) in self.net.model.blocks.iter().enumerate() {
            let Some(gradients) = &self.state.gradients[number] else { continue };
            let (params, [first, second]) =
                (&mut self.state.parameters[number], &mut self.state.moments[number]);
            for parameter in &block.parameters {
                let range = || parameter.range();
                let gradients = gradients.view().part(range());
                let [mut first, mut second] = [first.view_mut(), second.view_mut()];
                let moments = [first.part(range()), second.part(range())];
                let mut params = params.view_mut();
                rule.apply(device, parameter.decays(), gradients, moments, params.part(range()));
            }
        }
        norm
    }
}

impl Net {
    /// Where the head's gradients are, which may be the embedding's.
    fn head_grads<'a>(&self, grads: &'a mut [Option<Tensor>]) -> HeadGrads<'a> {
        let (first, rest) = grads.split_at_mut(1);
        let table = self.model.embedding.table_of(of(first, 0));
        HeadGrads { own: of(rest, self.model.last() - 1), table }
    }
}

impl Rule {
    fn scaled(self, by: f64) -> Self {
        match self {
            Self::AdamW(how) => Self::AdamW(AdamW { scale: by, ..how }),
            Self::Sgd(how) => Self::Sgd(Sgd { scale: by, ..how }),
        }
    }

    fn apply(
        self,
        device: &dyn Device,
        decays: bool,
        gradients: View<'_>,
        moments: [ViewMut<'_>; 2],
        parameters: ViewMut<'_>,
    ) {
        let kept = |decay: f64| if decays { decay } else { 0.0 };
        match self {
            Self::AdamW(how) => {
                let how = AdamW { decay: kept(how.decay), ..how };
                device.adamw(&how, gradients, moments, parameters);
            }
            Self::Sgd(how) => {
                let how = Sgd { decay: kept(how.decay), ..how };
                let [momentum, _] = moments;
                device.sgd(&how, gradients, momentum, parameters);
            }
        }
    }
}

/// What gradients of this norm are multiplied by.
fn clipped(norm: f64, most: f64) -> f64 {
    if most > 0.0 { (most / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

/// A block's gradients, which are here between exchanges.
fn of(grads: &mut [Option<Tensor>], block: usize) -> ViewMut<'_> {
    match &mut grads[block] {
        Some(tensor) => tensor.view_mut(),
        None => unreachable!("gradients are here until their block is complete"),
    }
}

fn timed<T>(lap: &mut Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = work();
    *lap += started.elapsed();
    done
}
