//! GEMMs with a fake library on host memory.

mod products;
mod tuning;

use std::sync::Arc;

use regatta_comm::gpu_runtime::{Runtime, Vendor};

use super::{BlasLt, Gemm, GemmArgs, GemmError, StreamContext};
use crate::fake::blas::{self, Candidate, Library};
use crate::fake::gpu::{Config, FakeGpu, set_current_index};
use crate::fake::runtime;
use crate::owned_stream::OwnedStream;

/// A fake library and runtime.
struct Fake {
    blas: BlasLt,
    runtime: Arc<Runtime>,
    gpu: Arc<FakeGpu>,
    stream: OwnedStream,
    tune: bool,
}

impl Fake {
    /// On a GPU that becomes the current device of this thread.
    fn new(vendor: Vendor, candidates: &[Candidate]) -> Self {
        // The tests pass memory of their own.
        let config = Config { checks_gemm_memory: false, ..Config::new(vendor, usize::MAX) };
        let library = Library { candidates: candidates.to_vec(), ..Library::default() };
        let gpu = FakeGpu::create(config, library);
        let runtime = Arc::new(runtime::runtime(vendor));
        let stream = OwnedStream::create(&runtime).unwrap();
        let blas = BlasLt::with_functions(blas::functions(vendor));
        Self { blas, runtime, gpu, stream, tune: true }
    }

    /// Makes its GPU the current device of this thread.
    fn make_current(&self) {
        set_current_index(self.gpu.index);
    }

    fn run(&self, gemm: Gemm, args: &GemmArgs) -> Result<(), GemmError> {
        let Self { runtime, tune, .. } = self;
        let (stream, gpu_name) = (self.stream.raw, "Fake 3000");
        let context = StreamContext { runtime, stream, gpu_name, tune: *tune };
        // SAFETY: the tests pass matrices of the GEMM's size; the stream is valid.
        unsafe { self.blas.run(context, gemm, args) }
    }
}

#[test]
fn threads_may_share_the_library() {
    fn assert_shared<T: Send + Sync>() {}
    assert_shared::<BlasLt>();
}
