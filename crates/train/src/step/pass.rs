//! Passes through this rank's part of the model, in the order of its schedule.
//!
//! The parameters of each block are asked for while the block before it is at work, brought, used and
//! freed; its gradients go on their way as soon as they are complete.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use super::bank::{Reading, Working};
use super::{Engine, Laps, Micro, Net, Plan, timed, worked};
use crate::model::{Dropout, Later, Lent, Run, Saved};
use crate::parallel::pipeline::Lines;
use crate::state::{Gradients, State, StepError, Weights};
use regatta_predict::pipeline::{Action, Way, Work};

/// What a forward pass through a chunk leaves for the way back.
struct Alive {
    /// The stream behind the last chunk of the model.
    x: Option<Lent>,
    /// What each layer saved.
    saved: Vec<Saved>,
    /// Gradients of layers' matrices that are still to be computed, with their blocks.
    later: Vec<(usize, Vec<Later>)>,
}

/// What is under way in a step.
struct Flow<'a> {
    plan: &'a Plan,
    micros: &'a [Micro<'a>],
    lines: Lines,
    /// By chunk and micro-batch.
    alive: HashMap<(usize, usize), Alive>,
    loss: f64,
    laps: &'a mut Laps,
}

impl Engine {
    /// All passes of a step. Returns the sum of the losses, if the head is here.
    pub(super) fn passes(
        &mut self,
        plan: &Plan,
        micros: &[Micro<'_>],
        laps: &mut Laps,
    ) -> Result<f64, StepError> {
        let actions = self.stage.actions(micros.len()).into_owned();
        let lines = Lines::new(&self.groups, &self.stage, &actions);
        let mut flow = Flow { plan, micros, lines, alive: HashMap::new(), loss: 0.0, laps };
        for action in actions {
            match action.work {
                Work::Forward => self.forward(action, &mut flow)?,
                Work::Backward | Work::Input => self.backward(action, &mut flow)?,
                Work::Weight => self.weights(action, &mut flow)?,
            }
        }
        let Flow { lines, loss, laps, .. } = flow;
        timed(&mut laps.communication, || lines.finish())?;
        timed(&mut laps.communication, || self.tie())?;
        Ok(loss)
    }

    fn forward(&mut self, action: Action, flow: &mut Flow<'_>) -> Result<(), StepError> {
        let Action { chunk, micro, .. } = action;
        let Self { net, state, stage, .. } = self;
        let run = net.train(flow.plan, &flow.micros[micro]);
        net.ask(&mut state.weights, stage.parts[chunk].start);
        let input = match stage.is_first(chunk) {
            true => None,
            false => Some(receive(Way::Forward, net, &run, flow)?),
        };
        let began = Instant::now();
        let (part, inputs) = (stage.parts[chunk].clone(), flow.micros[micro].inputs);
        let (x, saved) = forward(net, &mut state.weights, &run, part, (input, inputs))?;
        flow.laps.forward += worked(net, state, began, &mut flow.laps.communication);
        let x = match stage.is_last(chunk) {
            true => Some(x),
            false => send(Way::Forward, x, flow).map(|()| None)?,
        };
        flow.alive.insert((chunk, micro), Alive { x, saved, later: Vec::new() });
        Ok(())
    }

    /// The way back through a chunk. If only the gradient of the input is asked for, those of
    /// matrices are left for later.
    fn backward(&mut self, action: Action, flow: &mut Flow<'_>) -> Result<(), StepError> {
        let Action { work, chunk, micro: number } = action;
        let last = number + 1 == flow.micros.len();
        let tied_apart = self.stage.is_tied_apart(&self.net.model.shape);
        let Self { net, state, stage, .. } = self;
        let micro = &flow.micros[number];
        let run = net.train(flow.plan, micro);
        let Some(mut alive) = flow.alive.remove(&(chunk, number)) else {
            unreachable!("{action} comes after its forward pass")
        };
        let layers = layers(net, &stage.parts[chunk]);
        layers.clone().last().into_iter().for_each(|block| state.weights.ask(block));
        let mut dx = match alive.x.take() {
            Some(x) => head(net, state, &run, (x, number, tied_apart), flow)?,
            None => receive(Way::Backward, net, &run, flow)?,
        };
        let began = Instant::now();
        let saved = std::mem::take(&mut alive.saved);
        for (block, saved) in layers.clone().zip(saved).rev() {
            let mut later = Vec::new();
            layer_back(net, state, &run, (block, layers.start, last), saved, &mut dx, {
                (work == Work::Input).then_some(&mut later)
            })?;
            match work {
                Work::Input => alive.later.push((block, later)),
                _ => complete(net, &run, &mut state.gradients, block, last)?,
            }
        }
        let onward = if stage.is_first(chunk) {
            embedding_back(net, state, &run, (micro.inputs, last, tied_apart), dx)?;
            None
        } else {
            Some(dx)
        };
        flow.laps.backward += worked(net, state, began, &mut flow.laps.communication);
        if let Some(dx) = onward {
            send(Way::Backward, dx, flow)?;
        }
        if work == Work::Input {
            flow.alive.insert((chunk, number), alive);
        }
        Ok(())
    }

    /// What was left for later.
    fn weights(&mut self, action: Action, flow: &mut Flow<'_>) -> Result<(), StepError> {
        let Action { chunk, micro, .. } = action;
        let last = micro + 1 == flow.micros.len();
        let Self { net, state, .. } = self;
        let run = net.train(flow.plan, &flow.micros[micro]);
        let began = Instant::now();
        let Some(alive) = flow.alive.remove(&(chunk, micro)) else {
            unreachable!("{action} comes after the gradient of its input")
        };
        for (block, later) in alive.later {
            let (device, leaving) = (&*net.device, Some(last));
            let mut bank = Working { state, device, block, later: None, leaving };
            later.into_iter().try_for_each(|later| later.finish(&run, &mut bank))?;
            complete(net, &run, &mut state.gradients, block, last)?;
        }
        flow.laps.backward += worked(net, state, began, &mut flow.laps.communication);
        Ok(())
    }

    /// A tied table that the first and the last stage both have gets the gradients of both.
    fn tie(&mut self) -> Result<(), StepError> {
        let Self { net, state, stage, groups } = self;
        if !stage.is_tied_apart(&net.model.shape) {
            return Ok(());
        }
        let (run, table) = (net.run(1, 1), &net.model.embedding.table);
        for block in table.blocks() {
            if let Some(comm) = &groups.tied {
                let numbers = table.of_block(block, state.gradients.of(block));
                crate::parallel::tensor::sum_of(&**comm, &run, numbers)?;
            }
            state.gradients.ready(&*net.device, block, true)?;
        }
        Ok(())
    }

    /// The loss, if the head is here, and no way back.
    pub(super) fn forward_loss(&mut self, micro: &Micro<'_>) -> Result<f64, StepError> {
        let Self { net, state, stage, groups } = self;
        // What layers would save for a backward pass is dropped by each at once.
        let run = Run { recompute: true, ..net.run(micro.batch, micro.sequence()) };
        let forward_only = |chunk| Action { work: Work::Forward, chunk, micro: 0 };
        let actions: Vec<Action> = stage.chunks().map(forward_only).collect();
        let mut lines = Lines::new(groups, stage, &actions);
        let mut loss = 0.0;
        for chunk in stage.chunks() {
            let elements = run.own_rows() * net.model.shape.width;
            let input = match stage.is_first(chunk) {
                true => None,
                false => Some(lines.receive(Way::Forward, &run, elements)?),
            };
            let part = stage.parts[chunk].clone();
            let (x, _) = forward(net, &mut state.weights, &run, part, (input, micro.inputs))?;
            if stage.is_last(chunk) {
                let (weights, block) = (&mut state.weights, net.model.last());
                weights.bring(block)?;
                let mut params = Reading { weights, block };
                loss = net.model.head.loss(&run, &mut params, &x, micro.targets)?;
                weights.free(block);
            } else {
                lines.send(Way::Forward, x)?;
            }
        }
        lines.finish()?;
        Ok(loss)
    }
}

impl Net {
    /// A block will be needed soon, with what its pass begins with.
    pub(super) fn ask(&self, weights: &mut Weights, block: usize) {
        weights.ask(block);
        let table = match block {
            0 => &self.model.embedding.table,
            last if last == self.model.last() => &self.model.head.table,
            _ => return,
        };
        table.blocks().take(1).for_each(|first| weights.ask(first));
    }

