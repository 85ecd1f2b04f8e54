//! GEMMs on fp8 operands, and operations fused with the conversion of their results.

use regatta_comm::DType;
use regatta_device::Fp8Ops;
use regatta_device::ops::{
    CrossEntropyArgs, FP8_DTYPE, FP8_SCALE_DTYPE, Fp8, Fp8Rows, Fp8RowsMut, LinearArgs,
    LinearShape, NormArgs, NormBackwardArgs,
};
use regatta_device::tensor::{View, ViewMut, row_count};

use crate::elementwise::{is_bf16, is_vectorised, kernel_name, to_u32};
use crate::{Arg, CudaDevice, Grid, Kernel, Ptr, Source};

/// Rows in registers.
pub(crate) static SOURCE: Source = Source {
    name: "fp8",
    text: concat!(
        include_str!("../kernels/rows.cuh"),
        include_str!("../kernels/e4m3.cuh"),
        include_str!("../kernels/fp8_rows.cuh"),
        include_str!("../kernels/gelu.cuh"),
        include_str!("../kernels/fp8.cu"),
    ),
};

/// Transposed matrices.
pub(crate) static TRANSPOSE_SOURCE: Source = Source {
    name: "fp8_transpose",
    text: concat!(include_str!("../kernels/e4m3.cuh"), include_str!("../kernels/fp8_transpose.cu")),
};

/// Rows and columns that the library demands to be multiples of 16 bytes.
const DIMENSION_MULTIPLE: usize = 16;

/// Elements of a vector.
const VECTOR_LEN: usize = 8;

/// Threads of a warp of the GPUs with fp8.
const WARP: usize = 32;

/// `THREADS`, `LANES` and `TILE` of the transposing source.
const TRANSPOSE_THREADS: usize = 256;
const LANES: usize = 16;
const TILE: usize = 64;

/// Rows of partial maxima per column, at most.
const MAX_PARTIAL_ROWS: usize = 64;

impl Fp8Ops for CudaDevice {
    fn fp8(&self) -> Fp8 {
        self.fp8
    }

    fn supports_fp8(&self, shape: LinearShape) -> bool {
        let LinearShape { rows, inputs, outputs } = shape;
        let fits = |columns: usize| {
            columns.is_multiple_of(DIMENSION_MULTIPLE) && RowLayout::of(columns, true).is_some()
        };
        self.fp8 != Fp8::Off && rows > 0 && fits(inputs) && fits(outputs)
    }

    fn quantize_rows(&self, x: View<'_>, to: Fp8RowsMut<'_>, column_sums: Option<ViewMut<'_>>) {
        let pointers = [Ptr::of(x)];
        self.quantize("quantize_rows", x.dtype(), &pointers, &to, column_sums, x.len());
    }

    /// One kernel finds the largest magnitudes of the columns, another transposes.
    fn quantize_columns(&self, x: View<'_>, to: Fp8RowsMut<'_>) {
        let (columns, rows) = check_rows(&to, x.len());
        let column_blocks = columns.div_ceil(VECTOR_LEN * LANES);
        let row_blocks = rows.div_ceil(TILE).min(MAX_PARTIAL_ROWS);
        let partials = self.scratch(row_blocks * columns * size_of::<f32>());
        let (rows_arg, columns_arg) = (Arg::from(rows as u64), Arg::from(columns as u64));
        self.launch(
            &Kernel::new(&TRANSPOSE_SOURCE, kernel_name("column_maxima", [x.dtype()])),
            Grid::planar([column_blocks, row_blocks], TRANSPOSE_THREADS),
            &[Ptr::of(x).into(), rows_arg, columns_arg, partials.into()],
        );
        self.launch(
            &Kernel::new(&TRANSPOSE_SOURCE, kernel_name("quantize_transpose", [x.dtype()])),
            Grid::planar([columns.div_ceil(TILE), rows.div_ceil(TILE)], TRANSPOSE_THREADS),
            &[
                Ptr::of(x).into(),
                partials.into(),
                to_u32(row_blocks).into(),
                rows_arg,
                columns_arg,
                Ptr::of_mut(&to.values).into(),
                Ptr::of_mut(&to.scales).into(),
            ],
        );
    }

