//! Allocation, copies and completion.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, PoisonError};

use regatta_comm::gpu_runtime::{MEMCPY_DEFAULT, SUCCESS, TimingEvent};
use regatta_comm::{Buffer, DType, Event, MemorySpace};
use regatta_device::ops::{
    ArenaUse, ColumnRange, GPU_MAX_LOGITS, KernelTime, MemoryUse, TimeMark, column_copy_rows,
};
use regatta_device::tensor::{Tensor, View, ViewMut};
use regatta_device::{DeviceError, DeviceMemory, HostTensor};

use crate::arena;
use crate::elementwise::{Elements, SOURCE, kernel_name, to_u32};
use crate::host_copy::CopyDirection;
use crate::owned_stream::{MemorySource, OwnedStream};
use crate::runtime_memory::RuntimeMemory;
use crate::token_staging::StagingError;
use crate::{Arg, CudaDevice, Ptr};

/// Memory is reserved in steps, so that slowly growing requests do not reallocate each time.
const WORKSPACE_STEP: usize = 32 << 20;

/// The operation in errors of allocations.
const ALLOCATION: &str = "allocating device memory";

/// Device memory that is freed in the order of the device's stream.
pub(crate) struct Allocation {
    start: *mut c_void,
    bytes: usize,
    source: MemorySource,
    stream: Arc<OwnedStream>,
}

// SAFETY: it owns its memory, which is not bound to a thread.
unsafe impl Send for Allocation {}
// SAFETY: a shared reference only exposes the address.
unsafe impl Sync for Allocation {}

#[cfg(test)]
impl Allocation {
    /// Its address.
    pub fn address(&self) -> NonNull<u8> {
        NonNull::new(self.start.cast()).unwrap()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.stream.free(self.start, self.source);
    }
}

impl CudaDevice {
    /// Device memory for the temporary results of one operation, valid until the next call. Earlier memory stays
    /// valid for kernels that are queued already, because it is freed in stream order.
    pub(crate) fn scratch(&self, bytes: usize) -> Ptr {
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        if workspace.as_ref().is_none_or(|memory| memory.bytes < bytes) {
            // A graph keeps one workspace only.
            if self.fails_capture("enlarging the workspace") {
                return Ptr::NULL;
            }
            *workspace = None;
            // Not in the arena, which has the tensors of the cost model only.
            let bytes = bytes.next_multiple_of(WORKSPACE_STEP);
            *workspace = self.allocate_on_demand(bytes).map(Arc::new);
        }
        workspace.as_ref().map_or(Ptr::NULL, |memory| Ptr(memory.start as u64))
    }

    /// The memory of [`CudaDevice::scratch`], to keep it beyond later growth.
    pub(crate) fn shared_workspace(&self) -> Option<Arc<Allocation>> {
        self.workspace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Allocates device memory of the arena, or if it has no room, of the runtime; a failure is the
    /// device's error.
    pub(crate) fn allocate(&self, bytes: usize) -> Option<Allocation> {
        if self.has_failed() || !self.make_current() {
            return None;
        }
        let stream = self.owned_stream();
        // This is no operation of the stream, and possible in a capture, too.
        match stream.allocate_from_arena(bytes) {
            Some(start) => Some(Allocation { start, bytes, source: MemorySource::Arena, stream }),
            None => self.allocate_on_demand(bytes),
        }
    }

    /// Allocates device memory of the runtime; a failure is the device's error.
    fn allocate_on_demand(&self, bytes: usize) -> Option<Allocation> {
        if self.has_failed() || !self.make_current() {
            return None;
        }
        let mut start = null_mut();
        // In a capture, an allocation in stream order would be part of the graph.
        let allocator = self.runtime.stream_ordered.filter(|_| !self.is_capturing());
        // SAFETY: the functions write one pointer.
        let code = unsafe {
            match allocator {
                Some(allocator) => (allocator.malloc)(&mut start, bytes.max(1), self.stream()),
                None => (self.runtime.malloc)(&mut start, bytes.max(1)),
            }
        };
        if code == SUCCESS {
            let source = match allocator {
                Some(_) => MemorySource::StreamOrdered,
                None => MemorySource::Device,
            };
            return Some(Allocation { start, bytes, source, stream: self.owned_stream() });
        }
        self.fail(ALLOCATION, self.out_of_memory(code, bytes));
        None
    }

    /// The cause of a failed allocation, with its fixes.
    fn out_of_memory(&self, code: c_int, bytes: usize) -> String {
        let free = self.gpu.free_bytes().unwrap_or(0);
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        format!(
            "{}: {} MiB requested, {} MiB free; reduce train.micro_batch, set train.recompute=true, \
             shard the state with parallel.zero, or offload it (offload.optimizer, offload.parameters)",
            self.runtime.error_string(code),
            mib(bytes as u64),
            mib(free),
        )
    }

    /// Queues a copy between any memories. Host memory must stay valid until the copy has run, unless
    /// it is pageable: the runtime copies from pageable memory before it returns.
    fn queue_copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) {
        if bytes == 0 || self.has_failed() || !self.make_current() {
            return;
        }
        let memcpy = self.runtime.memcpy_async;
        // SAFETY: both are valid for this many bytes, as the callers ensure by their lengths.
        let code = self.timed(
            || "memcpy".to_owned(),
            || unsafe { memcpy(to, from, bytes, MEMCPY_DEFAULT, self.stream()) },
        );
        if code != SUCCESS {
            self.fail("copying memory", self.runtime.error_string(code));
        }
    }

