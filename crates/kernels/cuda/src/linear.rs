//! Linear layers.

use regatta_comm::DType;
use regatta_device::ops::{
    FP8_DTYPE, Fp8Rows, LinearArgs, LinearBackwardInputArgs, LinearBackwardWeightArgs, LinearShape,
};
use regatta_device::tensor::{View, ViewMut};
use regatta_device::{DeviceMemory, LinearOps};

use crate::blaslt::{Epilogue, Gemm, GemmArgs, GemmError, StreamContext};
use crate::mixed_gemm::has_f32_replacement;
use crate::{CudaDevice, Grid, Kernel, Ptr, Source};

pub(crate) static SOURCE: Source =
    Source { name: "linear", text: include_str!("../kernels/linear.cu") };

/// Columns of a block, in vectors; `LANES` of the source.
const LANES: usize = 32;
/// Rows that a block processes together; `GROUPS` of the source.
const GROUPS: usize = 8;
/// `PARTIAL_GROUPS` of the source.
const PARTIAL_GROUPS: usize = 32;
/// Rows of a block that make its own reduction cheap.
const MIN_BLOCK_ROWS: usize = 4 * GROUPS;
/// Blocks per multiprocessor that saturate the memory.
const BLOCKS_PER_SM: usize = 4;
/// Largest second dimension of a grid.
const MAX_GRID_Y: usize = 65_535;
/// The name of GEMMs on fp8 operands in errors.
const FP8_OPERATION: &str = "linear_fp8";
/// Addresses and rows that are multiples of this are accessed by vectors.
const VECTOR_BYTES: usize = 16;

impl LinearOps for CudaDevice {
    fn linear(&self, args: LinearArgs<'_>) {
        let LinearArgs { shape, x, weight, bias, mut y } = args;
        shape.check_lengths(x.len(), weight.len(), y.len());
        check_bias(shape, bias.map(View::len));
        if y.is_empty() || self.has_failed() {
            return;
        }
        if shape.inputs == 0 {
            self.zero(y.reborrow());
            return self.add_bias(bias, y);
        }
        let Some((input, [a, b])) = self.operands([weight, x], y.dtype()) else { return };
        let gemm = Gemm::forward(shape, input, y.dtype());
        let args = GemmArgs::new(a, b, Ptr::of_mut(&y));
        self.with_bias("linear", gemm, args, bias, y);
    }

    fn linear_backward_input(&self, args: LinearBackwardInputArgs<'_>) {
        let LinearBackwardInputArgs { shape, dy, weight, dx, accumulate } = args;
        shape.check_lengths(dx.len(), weight.len(), dy.len());
        if dx.is_empty() || self.has_failed() {
            return;
        }
        if shape.outputs == 0 {
            if !accumulate {
                self.zero(dx);
            }
            return;
        }
        let Some((input, [a, b])) = self.operands([weight, dy], dx.dtype()) else { return };
        let gemm = Gemm::backward_input(shape, input, dx.dtype()).accumulate(accumulate);
        let args = GemmArgs::new(a, b, Ptr::of_mut(&dx));
        self.report("linear_backward_input", self.gemm(gemm, &args));
    }

    fn linear_backward_weight(&self, args: LinearBackwardWeightArgs<'_>) {
        let LinearBackwardWeightArgs { shape, x, dy, dweight, dbias } = args;
        shape.check_lengths(x.len(), dweight.len(), dy.len());
        check_bias(shape, dbias.as_ref().map(ViewMut::len));
        if let Some(dbias) = dbias {
            self.add_column_sums(dy, dbias);
        }
        if dweight.is_empty() || shape.rows == 0 || self.has_failed() {
            return;
        }
        let Some((input, [a, b])) = self.operands([x, dy], dweight.dtype()) else { return };
        let gemm = Gemm::backward_weight(shape, input, dweight.dtype());
        let args = GemmArgs::new(a, b, Ptr::of_mut(&dweight));
        self.report("linear_backward_weight", self.gemm(gemm, &args));
    }
}

impl CudaDevice {
    /// `y = gelu(x weightᵀ + bias)` by one GEMM, which stores the input of GELU in `saved`. Returns
    /// false, without effects, if the library does not support that.
    pub(crate) fn linear_gelu_fused(&self, args: &LinearArgs<'_>, saved: &ViewMut<'_>) -> bool {
        let LinearArgs { shape, x, weight, bias, ref y } = *args;
        shape.check_lengths(x.len(), weight.len(), y.len());
        check_bias(shape, bias.map(View::len));
        assert_eq!(saved.len(), y.len(), "tensor lengths differ");
        let Some(bias) = bias else { return false };
        let dtypes = [x.dtype(), weight.dtype(), bias.dtype(), saved.dtype(), y.dtype()];
        let is_bf16 = dtypes.iter().all(|dtype| *dtype == DType::Bf16);
        // The library demands rows of the saved input that are multiples of 16 bytes.
        if !is_bf16 || !shape.outputs.is_multiple_of(8) || shape.inputs == 0 {
            return false;
        }
        if y.is_empty() || self.has_failed() {
            return true;
        }
        let gemm = Gemm::forward(shape, DType::Bf16, DType::Bf16)
            .with_epilogue(Epilogue::GeluAuxBias(DType::Bf16));
        let args = GemmArgs {
            bias: Ptr::of(bias),
            aux: Ptr::of_mut(saved),
            ..GemmArgs::new(Ptr::of(weight), Ptr::of(x), Ptr::of_mut(y))
        };
        match self.gemm(gemm, &args) {
            Err(GemmError::Unsupported { .. }) => false,
            result => {
                self.report("linear_gelu", result);
                true
            }
        }
    }

