//! Elementwise operations, copies between dtypes and the sum of squares.

use regatta_comm::DType;
use regatta_device::ElementwiseOps;
use regatta_device::random::DropoutMask;
use regatta_device::tensor::{View, ViewMut};

use crate::graph::BoundMask;
use crate::{Arg, CudaDevice, Grid, Kernel, Ptr, Source};

pub(crate) static SOURCE: Source =
    Source { name: "elementwise", text: include_str!("../kernels/elementwise.cu") };

/// Elements of a vector.
const VECTOR_LEN: usize = 8;

/// Alignment of vectors.
const VECTOR_BYTES: u64 = 16;

/// Threads of the kernels that reduce to a scalar.
const REDUCE_THREADS: u32 = 256;

/// Blocks of a sum of squares: enough for every GPU, and the same number on each, so that the result does
/// not depend on the model.
const SQUARES_BLOCKS: usize = 1024;

/// `COLUMNS` and `LANES` of `add_column_partials`.
const PARTIALS_COLUMNS: usize = 32;
const PARTIALS_LANES: u32 = 16;

impl ElementwiseOps for CudaDevice {
    fn add(&self, x: View<'_>, y: View<'_>, z: ViewMut<'_>) {
        assert!(x.len() == z.len() && y.len() == z.len(), "tensor lengths differ");
        let name = kernel_name("add", [x.dtype(), y.dtype(), z.dtype()]);
        let pointers = [Ptr::of(x), Ptr::of(y), Ptr::of_mut(&z)];
        self.launch_elements(&SOURCE, name, Elements::flat(z.len(), &pointers), &pointers, &[]);
    }

    fn add_assign(&self, x: View<'_>, y: ViewMut<'_>) {
        assert_eq!(x.len(), y.len(), "tensor lengths differ");
        let name = kernel_name("add", [y.dtype(), x.dtype(), y.dtype()]);
        let pointers = [Ptr::of_mut(&y), Ptr::of(x), Ptr::of_mut(&y)];
        self.launch_elements(&SOURCE, name, Elements::flat(y.len(), &pointers), &pointers, &[]);
    }

    fn dropout(&self, mask: DropoutMask, x: ViewMut<'_>) {
        let (threshold, scale) = (mask.p * 16_777_216.0, 1.0 / (1.0 - mask.p));
        let BoundMask { state, key, offset } = self.bound_mask(mask);
        let args: [Arg; 5] =
            [state.into(), key.into(), offset.into(), threshold.into(), scale.into()];
        self.launch_in_place("dropout", x, &args);
    }

    fn scale(&self, by: f64, x: ViewMut<'_>) {
        self.launch_in_place("scale", x, &[(by as f32).into()]);
    }

    fn sum_of_squares(&self, x: View<'_>, sum: ViewMut<'_>) {
        assert_scalar(&sum);
        if x.is_empty() {
            return;
        }
        let name = kernel_name("sum_of_squares", [x.dtype()]);
        let elements = Elements::flat(x.len(), &[Ptr::of(x)]);
        let blocks = elements.threads().div_ceil(REDUCE_THREADS as usize).min(SQUARES_BLOCKS);
        let partials = self.scratch(blocks * size_of::<f64>());
        let [len, vectorised] = elements.args();
        self.launch(
            &Kernel::new(&SOURCE, name),
            Grid::new(blocks as u32, REDUCE_THREADS),
            &[Ptr::of(x).into(), partials.into(), len, vectorised],
        );
        self.add_scalars(partials, blocks, &sum);
    }
}

impl CudaDevice {
    /// Copies elements, converting f32 to bf16 or back.
    pub(crate) fn convert(&self, from: View<'_>, to: ViewMut<'_>) {
        assert_eq!(from.len(), to.len(), "tensor lengths differ");
        let name = kernel_name("convert", [from.dtype(), to.dtype()]);
        let pointers = [Ptr::of(from), Ptr::of_mut(&to)];
        self.launch_elements(&SOURCE, name, Elements::flat(to.len(), &pointers), &pointers, &[]);
    }

    /// Adds `count` f64 in device memory to a scalar, in a fixed order.
    pub(crate) fn add_scalars(&self, partials: Ptr, count: usize, sum: &ViewMut<'_>) {
        assert_scalar(sum);
        self.launch(
            &Kernel::new(&SOURCE, "add_scalars"),
            Grid::new(1, REDUCE_THREADS),
            &[partials.into(), (count as u64).into(), Ptr::of_mut(sum).into()],
        );
    }

    /// Adds the column sums of `count` rows of f32 to two tensors and writes those of a third: a row has
    /// the columns of the first, then those of the second, then those of the third.
    pub(crate) fn add_column_partials(
        &self,
        partials: Ptr,
        count: usize,
        first: &ViewMut<'_>,
        second: Option<&ViewMut<'_>>,
        third: Option<&ViewMut<'_>>,
    ) {
        let second_end = first.len() + second.map_or(0, ViewMut::len);
        let columns = second_end + third.map_or(0, ViewMut::len);
        let blocks = columns.div_ceil(PARTIALS_COLUMNS);
        self.launch(
            &Kernel::new(&SOURCE, "add_column_partials"),
            Grid::new(to_u32(blocks), PARTIALS_COLUMNS as u32 * PARTIALS_LANES),
            &[
                partials.into(),
                to_u32(count).into(),
                (columns as u64).into(),
                Ptr::of_mut(first).into(),
                (first.len() as u64).into(),
                Ptr::optional_mut(second).into(),
                (second_end as u64).into(),
                Ptr::optional_mut(third).into(),
            ],
        );
    }