    /// What a pass in training works with.
    fn train(&self, plan: &Plan, micro: &Micro<'_>) -> Run<'_> {
        let Plan { dropout: share, seed, step, recompute, .. } = *plan;
        let dropout = Some(Dropout { share, seed, step, first: micro.first });
        Run { dropout, recompute, ..self.run(micro.batch, micro.sequence()) }
    }
}

/// The stream or its gradient from another stage.
fn receive(way: Way, net: &Net, run: &Run<'_>, flow: &mut Flow<'_>) -> Result<Lent, StepError> {
    let elements = run.own_rows() * net.model.shape.width;
    Ok(timed(&mut flow.laps.communication, || flow.lines.receive(way, run, elements))?)
}

/// The other way.
fn send(way: Way, message: Lent, flow: &mut Flow<'_>) -> Result<(), StepError> {
    Ok(timed(&mut flow.laps.communication, || flow.lines.send(way, message))?)
}

/// The blocks of a part that are layers.
fn layers(net: &Net, part: &Range<usize>) -> Range<usize> {
    part.start.max(1)..part.end.min(net.model.last())
}

/// Embedding and layers of a part; the stream comes in, or begins with the tokens.
fn forward(
    net: &Net,
    weights: &mut Weights,
    run: &Run<'_>,
    part: Range<usize>,
    (input, tokens): (Option<Lent>, &[u32]),
) -> Result<(Lent, Vec<Saved>), StepError> {
    let mut x = match input {
        Some(x) => x,
        None => {
            weights.bring(0)?;
            weights.ask(1);
            let params = &mut Reading { weights, block: 0 };
            let x = net.model.embedding.forward(run, params, tokens)?;
            weights.free(0);
            x
        }
    };
    let layers = layers(net, &part);
    let mut all = Vec::with_capacity(layers.len());
    for block in layers {
        weights.bring(block)?;
        if block + 1 < part.end {
            net.ask(weights, block + 1);
        }
        let (out, saved) =
            net.model.layers[block - 1].forward(run, &mut Reading { weights, block }, x)?;
        weights.free(block);
        all.push(saved);
        x = out;
    }
    Ok((x, all))
}

/// The gradient of the loss of a micro-batch by the stream behind the last layer.
fn head(
    net: &Net,
    state: &mut State,
    run: &Run<'_>,
    (x, micro, tied_apart): (Lent, usize, bool),
    flow: &mut Flow<'_>,
) -> Result<Lent, StepError> {
    let began = Instant::now();
    let (block, last) = (net.model.last(), micro + 1 == flow.micros.len());
    state.weights.bring(block)?;
    // The embedding adds to a tied table, too, here or on another stage.
    let leaving = if net.model.shape.tied { (!tied_apart).then_some(false) } else { Some(last) };
    let mut bank = Working { state, device: &*net.device, block, later: None, leaving };
    let (of, scale) = ((&*x, flow.micros[micro].targets), 1.0 / flow.plan.tokens as f64);
    let (loss, dx) = net.model.head.loss_and_gradients(run, &mut bank, of, scale)?;
    flow.loss += loss;
    state.weights.free(block);
    complete(net, run, &mut state.gradients, block, last)?;
    flow.laps.backward += worked(net, state, began, &mut flow.laps.communication);
    Ok(dx)
}

/// The end of the way back. A table that another stage has, too, waits for that one's gradients.
fn embedding_back(
    net: &Net,
    state: &mut State,
    run: &Run<'_>,
    (tokens, last, tied_apart): (&[u32], bool, bool),
    dx: Lent,
) -> Result<(), StepError> {
    let leaving = (!tied_apart).then_some(last);
    let mut bank = Working { state, device: &*net.device, block: 0, later: None, leaving };
    net.model.embedding.backward(run, &mut bank, tokens, dx)?;
    if tied_apart && net.model.embedding.table.has(0) {
        return Ok(());
    }
    complete(net, run, &mut state.gradients, 0, last)
}

/// The way back through the layer of a block; `first` is the first one of its chunk, and the pass may
/// be the last one of the step.
fn layer_back(
    net: &Net,
    state: &mut State,
    run: &Run<'_>,
    (block, first, last): (usize, usize, bool),
    saved: Saved,
    dx: &mut Lent,
    later: Option<&mut Vec<Later>>,
) -> Result<(), StepError> {
    state.weights.bring(block)?;
    if block > first {
        state.weights.ask(block - 1);
    }
    let (device, leaving) = (&*net.device, Some(last));
    let mut bank = Working { state, device, block, later, leaving };
    net.model.layers[block - 1].backward(run, &mut bank, saved, dx)?;
    state.weights.free(block);
    Ok(())
}

/// The gradients of a block of this pass are complete.
fn complete(
    net: &Net,
    run: &Run<'_>,
    gradients: &mut Gradients,
    block: usize,
    last: bool,
) -> Result<(), StepError> {
    // All that it had may be in tiles.
    if net.model.blocks[block].is_empty() {
        return Ok(());
    }
    if gradients.leave(last) {
        net.tensor.settle(run, &net.model.blocks[block], gradients.of(block))?;
    }
    Ok(gradients.ready(&*net.device, block, last)?)
}
