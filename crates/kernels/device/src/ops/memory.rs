//! Allocation, copies and completion.

use std::any::Any;
use std::ops::Range;

use regatta_comm::{DType, Event, MemorySpace};

use crate::tensor::{Tensor, View, ViewMut, row_count};
use crate::{DeviceError, HostTensor};

/// Data type of token ids and positions.
pub const TOKEN_DTYPE: DType = DType::I32;

/// Elements of logits in a GPU's memory at once: 32,768 rows of GPT-2's vocabulary. GEMMs of 8,192 rows are as
/// fast, but every chunk reads and writes the gradient of the output matrix once.
pub const GPU_MAX_LOGITS: usize = 32_768 * 50_304;

/// Data type of scalars in device memory: losses, sums of squares, clip coefficients.
pub const SCALAR_DTYPE: DType = DType::F64;

/// A point in a device's queue of operations, which only the device can read.
pub struct TimeMark(pub Box<dyn Any + Send>);

/// Execution time of a kernel or library call, summed over its calls.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Its name.
    pub name: String,
    /// Number of calls.
    pub calls: u64,
    /// Time on the device in seconds.
    pub seconds: f64,
}

/// Memory of a device, in use by all processes, and in total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes in use.
    pub used: u64,
    /// Bytes of the device.
    pub total: u64,
}

/// How the memory that [`DeviceMemory::reserve`] reserved is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaUse {
    /// Bytes reserved.
    pub bytes: u64,
    /// Bytes in use, with padding.
    pub used: u64,
    /// Most bytes that were in use at a time.
    pub peak: u64,
    /// The first tensor that did not fit and was allocated on demand.
    pub overflow: Option<ArenaOverflow>,
}

/// A tensor that reserved memory had no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaOverflow {
    /// Bytes of the tensor.
    pub requested: u64,
    /// Bytes that were free.
    pub free: u64,
    /// The largest contiguous part of them.
    pub largest_free: u64,
}

/// Columns of a row-major matrix.
#[derive(Debug, Clone)]
pub struct ColumnRange {
    /// Elements of a row.
    pub row_len: usize,
    /// The columns.
    pub columns: Range<usize>,
}

impl ColumnRange {
    /// All columns of rows with this many elements.
    pub fn all(row_len: usize) -> Self {
        Self { row_len, columns: 0..row_len }
    }

    /// The elements of a row.
    pub fn of_row(&self, row: usize) -> Range<usize> {
        row * self.row_len + self.columns.start..row * self.row_len + self.columns.end
    }
}

/// Number of rows of which columns are copied; 0 without columns.
///
/// # Panics
/// If columns are out of bounds, or row counts differ.
pub fn column_copy_rows(x: View<'_>, from: &ColumnRange, y: View<'_>, to: &ColumnRange) -> usize {
    if from.columns.is_empty() {
        return 0;
    }
    let in_bounds = |range: &ColumnRange| range.columns.end <= range.row_len;
    assert!(in_bounds(from) && in_bounds(to), "columns are out of bounds");
    let rows = row_count(x.len(), from.row_len);
    assert_eq!(rows, row_count(y.len(), to.row_len), "row counts differ");
    rows
}

/// Memory of a device.
///
/// Operations of a device may be asynchronous: they are queued in order, and the caller's data in host
/// memory is read before an operation returns. The first error makes all later operations no-ops, and
/// [`DeviceMemory::synchronize`] and [`DeviceMemory::read_scalars`] return it.
pub trait DeviceMemory: Send + Sync {
    /// The memory its tensors are in.
    fn memory_space(&self) -> MemorySpace {
        MemorySpace::Host
    }