    /// `y = x weightᵀ + bias` of operands in fp8, whose shapes are those of the layer.
    pub(crate) fn linear_scaled(&self, args: LinearArgs<'_, Fp8Rows<'_>>) {
        let LinearArgs { shape, x, weight, bias, y } = args;
        check_bias(shape, bias.map(View::len));
        shape.check_lengths(x.values.len(), weight.values.len(), y.len());
        if y.is_empty() || self.has_failed() {
            return;
        }
        let gemm = Gemm::forward(shape, FP8_DTYPE, y.dtype());
        let operands = [weight, x];
        let [a, b] = operands.map(|operand| Ptr::of(operand.values));
        let scales = operands.map(|operand| Ptr::of(operand.scales));
        let args = GemmArgs { scales, ..GemmArgs::new(a, b, Ptr::of_mut(&y)) };
        self.with_bias(FP8_OPERATION, gemm, args, bias, y);
    }

    /// Adds the column sums of `x` to `sums`, which is f32. The order of additions is fixed.
    pub(crate) fn add_column_sums(&self, x: View<'_>, sums: ViewMut<'_>) {
        let columns = sums.len();
        assert!(sums.dtype() == DType::F32, "column sums are f32");
        assert!(
            x.len().is_multiple_of(columns.max(1)),
            "{} elements are not rows of {columns} columns",
            x.len()
        );
        if x.is_empty() || self.has_failed() {
            return;
        }
        let rows = x.len() / columns;
        let width = vector_width(x.dtype(), columns, &[Ptr::of(x)]);
        let column_blocks = columns.div_ceil(LANES * width);
        let block_rows = block_rows(rows, column_blocks, self.sm_count());
        let count = rows.div_ceil(block_rows);
        let partials = self.scratch(count * columns * size_of::<f32>());
        let name = format!("column_sums_{}_{width}", x.dtype());
        let (rows, row_len) = (rows as u64, columns as u64);
        self.launch(
            &Kernel::new(&SOURCE, name),
            Grid::planar([column_blocks, count], LANES * GROUPS),
            &[
                Ptr::of(x).into(),
                rows.into(),
                row_len.into(),
                (block_rows as u64).into(),
                partials.into(),
            ],
        );
        self.add_partial_sums(partials, count, sums);
    }

    /// Adds the column sums of `count` rows of f32 to `sums`, which is f32. For few rows; the order of
    /// additions is fixed.
    pub(crate) fn add_partial_sums(&self, partials: Ptr, count: usize, sums: ViewMut<'_>) {
        assert!(sums.dtype() == DType::F32, "column sums are f32");
        let columns = sums.len();
        let (rows, row_len) = (count as u64, columns as u64);
        self.launch(
            &Kernel::new(&SOURCE, "add_partial_sums"),
            Grid::planar([columns.div_ceil(LANES), 1], LANES * PARTIAL_GROUPS),
            &[partials.into(), rows.into(), row_len.into(), Ptr::of_mut(&sums).into()],
        );
    }

    /// A GEMM whose output is `y`, then the bias: in one call if the library supports that.
    fn with_bias(
        &self,
        operation: &str,
        gemm: Gemm,
        args: GemmArgs,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
    ) {
        if let Some(bias) = bias.filter(|bias| bias.dtype() == y.dtype()) {
            let args = GemmArgs { bias: Ptr::of(bias), ..args };
            match self.gemm(gemm.with_epilogue(Epilogue::Bias(bias.dtype())), &args) {
                Err(GemmError::Unsupported { .. }) => {}
                result => return self.report(operation, result),
            }
        }
        self.report(operation, self.gemm(gemm, &args));
        self.add_bias(bias, y);
    }