    /// Launches an elementwise kernel, whose arguments are the tensors, `args`, and the numbers of
    /// elements and of those that are processed as vectors.
    pub(crate) fn launch_elements(
        &self,
        source: &'static Source,
        name: String,
        elements: Elements,
        pointers: &[Ptr],
        args: &[Arg],
    ) {
        let mut all: Vec<Arg> = pointers.iter().map(|pointer| Arg::from(*pointer)).collect();
        all.extend(args);
        all.extend(elements.args());
        self.launch(&Kernel::new(source, name), elements.grid(), &all);
    }

    fn launch_in_place(&self, operation: &str, x: ViewMut<'_>, args: &[Arg]) {
        let name = kernel_name(operation, [x.dtype()]);
        let pointers = [Ptr::of_mut(&x)];
        let elements = Elements::flat(x.len(), &pointers);
        self.launch_elements(&SOURCE, name, elements, &pointers, args);
    }
}

/// The elements of an elementwise kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elements {
    pub len: usize,
    /// The first elements, which are processed as vectors.
    pub vectorised: usize,
}

impl Elements {
    /// Of tensors that start at these addresses.
    pub fn flat(len: usize, pointers: &[Ptr]) -> Self {
        let vectors = if are_aligned(pointers) { len / VECTOR_LEN } else { 0 };
        Self { len, vectorised: vectors * VECTOR_LEN }
    }

    /// Of rows whose lengths and first columns are `strides`: all are processed as vectors, or none.
    pub fn in_rows(len: usize, strides: &[usize], pointers: &[Ptr]) -> Self {
        Self { len, vectorised: if is_vectorised(strides, pointers) { len } else { 0 } }
    }

    pub fn grid(self) -> Grid {
        Grid::linear(self.threads(), 1)
    }

    /// The last arguments of an elementwise kernel.
    pub fn args(self) -> [Arg; 2] {
        [self.len, self.vectorised].map(|count| Arg::from(count as u64))
    }

    fn threads(self) -> usize {
        self.vectorised / VECTOR_LEN + (self.len - self.vectorised)
    }
}

/// Whether rows with these lengths and first columns can be accessed by vectors.
pub(crate) fn is_vectorised(strides: &[usize], pointers: &[Ptr]) -> bool {
    strides.iter().all(|stride| stride.is_multiple_of(VECTOR_LEN)) && are_aligned(pointers)
}

/// Null pointers, which stand for no tensor, are aligned.
pub(crate) fn are_aligned(pointers: &[Ptr]) -> bool {
    pointers.iter().all(|pointer| pointer.0.is_multiple_of(VECTOR_BYTES))
}

/// The name of a kernel for f32 and bf16 tensors, such as `add_f32_bf16_f32`.
///
/// # Panics
/// If a dtype is neither.
pub(crate) fn kernel_name<const N: usize>(operation: &str, dtypes: [DType; N]) -> String {
    dtypes.iter().fold(operation.to_owned(), |name, dtype| format!("{name}_{}", suffix(*dtype)))
}

/// The dtype as it is in names of kernels.
fn suffix(dtype: DType) -> &'static str {
    if is_bf16(dtype) { "bf16" } else { "f32" }
}

/// Whether a dtype is bf16, not f32.
///
/// # Panics
/// If it is neither.
pub(crate) fn is_bf16(dtype: DType) -> bool {
    match dtype {
        DType::F32 => false,
        DType::Bf16 => true,
        _ => panic!("kernels take f32 and bf16, not {dtype}"),
    }
}

/// A size that kernels take as 32 bits, or a number of blocks.
///
/// # Panics
/// If it is larger than any tensor's dimension and any grid.
pub(crate) fn to_u32(size: usize) -> u32 {
    assert!(size <= i32::MAX as usize, "{size} is too large for a GPU");
    size as u32
}

fn assert_scalar(scalar: &ViewMut<'_>) {
    assert!(scalar.dtype() == DType::F64 && !scalar.is_empty(), "scalars are f64");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_tensors_are_processed_one_element_at_a_time() {
        let flat = |len, address| Elements::flat(len, &[Ptr(256), Ptr(address)]);
        assert_eq!(flat(20, 32), Elements { len: 20, vectorised: 16 });
        assert_eq!((flat(20, 32).threads(), flat(20, 32).grid().blocks), (6, [1, 1, 1]));
        assert_eq!(flat(20, 36), Elements { len: 20, vectorised: 0 });
        assert_eq!(flat(0, 32).grid().blocks[0], 0);
    }

    #[test]
    fn vectors_do_not_cross_rows() {
        let rows = |row_len| Elements::in_rows(4 * row_len, &[row_len], &[Ptr(256)]).vectorised;
        assert_eq!((rows(64), rows(60)), (256, 0));
    }

    #[test]
    fn kernels_are_named_after_their_dtypes() {
        assert_eq!(kernel_name("add", [DType::F32, DType::Bf16, DType::F32]), "add_f32_bf16_f32");
    }

    #[test]
    #[should_panic(expected = "kernels take f32 and bf16, not i32")]
    fn other_dtypes_panic() {
        kernel_name("add", [DType::I32]);
    }
}
