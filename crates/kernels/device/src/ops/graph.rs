//! Graphs: operations that are captured once and launched many times, with one call of the driver instead
//! of one per operation.

use std::any::Any;

use crate::DeviceError;
use crate::random::DropoutMask;
use crate::tensor::View;

/// Captured operations, which only their device can launch.
pub struct Graph(pub Box<dyn Any + Send + Sync>);

/// Dropout masks that differ between launches of a graph.
#[derive(Debug, Clone, Copy)]
pub struct GraphMasks<'a> {
    /// The masks of the capture, with distinct keys. A captured operation may shift the offset of its mask.
    pub masks: &'a [DropoutMask],
    /// [`DropoutMask::words`] of each, of [`super::TOKEN_DTYPE`], aligned to 8 bytes: launches read key and
    /// offset there.
    pub words: View<'a>,
}

/// Capture and launch of graphs; by default a device has none.
pub trait GraphOps {
    /// Whether operations can be captured now.
    fn can_capture(&self) -> bool {
        false
    }

    /// Captures the operations that `queue` queues, instead of running them. Scalar arguments keep their
    /// values in every launch, but for the dropout masks; tensors keep their addresses.
    ///
    /// After an error no operation has run, and the device is as before.
    fn capture(
        &self,
        masks: GraphMasks<'_>,
        queue: &mut dyn FnMut(),
    ) -> Result<Graph, DeviceError> {
        let _ = (masks, queue);
        Err(unsupported())
    }

    /// Queues the operations of a graph. After an error none of them runs.
    ///
    /// # Safety
    /// The tensors of the captured operations must still be allocated, and the device must have captured
    /// the graph.
    unsafe fn launch_graph(&self, graph: &Graph) -> Result<(), DeviceError> {
        let _ = graph;
        Err(unsupported())
    }
}

fn unsupported() -> DeviceError {
    DeviceError {
        device: "this device".to_owned(),
        operation: "capturing a graph".to_owned(),
        cause: "it has no graphs".to_owned(),
    }
}
