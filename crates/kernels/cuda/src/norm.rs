//! LayerNorm and RMSNorm.

use regatta_comm::DType;
use regatta_device::ops::{Fp8RowsMut, Norm, NormArgs, NormBackwardArgs, NormInputGrad};
use regatta_device::tensor::{View, ViewMut, row_count};
use regatta_device::{DeviceMemory, Fp8Ops, NormOps};

use crate::elementwise::{is_bf16, is_vectorised, to_u32};
use crate::{Arg, CudaDevice, Grid, Kernel, Ptr, Source};

/// Rows in registers.
pub(crate) static SOURCE: Source = Source {
    name: "norm",
    text: concat!(
        include_str!("../kernels/rows.cuh"),
        include_str!("../kernels/e4m3.cuh"),
        include_str!("../kernels/fp8_rows.cuh"),
        include_str!("../kernels/norm.cu"),
    ),
};

/// Rows of any length and alignment.
pub(crate) static GENERIC_SOURCE: Source =
    Source { name: "norm_generic", text: include_str!("../kernels/norm_generic.cu") };

/// `THREADS` of the generic source.
const GENERIC_THREADS: u32 = 256;

/// Elements of a vector.
const VECTOR_LEN: usize = 8;

impl NormOps for CudaDevice {
    fn norm(&self, args: NormArgs<'_>) {
        let NormArgs { norm, x, weight, bias, y, mean_rstd } = args;
        let shape = Shape::check(x.len(), weight, bias, &y, mean_rstd.view());
        let pointers = [Ptr::of(x), Ptr::of(weight), Ptr::optional(bias), Ptr::of_mut(&y)];
        let dtypes = Dtypes::new(norm, x, weight, y.dtype());
        let stats = stats_args(norm, &mean_rstd);
        self.forward("norm_forward", dtypes, shape, &pointers, stats, None);
    }

    fn add_norm(&self, args: NormArgs<'_>, delta: View<'_>, sum: ViewMut<'_>) {
        self.add_norm_with(args, delta, sum, None);
    }

    fn norm_backward(&self, args: NormBackwardArgs<'_>) {
        self.norm_backward_with(args, None);
    }
}

impl CudaDevice {
    /// [`NormOps::add_norm`], with `y` in fp8 if wanted.
    pub(crate) fn add_norm_with(
        &self,
        args: NormArgs<'_>,
        delta: View<'_>,
        sum: ViewMut<'_>,
        fp8: Option<Fp8RowsMut<'_>>,
    ) {
        let NormArgs { norm, x, weight, bias, y, mean_rstd } = args;
        let shape = Shape::check(x.len(), weight, bias, &y, mean_rstd.view());
        assert!(delta.len() == x.len() && sum.len() == x.len(), "tensor lengths differ");
        assert_eq!(x.dtype(), sum.dtype(), "the dtypes of a tensor and its sum differ");
        let parameters = [Ptr::of(weight), Ptr::optional(bias)];
        let [weight_ptr, bias_ptr] = parameters;
        let pointers =
            [Ptr::of(x), Ptr::of(delta), weight_ptr, bias_ptr, Ptr::of_mut(&sum), Ptr::of_mut(&y)];
        let dtypes = Dtypes { delta: delta.dtype(), ..Dtypes::new(norm, x, weight, y.dtype()) };
        let stats = stats_args(norm, &mean_rstd);
        let has_fp8 = self.forward("add_norm", dtypes, shape, &pointers, stats, fp8.as_ref());
        if let Some(fp8) = fp8.filter(|_| !has_fp8) {
            self.quantize_rows(y.view(), fp8, None);
        }
    }