    fn linear_fp8(&self, args: LinearArgs<'_, Fp8Rows<'_>>) {
        let LinearArgs { shape, x, weight, .. } = args;
        let is_shape = |operand: Fp8Rows<'_>, rows| {
            (operand.scales.len(), operand.columns()) == (rows, shape.inputs)
        };
        let fits = is_shape(x, shape.rows) && is_shape(weight, shape.outputs);
        assert!(fits, "the operands do not have the layer's shape");
        self.linear_scaled(args);
    }

    fn add_norm_fp8(
        &self,
        args: NormArgs<'_>,
        delta: View<'_>,
        sum: ViewMut<'_>,
        y_fp8: Fp8RowsMut<'_>,
    ) {
        self.add_norm_with(args, delta, sum, Some(y_fp8));
    }

    fn norm_backward_fp8(&self, args: NormBackwardArgs<'_>, dx_fp8: Fp8RowsMut<'_>) {
        self.norm_backward_with(args, Some(dx_fp8));
    }

    fn gelu_fp8(&self, x: ViewMut<'_>, y: ViewMut<'_>, y_fp8: Fp8RowsMut<'_>) {
        assert_eq!(x.len(), y.len(), "tensor lengths differ");
        assert_eq!(x.dtype(), y.dtype(), "dtypes differ");
        let pointers = [Ptr::of_mut(&x), Ptr::of_mut(&y)];
        self.quantize("quantize_gelu", x.dtype(), &pointers, &y_fp8, None, x.len());
    }

    fn gelu_backward_fp8(
        &self,
        saved: View<'_>,
        dy: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
        dy_fp8: Fp8RowsMut<'_>,
    ) {
        assert_eq!(saved.len(), dy.len(), "tensor lengths differ");
        assert_eq!(saved.dtype(), dy.dtype(), "dtypes differ");
        let pointers = [Ptr::of(saved), Ptr::of_mut(&dy)];
        let (function, dtype) = ("quantize_gelu_backward", saved.dtype());
        self.quantize(function, dtype, &pointers, &dy_fp8, dbias, dy.len());
    }

    fn cross_entropy_fp8(&self, mut args: CrossEntropyArgs<'_>, dlogits_fp8: Fp8RowsMut<'_>) {
        check_rows(&dlogits_fp8, args.logits.len());
        let fp8 = [Ptr::of_mut(&dlogits_fp8.values), Ptr::of_mut(&dlogits_fp8.scales)];
        if !self.cross_entropy_fused(&args, Some(fp8)) {
            let logits = args.logits.reborrow();
            self.cross_entropy_whole(CrossEntropyArgs { logits, ..args });
            self.quantize_rows(args.logits.view(), dlogits_fp8, None);
        }
    }
}

impl CudaDevice {
    /// Launches a kernel that writes rows in fp8, with their column sums.
    fn quantize(
        &self,
        function: &'static str,
        dtype: DType,
        tensors: &[Ptr],
        to: &Fp8RowsMut<'_>,
        column_sums: Option<ViewMut<'_>>,
        elements: usize,
    ) {
        let (rows, columns) = check_rows(to, elements);
        let layout = RowLayout::of(columns, column_sums.is_some());
        let Some(layout) = layout.filter(|_| is_vectorised(&[columns], tensors)) else {
            let why = format!("rows of {columns} elements; set train.fp8=off");
            return self.fail(function, why);
        };
        let blocks = layout.blocks(rows, self.sm_count() as usize);
        let partials = match &column_sums {
            Some(sums) => {
                assert_eq!(sums.len(), columns, "column sums have another length");
                self.scratch(blocks * columns * size_of::<f32>())
            }
            None => Ptr::NULL,
        };
        let mut args: Vec<Arg> = tensors.iter().map(|tensor| (*tensor).into()).collect();
        args.extend([Ptr::of_mut(&to.values), Ptr::of_mut(&to.scales), partials].map(Arg::from));
        args.push((rows as u64).into());
        let kernel = layout.kernel(function, dtype, columns);
        self.launch(&kernel, Grid::new(to_u32(blocks), layout.threads() as u32), &args);
        if let Some(sums) = column_sums {
            self.add_column_partials(partials, blocks, &sums, None, None);
        }
    }
}

