//! GELU and SwiGLU. GELU saves its input for the backward pass, as the fused GEMM does.

use regatta_comm::DType;
use regatta_device::ops::LinearArgs;
use regatta_device::tensor::{View, ViewMut, row_count};
use regatta_device::{ActivationOps, LinearOps};

use crate::elementwise::{Elements, is_vectorised, kernel_name, to_u32};
use crate::{CudaDevice, Grid, Kernel, Ptr, Source};

pub(crate) static SOURCE: Source = Source {
    name: "activation",
    text: concat!(include_str!("../kernels/gelu.cuh"), include_str!("../kernels/activation.cu")),
};

/// `COLUMN_THREADS` of the source.
const COLUMN_THREADS: usize = 128;

/// Blocks per multiprocessor of the kernel that also sums columns.
const BLOCKS_PER_SM: usize = 8;

impl ActivationOps for CudaDevice {
    fn gelu(&self, x: ViewMut<'_>, y: ViewMut<'_>) {
        assert_eq!(x.len(), y.len(), "tensor lengths differ");
        let name = kernel_name("gelu", [x.dtype(), y.dtype()]);
        let pointers = [Ptr::of_mut(&x), Ptr::of_mut(&y)];
        self.launch_elements(&SOURCE, name, Elements::flat(y.len(), &pointers), &pointers, &[]);
    }

    fn linear_gelu(&self, args: LinearArgs<'_>, mut saved: ViewMut<'_>) {
        if !self.linear_gelu_fused(&args, &saved) {
            self.linear(LinearArgs { y: saved.reborrow(), ..args });
            self.gelu(saved, args.y);
        }
    }

    fn gelu_backward(&self, saved: View<'_>, dy: ViewMut<'_>, dbias: Option<ViewMut<'_>>) {
        assert_eq!(saved.len(), dy.len(), "tensor lengths differ");
        if let Some(dbias) = dbias {
            return self.gelu_backward_bias(saved, dy, dbias);
        }
        let name = kernel_name("gelu_backward", [saved.dtype(), dy.dtype()]);
        let pointers = [Ptr::of(saved), Ptr::of_mut(&dy)];
        self.launch_elements(&SOURCE, name, Elements::flat(dy.len(), &pointers), &pointers, &[]);
    }

    fn swiglu(&self, dim: usize, x: View<'_>, y: ViewMut<'_>) {
        assert_eq!(x.len(), 2 * y.len(), "a row of x has a gate and an up element per output");
        row_count(y.len(), dim);
        let name = kernel_name("swiglu", [x.dtype(), y.dtype()]);
        let pointers = [Ptr::of(x), Ptr::of_mut(&y)];
        let elements = Elements::in_rows(y.len(), &[dim], &pointers);
        self.launch_elements(&SOURCE, name, elements, &pointers, &[to_u32(dim).into()]);
    }

    fn swiglu_backward(&self, dim: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) {
        let lengths_match = x.len() == dx.len() && x.len() == 2 * dy.len();
        assert!(lengths_match, "a row of x has a gate and an up element per output");
        row_count(dy.len(), dim);
        let name = kernel_name("swiglu_backward", [x.dtype(), dy.dtype(), dx.dtype()]);
        let pointers = [Ptr::of(x), Ptr::of(dy), Ptr::of_mut(&dx)];
        let elements = Elements::in_rows(dy.len(), &[dim], &pointers);
        self.launch_elements(&SOURCE, name, elements, &pointers, &[to_u32(dim).into()]);
    }
}

impl CudaDevice {
    /// Each block sums the columns of some rows; these partial sums are added in order.
    fn gelu_backward_bias(&self, saved: View<'_>, dy: ViewMut<'_>, dbias: ViewMut<'_>) {
        assert!(dbias.dtype() == DType::F32, "gradients of parameters are f32");
        let columns = dbias.len();
        let rows = row_count(dy.len(), columns);
        if rows == 0 {
            return;
        }
        let (saved_ptr, dy_ptr) = (Ptr::of(saved), Ptr::of_mut(&dy));
        let is_vectorised = is_vectorised(&[columns], &[saved_ptr, dy_ptr]);
        let columns_per_block = COLUMN_THREADS * if is_vectorised { 8 } else { 1 };
        let column_blocks = columns.div_ceil(columns_per_block);
        let row_blocks = (BLOCKS_PER_SM * self.sm_count() as usize).div_ceil(column_blocks);
        let row_blocks = row_blocks.min(rows);
        let partials = self.scratch(row_blocks * columns * size_of::<f32>());
        let name = kernel_name("gelu_backward_bias", [saved.dtype(), dy.dtype()]);
        self.launch(
            &Kernel::new(&SOURCE, name),
            Grid::planar([column_blocks, row_blocks], COLUMN_THREADS),
            &[
                saved_ptr.into(),
                dy_ptr.into(),
                partials.into(),
                (rows as u64).into(),
                (columns as u64).into(),
                u32::from(is_vectorised).into(),
            ],
        );
        self.add_column_partials(partials, row_blocks, &dbias, None, None);
    }
}