    /// [`NormOps::norm_backward`], with the input's gradient in fp8 if wanted. Each block sums the parameter
    /// gradients of its rows; these partial sums are added in order.
    pub(crate) fn norm_backward_with(
        &self,
        args: NormBackwardArgs<'_>,
        fp8: Option<Fp8RowsMut<'_>>,
    ) {
        let NormBackwardArgs { norm, x, weight, mean_rstd, dy, input_grad, dweight, dbias } = args;
        let NormInputGrad { dx, copy: dx_copy, column_sums } = input_grad;
        let shape = Shape::check(x.len(), weight, None, &dx, mean_rstd);
        assert!(dy.len() == x.len(), "tensor lengths differ");
        assert!(dx_copy.as_ref().is_none_or(|copy| copy.len() == x.len()), "tensor lengths differ");
        let sums = [Some(&dweight), dbias.as_ref(), column_sums.as_ref()];
        for grad in sums.into_iter().flatten() {
            assert_eq!(grad.len(), shape.columns, "parameter and gradient lengths differ");
            assert!(grad.dtype() == DType::F32, "gradients of parameters are f32");
        }
        if shape.rows == 0 {
            return column_sums.into_iter().for_each(|sums| self.zero(sums));
        }
        let copy_dtype = dx_copy.as_ref().map_or(dy.dtype(), ViewMut::dtype);
        let dtypes =
            Dtypes { dx: dx.dtype(), copy: copy_dtype, ..Dtypes::new(norm, x, weight, dy.dtype()) };
        let tensors = BackwardTensors {
            dy: Ptr::of(dy),
            x: Ptr::of(x),
            weight: Ptr::of(weight),
            mean_rstd: Ptr::of(mean_rstd),
            dx: Ptr::of_mut(&dx),
            dx_copy: Ptr::optional_mut(dx_copy.as_ref()),
        };
        let mut parts = Parts {
            has_bias: dbias.is_some(),
            has_sums: column_sums.is_some(),
            has_fp8: fp8.is_some(),
        };
        let layout = BackwardLayout::of(shape.columns, self.warp_threads(), parts);
        let (partials, count) = match layout.filter(|_| tensors.are_vectorised(shape.columns)) {
            Some(layout) => {
                let to = fp8_pointers(fp8.as_ref());
                self.backward_in_registers(dtypes, layout, shape, &tensors, to, parts)
            }
            None => {
                (parts.has_sums, parts.has_fp8) = (false, false);
                self.backward_generic(dtypes, shape, &tensors, parts.has_bias)
            }
        };
        let fused_sums = column_sums.as_ref().filter(|_| parts.has_sums);
        self.add_column_partials(partials, count, &dweight, dbias.as_ref(), fused_sums);
        if let Some(mut sums) = column_sums.filter(|_| !parts.has_sums) {
            self.zero(sums.reborrow());
            self.add_column_sums(dx.view(), sums);
        }
        if let Some(fp8) = fp8.filter(|_| !parts.has_fp8) {
            let operand = dx_copy.as_ref().map_or(dx.view(), ViewMut::view);
            self.quantize_rows(operand, fp8, None);
        }
    }

    /// Returns whether the rows in fp8 were written, too.
    fn forward(
        &self,
        function: &'static str,
        dtypes: Dtypes,
        shape: Shape,
        pointers: &[Ptr],
        stats: [Arg; 2],
        fp8: Option<&Fp8RowsMut<'_>>,
    ) -> bool {
        let Shape { rows, columns } = shape;
        let mut args: Vec<Arg> = pointers.iter().map(|pointer| (*pointer).into()).collect();
        let layout = ForwardLayout::of(columns, self.warp_threads());
        match layout.filter(|_| is_vectorised(&[columns], pointers)) {
            Some(layout) => {
                args.extend(fp8_pointers(fp8).map(Arg::from));
                args.extend(stats);
                args.push((rows as u64).into());
                let blocks = to_u32(rows.div_ceil(layout.block_rows));
                let grid = Grid::new(blocks, (layout.row_threads * layout.block_rows) as u32);
                let kernel = layout.kernel(dtypes, function, columns, fp8.is_some());
                self.launch(&kernel, grid, &args);
                fp8.is_some()
            }
            None => {
                args.extend(stats);
                args.push((columns as u64).into());
                let grid = Grid::new(to_u32(rows), GENERIC_THREADS);
                self.launch(&dtypes.kernel(&GENERIC_SOURCE, function), grid, &args);
                false
            }
        }
    }