    /// Queues zeros to device memory.
    fn queue_zeros(&self, start: *mut c_void, bytes: usize) {
        // SAFETY: the memory has this many bytes, as the callers ensure, and the stream is valid.
        let code = unsafe { (self.driver.memset_async)(start, 0, bytes, self.stream()) };
        if code != SUCCESS {
            self.fail("zeroing memory", self.driver.error_string(code));
        }
    }

    /// Records the error of an operation that was queued earlier.
    fn fail_queued(&self, cause: &str) {
        let hint = match self.launch_blocking {
            true => "",
            false => "; set REGATTA_LAUNCH_BLOCKING=1 to find the kernel",
        };
        let operation = match self.capture.take_launched() {
            true => "a graph of a micro-batch or of the optimizer step, or an operation after it",
            false => "an operation that was queued before this point",
        };
        self.fail(operation, format!("{cause}{hint}"));
    }

    /// Copies device memory to the host and waits.
    fn read(&self, to: *mut c_void, from: View<'_>, bytes: usize) {
        self.queue_copy(to, Ptr::of(from).as_raw(), bytes);
        // The error is reported by the next synchronisation.
        let _ = self.synchronize();
    }
}

/// # Panics
/// If elements of a dtype cannot be copied to and from f32.
fn assert_float(dtype: DType) {
    let is_float = matches!(dtype, DType::F32 | DType::Bf16);
    assert!(is_float, "elements are f32 or bf16, not {dtype}");
}

impl DeviceMemory for CudaDevice {
    fn memory_space(&self) -> MemorySpace {
        MemorySpace::Device(self.index)
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        let (free, total) = self.gpu.free_and_total_bytes().ok()?;
        Some(MemoryUse { used: total.saturating_sub(free), total })
    }

    fn reserve(&self, bytes: u64, tensors: usize) -> Result<(), DeviceError> {
        self.check()?;
        self.make_current();
        let padding = tensors.saturating_mul(arena::ALIGNMENT);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(padding);
        self.owned_stream()
            .reserve(bytes)
            .map_err(|code| self.error(ALLOCATION, self.out_of_memory(code, bytes)))
    }

    fn arena_use(&self) -> Option<ArenaUse> {
        self.owned_stream().arena_use()
    }

    fn master_dtype(&self) -> DType {
        DType::F32
    }

    fn activation_dtype(&self) -> DType {
        self.precision.dtype()
    }

    fn residual_dtype(&self) -> DType {
        self.residual.dtype()
    }

    fn residual_grad_dtype(&self) -> DType {
        self.residual_gradient.dtype()
    }

    fn weight_dtype(&self) -> DType {
        self.activation_dtype()
    }

    fn logit_dtype(&self) -> DType {
        self.activation_dtype()
    }

    fn max_logits(&self) -> Option<usize> {
        Some(GPU_MAX_LOGITS)
    }

    /// cuBLASLt needs dimensions and leading dimensions of 16-byte multiples for its fastest kernels.
    fn pads_logits(&self) -> bool {
        true
    }

    fn norms_sum_columns(&self) -> bool {
        true
    }

