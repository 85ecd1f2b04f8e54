//! A trace has the kernels of a device, with their times. A program of its own, because a process has
//! one trace.

#![allow(clippy::unwrap_used)]

use regatta_comm::DType;
use regatta_comm::gpu_runtime::trace;
use regatta_device::DeviceMemory;
use regatta_device::precision::Precision;
use regatta_kernels_cuda::fake;

#[test]
fn a_trace_has_the_kernels_since_its_start() {
    let device = fake::device(Precision::F32);
    let mut tensor = device.zeros(8, DType::F32);
    device.fill(1.0, tensor.view_mut());
    device.start_trace();
    device.fill(2.0, tensor.view_mut());
    device.fill(3.0, tensor.view_mut());
    device.synchronize().unwrap();
    let spans = trace::finish();
    assert_eq!(spans.len(), 2, "{spans:?}");
    assert!(spans.iter().all(|span| span.stream == "compute" && span.name.contains("fill")));
    assert!(spans.iter().all(|span| 0.0 <= span.start && span.start <= span.end), "{spans:?}");
    assert!(spans[0].end <= spans[1].start, "{spans:?}");
    device.fill(4.0, tensor.view_mut());
    assert!(trace::finish().is_empty());
}