    /// Returns the partial sums of the parameter gradients, and their number of rows.
    fn backward_in_registers(
        &self,
        dtypes: Dtypes,
        layout: BackwardLayout,
        Shape { rows, columns }: Shape,
        tensors: &BackwardTensors,
        fp8: [Ptr; 2],
        parts: Parts,
    ) -> (Ptr, usize) {
        let BackwardLayout { row_threads, block_rows, blocks_per_sm } = layout;
        let resident_blocks = self.sm_count() as usize * blocks_per_sm;
        let blocks = rows.div_ceil(block_rows).min(resident_blocks);
        let partials = self.scratch(blocks * parts.count() * columns * size_of::<f32>());
        let mut args: Vec<Arg> = tensors.in_order().map(Into::into).to_vec();
        args.extend(fp8.map(Arg::from));
        args.extend([Arg::from(partials), (rows as u64).into()]);
        let grid = Grid::new(to_u32(blocks), (row_threads * block_rows) as u32);
        self.launch(&layout.kernel(dtypes, columns, parts), grid, &args);
        (partials, blocks)
    }

    fn backward_generic(
        &self,
        dtypes: Dtypes,
        Shape { rows, columns }: Shape,
        tensors: &BackwardTensors,
        has_bias: bool,
    ) -> (Ptr, usize) {
        let mut args: Vec<Arg> = tensors.in_order().map(Into::into).to_vec();
        args.push((columns as u64).into());
        let kernel = dtypes.kernel(&GENERIC_SOURCE, "norm_backward");
        self.launch(&kernel, Grid::new(to_u32(rows), GENERIC_THREADS), &args);
        let column_blocks = columns.div_ceil(GENERIC_THREADS as usize);
        // Enough blocks for the device, and rows for each that are worth one.
        let row_blocks = (8 * self.sm_count() as usize).div_ceil(column_blocks);
        let row_blocks = row_blocks.min(rows.div_ceil(16)).max(1);
        let parts = Parts { has_bias, has_sums: false, has_fp8: false };
        let partials = self.scratch(row_blocks * parts.count() * columns * size_of::<f32>());
        let kernel = dtypes.kernel(&GENERIC_SOURCE, "norm_backward_params");
        let BackwardTensors { dy, x, mean_rstd, .. } = *tensors;
        self.launch(
            &kernel,
            Grid::planar([column_blocks, row_blocks], GENERIC_THREADS as usize),
            &[
                dy.into(),
                x.into(),
                mean_rstd.into(),
                partials.into(),
                (rows as u64).into(),
                (columns as u64).into(),
                u32::from(has_bias).into(),
            ],
        );
        (partials, row_blocks)
    }
}

/// The addresses of values and scales.
fn fp8_pointers(fp8: Option<&Fp8RowsMut<'_>>) -> [Ptr; 2] {
    fp8.map_or([Ptr::NULL; 2], |fp8| [&fp8.values, &fp8.scales].map(Ptr::of_mut))
}

/// Which columns blocks of the backward pass sum besides those of the weight's gradient.
#[derive(Debug, Clone, Copy)]
struct Parts {
    has_bias: bool,
    has_sums: bool,
    /// Whether the input's gradient is also written in fp8.
    has_fp8: bool,
}

impl Parts {
    fn count(self) -> usize {
        1 + usize::from(self.has_bias) + usize::from(self.has_sums)
    }
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    rows: usize,
    columns: usize,
}

impl Shape {
    fn check(
        elements: usize,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: &ViewMut<'_>,
        mean_rstd: View<'_>,
    ) -> Self {
        let columns = weight.len();
        let rows = row_count(elements, columns);
        assert!(y.len() == elements && mean_rstd.len() == 2 * rows, "row counts differ");
        assert!(mean_rstd.dtype() == DType::F32, "mean and rstd are f32");
        let same_bias =
            bias.is_none_or(|bias| (bias.len(), bias.dtype()) == (columns, weight.dtype()));
        assert!(same_bias, "lengths or dtypes of weight and bias differ");
        Self { rows, columns }
    }
}

