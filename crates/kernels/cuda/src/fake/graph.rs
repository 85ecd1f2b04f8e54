//! Stream capture and graphs. A node is work with the arguments that it was queued with.

use std::ffi::{c_int, c_ulonglong};
use std::sync::{Arc, PoisonError};

use regatta_comm::gpu_runtime::{GraphFunctions, RawGraph, RawGraphExec, Stream};

use super::error::{INVALID_HANDLE, LAUNCH_FAILURE, misuse};
use super::gpu::{FakeGpu, gpu_of_stream, world};
use super::runtime::{code, write};

/// Work of a stream.
pub type Node = Box<dyn Fn() -> Result<(), c_int> + Send + Sync>;

/// A graph, or an executable graph.
#[derive(Clone)]
pub struct FakeGraph {
    gpu: Arc<FakeGpu>,
    nodes: Arc<Vec<Node>>,
}

/// A function of graphs that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GraphFault {
    /// The capture does not begin.
    BeginCapture,
    /// The capture was invalidated.
    EndCapture,
    /// The graph cannot be instantiated.
    Instantiate,
    /// The graph cannot be launched.
    Launch,
}

/// The functions of the fake GPUs.
pub const FUNCTIONS: GraphFunctions = GraphFunctions {
    stream_begin_capture,
    stream_end_capture,
    instantiate,
    launch,
    destroy,
    exec_destroy,
};

impl FakeGpu {
    /// Runs work, or records it if the stream is captured.
    pub fn submit(
        &self,
        work: impl Fn() -> Result<(), c_int> + Send + Sync + 'static,
    ) -> Result<(), c_int> {
        if !self.lock().is_capturing {
            return work();
        }
        self.captured.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(work));
        Ok(())
    }

    fn check_fault(&self, fault: GraphFault) -> Result<(), c_int> {
        match self.config.graph_faults.contains(&fault) {
            true => Err(LAUNCH_FAILURE),
            false => Ok(()),
        }
    }

    fn take_captured(&self) -> Vec<Node> {
        std::mem::take(&mut *self.captured.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

unsafe extern "C" fn stream_begin_capture(stream: Stream, _mode: c_int) -> c_int {
    let begin = || {
        let gpu = gpu_of_stream(stream)?;
        gpu.check_fault(GraphFault::BeginCapture)?;
        if std::mem::replace(&mut gpu.lock().is_capturing, true) {
            return Err(misuse("the stream is captured already"));
        }
        gpu.take_captured();
        Ok(())
    };
    code(begin())
}

unsafe extern "C" fn stream_end_capture(stream: Stream, to: *mut RawGraph) -> c_int {
    let end = || {
        let gpu = gpu_of_stream(stream)?;
        if !std::mem::replace(&mut gpu.lock().is_capturing, false) {
            return Err(misuse("the stream is not captured"));
        }
        let nodes = gpu.take_captured();
        gpu.check_fault(GraphFault::EndCapture)?;
        Ok(insert(FakeGraph { gpu, nodes: Arc::new(nodes) }) as RawGraph)
    };
    // SAFETY: the caller passes a valid pointer, as in all functions below.
    unsafe { write(to, end()) }
}

fn insert(graph: FakeGraph) -> usize {
    graph.gpu.lock().graphs += 1;
    let mut world = world();
    let handle = world.new_handle();
    world.graphs.insert(handle, graph);
    handle
}

fn find(handle: usize) -> Result<FakeGraph, c_int> {
    world().graphs.get(&handle).cloned().ok_or(INVALID_HANDLE)
}

unsafe extern "C" fn instantiate(to: *mut RawGraphExec, raw: RawGraph, _: c_ulonglong) -> c_int {
    let instantiate = || {
        let graph = find(raw as usize)?;
        graph.gpu.check_fault(GraphFault::Instantiate)?;
        Ok(insert(graph) as RawGraphExec)
    };
    // SAFETY: as above.
    unsafe { write(to, instantiate()) }
}

unsafe extern "C" fn launch(exec: RawGraphExec, stream: Stream) -> c_int {
    let launch = || {
        let (graph, gpu) = (find(exec as usize)?, gpu_of_stream(stream)?);
        gpu.check_fault(GraphFault::Launch)?;
        if gpu.lock().is_capturing || gpu.index != graph.gpu.index {
            return Err(misuse("a graph is launched in a capture or on another device"));
        }
        gpu.lock().graph_launches += 1;
        graph.nodes.iter().try_for_each(|node| node())
    };
    code(launch())
}

fn remove(handle: usize) -> c_int {
    let removed = world().graphs.remove(&handle);
    code(removed.ok_or(INVALID_HANDLE).map(|graph| graph.gpu.lock().graphs -= 1))
}

unsafe extern "C" fn destroy(graph: RawGraph) -> c_int {
    remove(graph as usize)
}

unsafe extern "C" fn exec_destroy(exec: RawGraphExec) -> c_int {
    remove(exec as usize)
}
