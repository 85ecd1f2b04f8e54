//! Allocation, copies and fills.

use regatta_comm::DType;

use crate::Cpu;
use crate::isa::kernel;
use crate::lanes::WIDTH;
use crate::slice::{DisjointMut, Slice, SliceMut};
use regatta_device::DeviceMemory;
use regatta_device::ops::{ColumnRange, GraphOps, KernelTime, SCALAR_DTYPE, column_copy_rows};
use regatta_device::precision::Precision;
use regatta_device::tensor::{View, ViewMut};

/// Elements that do not stay in the cache until they are used: a fill writes them to memory without reading
/// them first, which would take as long again.
const MIN_STREAMED_ELEMENTS: usize = 4 << 20;

impl GraphOps for Cpu {}

impl DeviceMemory for Cpu {
    fn master_dtype(&self) -> DType {
        DType::F32
    }

    fn activation_dtype(&self) -> DType {
        match self.precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::Bf16,
        }
    }

    fn logit_dtype(&self) -> DType {
        self.activation_dtype()
    }

    fn pads_logits(&self) -> bool {
        // Kernels that read full rows of the gradients in place.
        self.precision == Precision::Bf16 && self.bf16_gemm.kernel.reads_in_place()
    }

    fn copy_from_host(&self, from: &[f32], to: ViewMut<'_>) {
        self.copy(View::from_slice(from), to);
    }

    fn copy_to_host(&self, from: View<'_>, to: &mut [f32]) {
        self.copy(from, ViewMut::from_slice(to));
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) {
        let _timer = self.timer("copy");
        self.zip_chunks(from, to, |from, to| copy_kernel(self.isa, from, to));
    }

    fn copy_columns(&self, x: View<'_>, from: ColumnRange, y: ViewMut<'_>, to: ColumnRange) {
        let rows = column_copy_rows(x, &from, y.view(), &to);
        let (x, y) = (Slice::from(x), DisjointMut::new(y));
        // No rows are copied without columns.
        self.for_each_row(rows, from.columns.len().max(1), |row| {
            // SAFETY: rows are disjoint.
            let y = unsafe { y.slice(to.of_row(row)) };
            copy_kernel(self.isa, x.slice(from.of_row(row)), y);
        });
    }

    fn fill(&self, value: f64, x: ViewMut<'_>) {
        let _timer = self.timer("fill");
        if x.dtype() == SCALAR_DTYPE {
            return x.as_slice::<f64>().fill(value);
        }
        let is_large = x.len() >= MIN_STREAMED_ELEMENTS;
        self.map_chunks(x, |_, x| match x {
            SliceMut::F32(x) if is_large => fill_streaming(x, value as f32),
            x => x.fill(value as f32),
        });
    }

    fn start_kernel_times(&self) {
        self.kernel_times.start();
    }

    fn take_kernel_times(&self) -> Vec<KernelTime> {
        self.kernel_times.take()
    }
}

/// Fills with streaming stores.
#[cfg(target_arch = "x86_64")]
fn fill_streaming(x: &mut [f32], value: f32) {
    use std::arch::x86_64::{__m128, _mm_set1_ps, _mm_sfence, _mm_stream_ps};
    // SAFETY: any bits are a valid vector.
    let (head, vectors, tail) = unsafe { x.align_to_mut::<__m128>() };
    head.fill(value);
    tail.fill(value);
    // SAFETY: SSE is part of x86-64, and the vectors are aligned. The fence orders the stores before those
    // that publish them to other threads.
    unsafe {
        let value = _mm_set1_ps(value);
        for vector in vectors {
            _mm_stream_ps(std::ptr::from_mut(vector).cast(), value);
        }
        _mm_sfence();
    }
}

/// Only x86 has streaming stores in stable Rust.
#[cfg(not(target_arch = "x86_64"))]
fn fill_streaming(x: &mut [f32], value: f32) {
    x.fill(value);
}

kernel! {
    /// `y = x`.
    pub fn copy_kernel<V>(x: Slice<'_>, y: SliceMut<'_>) {
        for at in (0..y.len()).step_by(WIDTH) {
            y.store_partial(at, x.load_padded::<V>(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use regatta_device::tensor::Tensor;

    use super::*;

    #[test]
    fn large_fills_reach_every_element_and_no_other() {
        let cpu = Cpu::new(3, Precision::F32);
        let mut x = Tensor::zeros(MIN_STREAMED_ELEMENTS + 50, DType::F32);
        for first in [0, 1, 3] {
            let end = first + MIN_STREAMED_ELEMENTS + 40;
            cpu.fill(7.0, x.view_mut());
            cpu.fill(-0.5, x.view_mut().slice(first..end));
            let found = x.view().as_slice::<f32>();
            let is_expected = |(at, found): (usize, &f32)| {
                *found == if (first..end).contains(&at) { -0.5 } else { 7.0 }
            };
            assert!(found.iter().enumerate().all(is_expected), "from element {first}");
        }
    }
}