    /// Adds the bias, if any, to every row of `y`.
    fn add_bias(&self, bias: Option<View<'_>>, y: ViewMut<'_>) {
        let Some(bias) = bias.filter(|bias| !bias.is_empty()) else { return };
        let (y_ptr, bias_ptr) = (Ptr::of_mut(&y), Ptr::of(bias));
        let columns = bias.len();
        let rows = y.len() / columns;
        let width = vector_width(y.dtype(), columns, &[y_ptr, bias_ptr]);
        let name = format!("add_bias_{}_{}_{width}", y.dtype(), bias.dtype());
        let blocks = [columns.div_ceil(LANES * width), rows.div_ceil(GROUPS).min(MAX_GRID_Y)];
        let (rows, row_len) = (rows as u64, columns as u64);
        self.launch(
            &Kernel::new(&SOURCE, name),
            Grid::planar(blocks, LANES * GROUPS),
            &[y_ptr.into(), bias_ptr.into(), rows.into(), row_len.into()],
        );
    }

    pub(crate) fn gemm(&self, gemm: Gemm, args: &GemmArgs) -> Result<(), GemmError> {
        if !self.make_current() {
            return Ok(());
        }
        let context = StreamContext {
            runtime: &self.runtime,
            stream: self.stream(),
            gpu_name: &self.info().name,
            tune: !self.deterministic,
        };
        // SAFETY: the lengths of the tensors were checked, and the stream is valid.
        let result =
            self.timed(|| gemm.to_string(), || unsafe { self.blas.run(context, gemm, args) });
        match result {
            Err(GemmError::Unsupported { .. }) if has_f32_replacement(&gemm) => {
                self.gemm_of_f32_copies(gemm, args)
            }
            result => result,
        }
    }

    fn report(&self, operation: &str, result: Result<(), GemmError>) {
        match result {
            Ok(()) => self.after_launch(operation),
            Err(error) if operation == FP8_OPERATION => {
                let hint = "scales per row need cuBLASLt of CUDA 12.9 or newer; set train.fp8=off";
                self.fail(operation, format!("{error}: {hint}"));
            }
            Err(error) => self.fail(operation, error),
        }
    }

    /// The operands in one dtype, which the library demands: f32 if all tensors are f32, otherwise bf16.
    /// `None` if there is no memory to convert in, which is the device's error.
    fn operands(&self, operands: [View<'_>; 2], output: DType) -> Option<(DType, [Ptr; 2])> {
        let dtypes = [operands[0].dtype(), operands[1].dtype(), output];
        if dtypes == [DType::F32; 3] {
            return Some((DType::F32, operands.map(Ptr::of)));
        }
        let mut converted = operands.map(Ptr::of);
        for (index, operand) in operands.into_iter().enumerate() {
            if operand.dtype() != DType::Bf16 {
                converted[index] = self.blas.conversions.to_bf16(self, index, operand)?;
            }
        }
        Some((DType::Bf16, converted))
    }
}

/// Elements of one access to rows of `columns` elements: 16 bytes, or one element if the rows or an
/// address are not aligned.
fn vector_width(dtype: DType, columns: usize, addresses: &[Ptr]) -> usize {
    let width = VECTOR_BYTES / dtype.size();
    let is_aligned = |address: &Ptr| address.0.is_multiple_of(VECTOR_BYTES as u64);
    let vectorised = columns.is_multiple_of(width) && addresses.iter().all(is_aligned);
    if vectorised { width } else { 1 }
}

/// Rows of a block, so that there are enough blocks for the device, but not more.
fn block_rows(rows: usize, column_blocks: usize, sm_count: u32) -> usize {
    let row_blocks = (sm_count as usize * BLOCKS_PER_SM).div_ceil(column_blocks);
    rows.div_ceil(row_blocks).max(MIN_BLOCK_ROWS).next_multiple_of(GROUPS)
}

fn check_bias(shape: LinearShape, len: Option<usize>) {
    assert!(len.is_none_or(|len| len == shape.outputs), "the bias does not have the layer's shape");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_rows_and_addresses_are_accessed_by_element() {
        let width =
            |dtype, columns, address| vector_width(dtype, columns, &[Ptr(512), Ptr(address)]);
        assert_eq!([width(DType::Bf16, 768, 16), width(DType::F32, 12, 16)], [8, 4]);
        assert_eq!([width(DType::Bf16, 12, 16), width(DType::Bf16, 768, 8)], [1, 1]);
    }

    #[test]
    fn column_sums_occupy_the_device_once() {
        for (rows, columns) in
            [(32_768usize, 768usize), (32_768, 3072), (8192, 50_304), (10, 768), (1, 1)]
        {
            let column_blocks = columns.div_ceil(LANES * 8);
            let block_rows = block_rows(rows, column_blocks, 132);
            let row_blocks = rows.div_ceil(block_rows);
            assert!(row_blocks * block_rows >= rows && block_rows >= MIN_BLOCK_ROWS);
            let blocks = row_blocks * column_blocks;
            assert!(blocks <= 132 * BLOCKS_PER_SM + column_blocks, "{blocks} blocks");
        }
    }

    #[test]
    #[should_panic(expected = "the weight does not have the layer's shape")]
    fn wrong_lengths_panic() {
        LinearShape { rows: 2, inputs: 3, outputs: 4 }.check_lengths(6, 11, 8);
    }
}
