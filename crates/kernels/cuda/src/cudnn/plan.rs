//! Execution plans of graphs.

use std::ffi::c_void;
use std::sync::Arc;

use super::descriptor::{CudnnError, Descriptor};
use super::graph::Graph;
use super::sys::{Address, Attribute, DescriptorType, Functions, Handle, HeuristicMode, SUCCESS};

/// A graph that is compiled for the device of a handle.
pub(crate) struct ExecutionPlan {
    /// Declared before the descriptors that it was made of, so that it is destroyed first.
    plan: Descriptor,
    pub workspace_bytes: usize,
    scalars: Vec<(i64, f32)>,
    functions: Arc<Functions>,
    _descriptors: Vec<Descriptor>,
}

impl ExecutionPlan {
    /// The first engine of the heuristic that supports the graph.
    pub fn new(
        functions: &Arc<Functions>,
        handle: Handle,
        graph: Graph,
    ) -> Result<Self, CudnnError> {
        let Graph { operations, mut descriptors, scalars, .. } = graph;
        let graph = Descriptor::new(functions, DescriptorType::OperationGraph)?
            .set(Attribute::OperationGraphHandle, &[handle])?
            .set(Attribute::OperationGraphOperations, &operations)?
            .finalize()?;
        let heuristic = Descriptor::new(functions, DescriptorType::EngineHeuristic)?
            .set(Attribute::EngineHeuristicOperationGraph, &[graph.raw()])?
            .set(Attribute::EngineHeuristicMode, &[HeuristicMode::A])?
            .finalize()?;
        let configs = heuristic
            .get_descriptors(Attribute::EngineHeuristicResults, DescriptorType::EngineConfig)?;
        let mut why = CudnnError::unsupported("choosing an engine", "there is none");
        for config in configs {
            match plan_of_engine(functions, handle, &config) {
                Ok((plan, workspace_bytes)) => {
                    descriptors.extend([config, heuristic, graph]);
                    return Ok(Self {
                        plan,
                        workspace_bytes,
                        scalars,
                        functions: functions.clone(),
                        _descriptors: descriptors,
                    });
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Queues the graph on the stream of the handle, with memory for each tensor by its identifier.
    ///
    /// # Safety
    /// The memory must be as large as the tensors and the workspace are.
    pub unsafe fn execute(
        &self,
        handle: Handle,
        tensors: &[(i64, *mut c_void)],
        workspace: *mut c_void,
    ) -> Result<(), CudnnError> {
        let scalars = self.scalars.iter().map(|(id, value)| (*id, (&raw const *value).cast_mut()));
        let scalars = scalars.map(|(id, value)| (id, value.cast::<c_void>()));
        let (ids, addresses): (Vec<i64>, Vec<Address>) =
            tensors.iter().copied().chain(scalars).map(|(id, at)| (id, Address(at))).unzip();
        let pack = Descriptor::new(&self.functions, DescriptorType::VariantPack)?
            .set(Attribute::VariantPackUniqueIds, &ids)?
            .set(Attribute::VariantPackDataPointers, &addresses)?
            .set(Attribute::VariantPackWorkspace, &[Address(workspace)])?
            .finalize()?;
        // SAFETY: the handle and both descriptors are valid; the memory is, as required of the caller.
        match unsafe { (self.functions.execute)(handle, self.plan.raw(), pack.raw()) } {
            SUCCESS => Ok(()),
            status => Err(CudnnError::new(&self.functions, "executing the plan", status)),
        }
    }
}

/// The plan of an engine, and the bytes of its workspace.
fn plan_of_engine(
    functions: &Arc<Functions>,
    handle: Handle,
    config: &Descriptor,
) -> Result<(Descriptor, usize), CudnnError> {
    let plan = Descriptor::new(functions, DescriptorType::ExecutionPlan)?
        .set(Attribute::ExecutionPlanHandle, &[handle])?
        .set(Attribute::ExecutionPlanEngineConfig, &[config.raw()])?
        .finalize()?;
    let workspace_bytes = plan.get_i64(Attribute::ExecutionPlanWorkspaceSize)?;
    Ok((plan, workspace_bytes.max(0) as usize))
}