/// Where mean and rstd are written, and what the variance is increased by.
fn stats_args(norm: Norm, mean_rstd: &ViewMut<'_>) -> [Arg; 2] {
    let (Norm::Layer { eps } | Norm::Rms { eps }) = norm;
    [Ptr::of_mut(mean_rstd).into(), (eps as f32).into()]
}

/// What kernels are compiled for.
#[derive(Debug, Clone, Copy)]
struct Dtypes {
    is_rms: bool,
    x: DType,
    delta: DType,
    weight: DType,
    y: DType,
    dx: DType,
    copy: DType,
}

impl Dtypes {
    /// The forward pass does not depend on the dtypes of gradients: these defaults add no variants of it.
    fn new(norm: Norm, x: View<'_>, weight: View<'_>, y: DType) -> Self {
        let is_rms = matches!(norm, Norm::Rms { .. });
        Self { is_rms, x: x.dtype(), delta: y, weight: weight.dtype(), y, dx: y, copy: y }
    }

    fn kernel(self, source: &'static Source, function: &'static str) -> Kernel {
        let Self { is_rms, x, delta, weight, y, dx, copy } = self;
        let dtype = |dtype| u64::from(is_bf16(dtype));
        Kernel::new(source, function)
            .define("IS_RMS", u64::from(is_rms))
            .define("X_BF16", dtype(x))
            .define("DELTA_BF16", dtype(delta))
            .define("WEIGHT_BF16", dtype(weight))
            .define("Y_BF16", dtype(y))
            .define("DX_BF16", dtype(dx))
            .define("COPY_BF16", dtype(copy))
    }
}

#[derive(Debug, Clone, Copy)]
struct BackwardTensors {
    dy: Ptr,
    x: Ptr,
    weight: Ptr,
    mean_rstd: Ptr,
    dx: Ptr,
    dx_copy: Ptr,
}

impl BackwardTensors {
    /// In the order of the kernels' arguments.
    fn in_order(&self) -> [Ptr; 6] {
        [self.dy, self.x, self.weight, self.mean_rstd, self.dx, self.dx_copy]
    }

    fn are_vectorised(&self, columns: usize) -> bool {
        is_vectorised(&[columns], &[self.dy, self.x, self.weight, self.dx, self.dx_copy])
    }
}

/// How threads share rows in the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ForwardLayout {
    row_threads: usize,
    block_rows: usize,
}

impl ForwardLayout {
    /// As few threads per row as hold it in registers; `None` for rows that are too long.
    fn of(columns: usize, warp: usize) -> Option<Self> {
        const MAX_VECTORS_PER_THREAD: usize = 4;
        let vectors = columns / VECTOR_LEN;
        let fits = |threads: &usize| vectors.div_ceil(*threads) <= MAX_VECTORS_PER_THREAD;
        let row_threads = [32, 64, 128, 256, 512].into_iter().filter(|n| *n >= warp).find(fits)?;
        Some(Self { row_threads, block_rows: (128 / row_threads).max(1) })
    }

    fn kernel(
        self,
        dtypes: Dtypes,
        function: &'static str,
        columns: usize,
        has_fp8: bool,
    ) -> Kernel {
        dtypes
            .kernel(&SOURCE, function)
            .define("HAS_FP8", u64::from(has_fp8))
            .define("COLUMNS", columns as u64)
            .define("ROW_THREADS", self.row_threads as u64)
            .define("BLOCK_ROWS", self.block_rows as u64)
    }
}

/// How threads share rows in the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BackwardLayout {
    row_threads: usize,
    block_rows: usize,
    blocks_per_sm: usize,
}