    fn gemm_dtype(&self) -> Option<DType> {
        Some(self.activation_dtype())
    }

    fn zeros(&self, elements: usize, dtype: DType) -> Tensor {
        let bytes = elements * dtype.size();
        let memory = self.allocate(bytes);
        // After a failure no operation accesses it.
        let start = memory.as_ref().and_then(|memory| NonNull::new(memory.start.cast::<u8>()));
        let start = start.unwrap_or(NonNull::dangling());
        if memory.is_some() {
            self.queue_zeros(start.as_ptr().cast(), bytes);
        }
        // SAFETY: the owner keeps the memory valid; accesses are ordered by the stream, and by events
        // with other streams.
        let buffer = unsafe { self.gpu.adopt(start, bytes, Box::new(memory)) };
        Tensor::from_buffer(buffer, dtype)
    }

    fn copy_from_host(&self, from: &[f32], to: ViewMut<'_>) {
        assert_eq!(from.len(), to.len(), "tensor lengths differ");
        assert_float(to.dtype());
        match to.dtype() {
            DType::F32 => {
                let to = Ptr::of_mut(&to).as_raw();
                self.queue_copy(to, from.as_ptr().cast(), size_of_val(from));
            }
            _ => {
                let values: Vec<half::bf16> =
                    from.iter().map(|value| half::bf16::from_f32(*value)).collect();
                let to = Ptr::of_mut(&to).as_raw();
                self.queue_copy(to, values.as_ptr().cast(), size_of_val(&*values));
            }
        }
        // The source is pageable: the copy may still read it.
        let _ = self.synchronize();
    }

    fn copy_to_host(&self, from: View<'_>, to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "tensor lengths differ");
        assert_float(from.dtype());
        match from.dtype() {
            DType::F32 => self.read(to.as_mut_ptr().cast(), from, size_of_val(to)),
            _ => {
                let mut values = vec![half::bf16::ZERO; to.len()];
                self.read(values.as_mut_ptr().cast(), from, size_of_val(&*values));
                to.iter_mut().zip(values).for_each(|(to, from)| *to = from.to_f32());
            }
        }
    }

    fn zeros_pinned(&self, elements: usize, dtype: DType) -> Result<HostTensor, DeviceError> {
        self.make_current();
        self.check()?;
        let bytes = elements * dtype.size();
        let memory = RuntimeMemory::pinned(&self.runtime, bytes).map_err(|code| {
            let cause = format!(
                "{bytes} bytes: {}; offload less (offload.optimizer, offload.parameters), offload to \
                 disk, or raise the memory limit of the job",
                self.runtime.error_string(code)
            );
            self.error("allocating pinned host memory", cause)
        })?;
        let start = NonNull::new(memory.start.cast::<u8>()).unwrap_or(NonNull::dangling());
        // SAFETY: the allocation has this many bytes.
        unsafe { start.write_bytes(0, bytes) };
        // SAFETY: initialised memory, aligned to a page, which its owner frees.
        let buffer = unsafe { Buffer::from_owner(start, bytes, Box::new(memory)) };
        Ok(HostTensor::new(Tensor::from_buffer(buffer, dtype)))
    }

    fn load_async(
        &self,
        from: &mut HostTensor,
        to: ViewMut<'_>,
        after: Option<&Event>,
    ) -> Option<Event> {
        self.copy_pinned(CopyDirection::ToDevice, from, to.view(), after)
    }

    fn store_async(
        &self,
        from: View<'_>,
        to: &mut HostTensor,
        after: Option<&Event>,
    ) -> Option<Event> {
        self.copy_pinned(CopyDirection::ToHost, to, from, after)
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) {
        assert_eq!(from.len(), to.len(), "tensor lengths differ");
        if from.dtype() == to.dtype() {
            let bytes = from.len() * from.dtype().size();
            return self.queue_copy(Ptr::of_mut(&to).as_raw(), Ptr::of(from).as_raw(), bytes);
        }
        self.convert(from, to);
    }