    /// Memory of the device; `None` if it is the host's.
    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }

    /// Reserves memory for tensors that need `bytes` bytes in total, at most `tensors` at a time, in one
    /// allocation. Later tensors are parts of it as long as they fit. A device whose memory is the host's
    /// reserves none, and only the first call has an effect.
    fn reserve(&self, bytes: u64, tensors: usize) -> Result<(), DeviceError> {
        let _ = (bytes, tensors);
        Ok(())
    }

    /// How reserved memory is used; `None` if none is reserved.
    fn arena_use(&self) -> Option<ArenaUse> {
        None
    }

    /// Data type of parameters, their gradients and statistics.
    fn master_dtype(&self) -> DType;

    /// Data type of other activations.
    fn activation_dtype(&self) -> DType;

    /// Data type of the residual stream.
    fn residual_dtype(&self) -> DType {
        self.master_dtype()
    }

    /// Data type of the gradient of the residual stream.
    fn residual_grad_dtype(&self) -> DType {
        self.master_dtype()
    }

    /// Data type of the parameters that passes read: a copy that optimizer steps keep up to date if it
    /// is not the master dtype.
    fn weight_dtype(&self) -> DType {
        self.master_dtype()
    }

    /// Data type of logits.
    fn logit_dtype(&self) -> DType {
        self.master_dtype()
    }

    /// Elements of logits in memory at once, at most; `None` for the default.
    fn max_logits(&self) -> Option<usize> {
        None
    }

    /// Whether GEMMs of the output layer are faster if rows of logits are padded to a multiple of 64 elements.
    fn pads_logits(&self) -> bool {
        false
    }

    /// Data type that operands of GEMMs must have; `None` if they may have any.
    fn gemm_dtype(&self) -> Option<DType> {
        None
    }

    /// Whether the backward pass of norms sums columns faster than that of linear layers.
    fn norms_sum_columns(&self) -> bool {
        false
    }

    /// Allocates zeros.
    fn zeros(&self, elements: usize, dtype: DType) -> Tensor {
        Tensor::zeros(elements, dtype)
    }

    /// Allocates zeros of the master dtype.
    fn zeros_master(&self, elements: usize) -> Tensor {
        self.zeros(elements, self.master_dtype())
    }

    /// Allocates zeros of the activation dtype.
    fn zeros_activation(&self, elements: usize) -> Tensor {
        self.zeros(elements, self.activation_dtype())
    }

    /// Copies from host memory. Lengths are equal.
    fn copy_from_host(&self, from: &[f32], to: ViewMut<'_>);

    /// Copies to host memory. Lengths are equal.
    fn copy_to_host(&self, from: View<'_>, to: &mut [f32]);

    /// Allocates zeros in host memory for [`DeviceMemory::load_async`] and [`DeviceMemory::store_async`]:
    /// pinned memory if the device has a memory of its own.
    fn zeros_pinned(&self, elements: usize, dtype: DType) -> Result<HostTensor, DeviceError> {
        Ok(HostTensor::new(Tensor::zeros(elements, dtype)))
    }

    /// Starts to copy pinned memory to the device, after the event `after` and earlier copies of `from`.
    /// Operations of the device do not wait for it; returns its completion, or `None` if it is complete.
    /// Lengths and dtypes are equal.
    fn load_async(
        &self,
        from: &mut HostTensor,
        to: ViewMut<'_>,
        _after: Option<&Event>,
    ) -> Option<Event> {
        self.copy(from.view_for_copy().view(), to);
        None
    }

    /// Starts to copy from the device to pinned memory, as [`DeviceMemory::load_async`] does in the other
    /// direction; both run at the same time.
    fn store_async(
        &self,
        from: View<'_>,
        to: &mut HostTensor,
        _after: Option<&Event>,
    ) -> Option<Event> {
        self.copy(from, to.view_for_copy());
        None
    }

    /// Copies between tensors, converting the dtype.
    fn copy(&self, from: View<'_>, to: ViewMut<'_>);

    /// Copies columns of `x` into as many columns of `y`, converting the dtype. Other columns are unchanged.
    fn copy_columns(&self, x: View<'_>, from: ColumnRange, y: ViewMut<'_>, to: ColumnRange);

    /// Copies a range of columns of `x`, whose rows have `row_len` elements, into `y`, whose rows have
    /// just these columns.
    fn copy_from_columns(&self, x: View<'_>, row_len: usize, cols: Range<usize>, y: ViewMut<'_>) {
        let to = ColumnRange::all(cols.len());
        self.copy_columns(x, ColumnRange { row_len, columns: cols }, y, to);
    }

    /// Copies the rows of `x` into a range of columns of `y`, whose rows have `row_len` elements.
    fn copy_to_columns(&self, x: View<'_>, y: ViewMut<'_>, row_len: usize, cols: Range<usize>) {
        let from = ColumnRange::all(cols.len());
        self.copy_columns(x, from, y, ColumnRange { row_len, columns: cols });
    }

    /// Fills with a value.
    fn fill(&self, value: f64, x: ViewMut<'_>);

    /// Fills with zeros.
    fn zero(&self, x: ViewMut<'_>) {
        self.fill(0.0, x);
    }

    /// Copies token ids or positions from host memory to a tensor of [`TOKEN_DTYPE`].
    fn copy_tokens_from_host(&self, from: &[u32], to: ViewMut<'_>) {
        let to = to.as_slice::<i32>();
        assert_eq!(from.len(), to.len(), "tensor lengths differ");
        // Vocabularies are far smaller than an i32.
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from as i32);
    }

    /// Waits for all operations so far and reads scalars of [`SCALAR_DTYPE`].
    fn read_scalars(&self, scalars: View<'_>) -> Result<Vec<f64>, DeviceError> {
        Ok(scalars.as_slice().to_vec())
    }

    /// Waits for all operations so far. Returns the first error of any operation.
    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// A point in the queue of operations; `None` if operations complete before they return, so that a
    /// clock of the host measures them.
    fn record_time(&self) -> Option<TimeMark> {
        None
    }

    /// Seconds between two points that the device has passed.
    fn seconds_between(&self, _start: &TimeMark, _end: &TimeMark) -> f64 {
        0.0
    }

    /// Times all kernels from now on, if the device can.
    fn start_kernel_times(&self) {}

    /// Ends timing; the times since [`DeviceMemory::start_kernel_times`].
    fn take_kernel_times(&self) -> Vec<KernelTime> {
        Vec::new()
    }

    /// The completion of all operations so far, for collectives that read their results; `None` if
    /// operations complete before they return.
    fn record_event(&self) -> Option<Event> {
        None
    }

    /// Lets later operations wait for an event, without waiting on the host if both are on a device.
    fn wait_event(&self, event: &Event) -> regatta_comm::Result {
        event.wait()
    }
}