impl BackwardLayout {
    /// One vector per thread, two for long rows: threads also hold the parameter gradients of their
    /// columns. `None` for rows that are too long.
    fn of(columns: usize, warp: usize, parts: Parts) -> Option<Self> {
        let vectors = columns / VECTOR_LEN;
        // As many threads as registers allow without spills; column sums take more of them.
        let (per_thread, threads_per_sm) = match (vectors, parts.has_sums) {
            (0..=256, false) => (1, 768),
            (0..=256, true) => (1, 576),
            (257..=1024, false) => (2, 512),
            (257..=1024, true) => (2, 256),
            _ => return None,
        };
        let row_threads = vectors.div_ceil(per_thread).max(1).next_multiple_of(warp);
        let block_rows = (256 / row_threads).max(1);
        let blocks_per_sm = (threads_per_sm / (row_threads * block_rows)).max(1);
        Some(Self { row_threads, block_rows, blocks_per_sm })
    }

    fn kernel(self, dtypes: Dtypes, columns: usize, parts: Parts) -> Kernel {
        dtypes
            .kernel(&SOURCE, "norm_backward")
            .define("HAS_FP8", u64::from(parts.has_fp8))
            .define("COLUMNS", columns as u64)
            .define("ROW_THREADS", self.row_threads as u64)
            .define("BLOCK_ROWS", self.block_rows as u64)
            .define("HAS_BIAS", u64::from(parts.has_bias))
            .define("HAS_SUMS", u64::from(parts.has_sums))
            .define("MIN_BLOCKS", self.blocks_per_sm as u64)
    }
}

/// Kernels of many shapes and dtypes, for the test that compiles all sources.
#[cfg(test)]
pub(crate) fn representative_kernels(warp: usize) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for is_bf16 in [false, true] {
        let y = if is_bf16 { DType::Bf16 } else { DType::F32 };
        for (is_rms, columns) in [(false, 64), (false, 768), (true, 1600), (true, 8192)] {
            let dtypes = Dtypes { is_rms, x: DType::F32, delta: y, weight: y, y, dx: y, copy: y };
            let forward = ForwardLayout::of(columns, warp);
            kernels
                .extend(forward.map(|layout| layout.kernel(dtypes, "add_norm", columns, is_bf16)));
            let parts = Parts { has_bias: !is_rms, has_sums: !is_rms, has_fp8: is_bf16 };
            let backward = BackwardLayout::of(columns, warp, parts);
            for dx in [DType::F32, DType::Bf16] {
                let dtypes = Dtypes { dx, ..dtypes };
                kernels.extend(backward.map(|layout| layout.kernel(dtypes, columns, parts)));
            }
            kernels.push(dtypes.kernel(&GENERIC_SOURCE, "add_norm"));
        }
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_rows_fit_in_the_registers_of_few_threads() {
        let layout =
            |columns| ForwardLayout::of(columns, 32).map(|l| (l.row_threads, l.block_rows));
        assert_eq!([768, 1024, 4096].map(layout), [(32, 4), (32, 4), (128, 1)].map(Some));
        assert_eq!(layout(16384), Some((512, 1)));
        assert_eq!(layout(16392), None);
        assert_eq!(ForwardLayout::of(64, 64).map(|layout| layout.row_threads), Some(64));
    }

    #[test]
    fn backward_layouts_cover_rows_with_whole_warps() {
        for columns in (8..=8192).step_by(8) {
            let parts = Parts { has_bias: true, has_sums: true, has_fp8: true };
            let BackwardLayout { row_threads, block_rows, .. } =
                BackwardLayout::of(columns, 32, parts).unwrap();
            assert!(row_threads.is_multiple_of(32) && row_threads * block_rows <= 512);
            assert!(row_threads * 2 * VECTOR_LEN >= columns);
            // Hardware barriers 1 to 15.
            assert!(block_rows <= 15);
        }
        let parts = Parts { has_bias: true, has_sums: false, has_fp8: false };
        assert_eq!(BackwardLayout::of(8200, 32, parts), None);
    }
}