/// Rows and columns of rows in fp8 of this many elements.
pub(crate) fn check_rows(to: &Fp8RowsMut<'_>, elements: usize) -> (usize, usize) {
    let rows = to.scales.len();
    assert_eq!(to.values.len(), elements, "tensor lengths differ");
    let dtypes = (to.values.dtype(), to.scales.dtype());
    assert!(dtypes == (FP8_DTYPE, FP8_SCALE_DTYPE), "fp8 has bytes and f32 scales");
    (rows, row_count(elements, rows))
}

/// How threads share rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowLayout {
    row_threads: usize,
    block_rows: usize,
    blocks_per_sm: usize,
    /// Whether blocks sum columns: then there are as many as the device runs at once.
    has_sums: bool,
}

impl RowLayout {
    /// As few vectors per thread as possible; `None` for rows that are too long.
    fn of(columns: usize, has_sums: bool) -> Option<Self> {
        let vectors = columns.div_ceil(VECTOR_LEN).max(1);
        // Registers limit the threads of a multiprocessor.
        let (per_thread, threads_per_sm) = match (vectors, has_sums) {
            (0..=512, false) => (1, 1536),
            (0..=512, true) => (1, 1280),
            (513..=1024, _) => (2, 768),
            (1025..=2048, _) => (4, 512),
            (2049..=8192, _) => (8, 1024),
            _ => return None,
        };
        let row_threads = vectors.div_ceil(per_thread).next_multiple_of(WARP);
        let block_rows = (256 / row_threads).max(1);
        let blocks_per_sm = (threads_per_sm / (row_threads * block_rows)).max(1);
        Some(Self { row_threads, block_rows, blocks_per_sm, has_sums })
    }

    fn threads(self) -> usize {
        self.row_threads * self.block_rows
    }

    fn blocks(self, rows: usize, sm_count: usize) -> usize {
        let blocks = rows.div_ceil(self.block_rows);
        if self.has_sums { blocks.min(sm_count * self.blocks_per_sm) } else { blocks }
    }

    fn kernel(self, function: &'static str, dtype: DType, columns: usize) -> Kernel {
        Kernel::new(&SOURCE, function)
            .define("X_BF16", u64::from(is_bf16(dtype)))
            .define("COLUMNS", columns as u64)
            .define("ROW_THREADS", self.row_threads as u64)
            .define("BLOCK_ROWS", self.block_rows as u64)
            .define("HAS_SUMS", u64::from(self.has_sums))
            .define("MIN_BLOCKS", self.blocks_per_sm as u64)
    }
}

/// Kernels of many shapes, for the test that compiles all sources.
#[cfg(test)]
pub(crate) fn representative_kernels() -> Vec<Kernel> {
    let columns = [16, 768, 3072, 8192, 50_304];
    let layouts =
        columns.map(|columns| RowLayout::of(columns, true).map(|layout| (layout, columns)));
    let kernel = |(layout, columns): (RowLayout, usize)| {
        layout.kernel("quantize_gelu_backward", DType::Bf16, columns)
    };
    let mut kernels: Vec<Kernel> = layouts.into_iter().flatten().map(kernel).collect();
    kernels.push(Kernel::new(&TRANSPOSE_SOURCE, "any"));
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_cover_rows_with_whole_warps() {
        for columns in (16..=65_536).step_by(16) {
            let RowLayout { row_threads, block_rows, .. } = RowLayout::of(columns, true).unwrap();
            let vectors = columns / VECTOR_LEN;
            assert!(row_threads.is_multiple_of(WARP) && row_threads * block_rows <= 1024);
            assert!(vectors.div_ceil(row_threads) <= 8, "{columns}");
            // Hardware barriers 1 to 15.
            assert!(block_rows <= 15);
        }
        assert_eq!(RowLayout::of(65_552, false), None);
    }

    #[test]
    fn blocks_that_sum_columns_occupy_the_device_once() {
        let layout = RowLayout::of(3072, true).unwrap();
        assert_eq!(layout.blocks(32_768, 132), 132 * layout.blocks_per_sm);
        assert_eq!(layout.blocks(5, 132), 5);
        assert_eq!(RowLayout::of(3072, false).unwrap().blocks(32_768, 132), 32_768);
    }
}