    fn copy_columns(&self, x: View<'_>, from: ColumnRange, y: ViewMut<'_>, to: ColumnRange) {
        let (rows, columns) = (column_copy_rows(x, &from, y.view(), &to), from.columns.len());
        let name = kernel_name("copy_columns", [x.dtype(), y.dtype()]);
        let (x, y) = (Ptr::of(x), Ptr::of_mut(&y));
        let rows_of = [from, to].map(|range| [range.row_len, range.columns.start]);
        let strides = [&[columns][..], rows_of.as_flattened()].concat();
        let elements = Elements::in_rows(rows * columns, &strides, &[x, y]);
        let [from, to] = rows_of.map(|row| row.map(|size| Arg::from(size as u64)));
        let columns = to_u32(columns).into();
        let args = [x.into(), from[0], from[1], y.into(), to[0], to[1], columns];
        self.launch_elements(&SOURCE, name, elements, &[], &args);
    }

    fn fill(&self, value: f64, x: ViewMut<'_>) {
        if value == 0.0 && value.is_sign_positive() {
            return self.zero(x);
        }
        let pointers = [Ptr::of_mut(&x)];
        let elements = match x.dtype() {
            DType::F32 | DType::Bf16 => Elements::flat(x.len(), &pointers),
            DType::F64 | DType::I32 => Elements { len: x.len(), vectorised: 0 },
            dtype => panic!("cannot fill a tensor of {dtype}"),
        };
        let (name, value) = (format!("fill_{}", x.dtype()), value as f32);
        self.launch_elements(&SOURCE, name, elements, &pointers, &[value.into()]);
    }

    fn zero(&self, x: ViewMut<'_>) {
        let bytes = x.len() * x.dtype().size();
        if bytes == 0 || self.has_failed() || !self.make_current() {
            return;
        }
        self.queue_zeros(Ptr::of_mut(&x).as_raw(), bytes);
    }

    fn copy_tokens_from_host(&self, from: &[u32], to: ViewMut<'_>) {
        assert_eq!(from.len(), to.len(), "tensor lengths differ");
        if from.is_empty()
            || self.has_failed()
            || self.fails_capture("copying tokens from the host")
        {
            return;
        }
        let to = Ptr::of_mut(&to).as_raw();
        let staged = self.tokens.stage(from, |pinned, bytes| {
            self.queue_copy(to, pinned, bytes);
            self.record_event()
        });
        match staged {
            Ok(()) => {}
            Err(StagingError::Queued(cause)) => self.fail_queued(&cause),
            Err(StagingError::Allocation(cause)) => {
                self.fail("allocating pinned host memory", cause);
            }
        }
    }

    fn read_scalars(&self, scalars: View<'_>) -> Result<Vec<f64>, DeviceError> {
        assert!(scalars.dtype() == DType::F64, "scalars are f64");
        let mut values = vec![0.0f64; scalars.len()];
        self.read(values.as_mut_ptr().cast(), scalars, size_of_val(&*values));
        self.check().map(|()| values)
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.check()?;
        if self.fails_capture("waiting for the stream") {
            return Ok(());
        }
        let code = self.synchronize_stream();
        if code != SUCCESS {
            self.fail_queued(&self.runtime.error_string(code));
        }
        self.capture.take_launched();
        self.check()
    }

    fn record_time(&self) -> Option<TimeMark> {
        if self.is_capturing() {
            return None;
        }
        self.make_current();
        self.record_timing_event().map(|event| TimeMark(Box::new(event)))
    }

    fn seconds_between(&self, start: &TimeMark, end: &TimeMark) -> f64 {
        let [start, end] = [start, end].map(|mark| mark.0.downcast_ref::<TimingEvent>());
        start.zip(end).map_or(0.0, |(start, end)| start.seconds_until(end))
    }

    fn start_kernel_times(&self) {
        self.kernel_times.enable();
    }

    fn take_kernel_times(&self) -> Vec<KernelTime> {
        self.synchronize_stream();
        self.kernel_times.take()
    }

    fn record_event(&self) -> Option<Event> {
        if self.has_failed() || self.fails_capture("recording an event") {
            return None;
        }
        // SAFETY: the stream is a stream of this device.
        match unsafe { self.gpu.record(self.stream()) } {
            Ok(event) => Some(event),
            Err(error) => {
                self.fail("recording an event", error);
                None
            }
        }
    }

    fn wait_event(&self, event: &Event) -> regatta_comm::Result {
        if self.fails_capture("waiting for an event") {
            return Ok(());
        }
        // SAFETY: the stream is a stream of the runtime that the event belongs to.
        unsafe { event.wait_on_stream(self.stream()) }
    }
}
