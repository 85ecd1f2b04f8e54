//! Passes through this rank's part of the model. The parameters of each block are asked for while the
//! block before it is at work, brought, used and freed; its gradients go on their way as soon as
//! they are complete.

use regatta_comm::CommError;

use super::{Engine, Micro, Net, Plan};
use crate::memory::View;
use crate::model::{Dropout, HeadGrads, HeadParams, Lent, Run, Saved};
use crate::state::{Gradients, Weights};

/// What a forward pass leaves for the backward one.
pub struct Alive {
    /// The stream behind the last layer.
    x: Lent,
    saved: Vec<Saved>,
}

impl Engine {
    /// Embedding and layers.
    pub(super) fn forward(&mut self, plan: &Plan, micro: &Micro<'_>) -> Result<Alive, CommError> {
        let Self { net, state, .. } = self;
        let run = net.train(plan, micro);
        forward(net, &mut state.weights, &run, micro.inputs)
    }

    /// The loss, and the way back.
    pub(super) fn backward(
        &mut self,
        plan: &Plan,
        micro: &Micro<'_>,
        alive: Alive,
        last: bool,
    ) -> Result<f64, CommError> {
        let Self { net, state, .. } = self;
        let (run, model) = (net.train(plan, micro), &net.model);
        let (weights, gradients) = (&mut state.weights, &mut state.gradients);
        let Alive { x, saved } = alive;
        let (loss, mut dx) = {
            bring_head(net, weights)?;
            let mut grads = head_grads(net, gradients);
            let (params, scale) = (head_params(net, weights), 1.0 / plan.tokens as f64);
            let of = (&*x, micro.targets);
            model.head.loss_and_gradients(&run, params, &mut grads, of, scale)?
        };
        drop(x);
        free_head(net, weights);
        complete(net, &run, gradients, model.last(), last)?;
        for (number, saved) in saved.into_iter().enumerate().rev() {
            let block = number + 1;
            weights.bring(block)?;
            if block > 1 {
                weights.ask(block - 1);
            }
            let (params, grads) = (weights.view(block), gradients.of(block));
            model.layers[number].backward(&run, params, grads, saved, &mut dx)?;
            weights.free(block);
            complete(net, &run, gradients, block, last)?;
        }
        model.embedding.backward(&run, gradients.of(0), micro.inputs, dx)?;
        complete(net, &run, gradients, 0, last)?;
        Ok(loss)
    }

    /// The loss, and no way back.
    pub(super) fn forward_loss(&mut self, micro: &Micro<'_>) -> Result<f64, CommError> {
        let Self { net, state, .. } = self;
        // What layers would save for a backward pass is dropped by each at once.
        let run = Run { recompute: true, ..net.run(micro.batch, micro.sequence()) };
        let Alive { x, .. } = forward(net, &mut state.weights, &run, micro.inputs)?;
        bring_head(net, &mut state.weights)?;
        let params = head_params(net, &state.weights);
        let loss = net.model.head.loss(&run, params, &x, micro.targets)?;
        free_head(net, &mut state.weights);
        Ok(loss)
    }
}

impl Net {
    /// What a pass in training works with.
    fn train(&self, plan: &Plan, micro: &Micro<'_>) -> Run<'_> {
        let Plan { dropout: share, seed, step, recompute, .. } = *plan;
        let dropout = Some(Dropout { share, seed, step, first: micro.first });
        Run { dropout, recompute, ..self.run(micro.batch, micro.sequence()) }
    }
}

fn forward(
    net: &Net,
    weights: &mut Weights,
    run: &Run<'_>,
    inputs: &[u32],
) -> Result<Alive, CommError> {
    weights.bring(0)?;
    weights.ask(1);
    let mut x = net.model.embedding.forward(run, weights.view(0), inputs)?;
    weights.free(0);
    let mut all = Vec::with_capacity(net.model.layers.len());
    for (number, layer) in net.model.layers.iter().enumerate() {
        let block = number + 1;
        weights.bring(block)?;
        weights.ask(block + 1);
        let (out, saved) = layer.forward(run, weights.view(block), x)?;
        weights.free(block);
        all.push(saved);
        x = out;
    }
    Ok(Alive { x, saved: all })
}

/// The gradients of a block of this pass are complete.
fn complete(
    net: &Net,
    run: &Run<'_>,
    gradients: &mut Gradients,
    block: usize,
    last: bool,
) -> Result<(), CommError> {
    if last {
        net.tensor.settle(run, &net.model.blocks[block], gradients.of(block))?;
    }
    gradients.ready(block, last);
    Ok(())
}

/// The head's parameters, and the embedding's table if that is the head's.
fn bring_head(net: &Net, weights: &mut Weights) -> Result<(), CommError> {
    weights.bring(net.model.last())?;
    if net.model.shape.tied { weights.bring(0) } else { Ok(()) }
}

fn free_head(net: &Net, weights: &mut Weights) {
    weights.free(net.model.last());
    if net.model.shape.tied {
        weights.free(0);
    }
}

fn head_params<'a>(net: &Net, weights: &'a Weights) -> HeadParams<'a> {
    let own = weights.view(net.model.last());
    let tied = net.model.shape.tied;
    let table =
        if tied { net.model.embedding.table(weights.view(0)) } else { View::of::<f32>(&[]) };
    HeadParams { own, table }
}

/// Where the head's gradients are, which may be the embedding's.
fn head_grads<'a>(net: &Net, gradients: &'a mut Gradients) -> HeadGrads<'a> {
    let [first, own] = gradients.pair(0, net.model.last());
    HeadGrads { own, table: net.model.embedding.table_of(first) }
}
