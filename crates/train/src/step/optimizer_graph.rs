//! The optimizer step as a CUDA graph: gradient norm, clipping, update and zeroing of the gradients. What
//! differs between steps, learning rate and bias corrections, is in device memory.
//!
//! A step that communicates, or that copies state between memory tiers, runs without a graph.

use super::captured::Captured;
use super::graph::capture_pass;
use super::optimizer::{OptimizerScalars, UpdateArgs};
use super::{Engine, OptimizerStep, StepConfig};
use crate::state::Result;
use regatta_device::ops::{Graph, GraphMasks};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::tensor::View;

/// The graph of the optimizer step.
pub(super) type OptimizerGraph = Captured<GraphKey, Graph>;

/// The host arguments of the kernels, and the addresses of their tensors.
#[derive(Debug, PartialEq)]
pub(super) struct GraphKey {
    /// Without learning rate and number of the step.
    optimizer: OptimizerStep,
    grad_clip: f64,
    addresses: Vec<usize>,
}

impl OptimizerStep {
    /// What is the same in every step.
    fn constants(self) -> Self {
        match self {
            Self::AdamW(adamw) => Self::AdamW(AdamW { lr: 0.0, step: 0, ..adamw }),
            Self::Sgd(sgd) => Self::Sgd(Sgd { lr: 0.0, ..sgd }),
        }
    }
}

impl Engine {
    /// Runs the optimizer step by a graph, which also zeroes the gradients. Returns false if it must run
    /// without.
    pub(super) fn update_by_graph(
        &mut self,
        config: &StepConfig,
        scalars: &mut OptimizerScalars,
    ) -> bool {
        let may_capture = self.graphs.is_enabled
            && !self.is_distributed()
            && self.state.is_update_local()
            && self.device_model.device.can_capture();
        if !may_capture {
            return false;
        }
        let mut state = std::mem::take(&mut self.optimizer_graph);
        let result = self.run_update_graph(&mut state, config, scalars);
        let runs = "the optimizer step runs";
        let is_launched = state.outcome(result, &runs, "as a CUDA graph", &mut self.notes);
        self.optimizer_graph = state;
        is_launched
    }

    /// Returns whether the graph was launched: there is none in the first steps.
    fn run_update_graph(
        &mut self,
        state: &mut OptimizerGraph,
        config: &StepConfig,
        scalars: &mut OptimizerScalars,
    ) -> Result<bool> {
        let mut addresses = self.state.update_addresses();
        addresses.extend(scalars.addresses());
        let (optimizer, grad_clip) = (config.optimizer.constants(), config.grad_clip);
        if !state.is_due(GraphKey { optimizer, grad_clip, addresses }) {
            return Ok(false);
        }
        let graph = match state.graph.take() {
            Some(graph) => graph,
            None => self.capture_update(config, scalars)?,
        };
        let device = self.device_model.device.clone();
        scalars.upload_factors(&*device, config.optimizer);
        let graph = state.graph.insert(graph);
        // SAFETY: the state and the scalars have the addresses of the capture.
        unsafe { device.launch_graph(graph) }?;
        self.has_zero_grads = true;
        Ok(true)
    }

    fn capture_update(
        &mut self,
        config: &StepConfig,
        scalars: &mut OptimizerScalars,
    ) -> Result<Graph> {
        let device = self.device_model.device.clone();
        let masks = GraphMasks { masks: &[], words: View::from_slice::<i32>(&[]) };
        capture_pass(&*device, masks, &mut || {
            self.queue_update(config, scalars, UpdateArgs::InDeviceMemory)?;
            self.state.grads.zero();
            Ok(())
        })
    }
}
