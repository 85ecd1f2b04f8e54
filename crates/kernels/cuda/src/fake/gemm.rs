//! Matrix products of the fake BLAS library.

use half::bf16;
use regatta_comm::DType;
use regatta_device::e4m3;
use regatta_device::ops::FP8_DTYPE;

use super::blas::{Desc, Layout, dtype};
use super::gpu::FakeGpu;
use super::memory::check_access;
use crate::blaslt::constants::Constants;

/// A GEMM.
pub(super) struct Gemm {
    pub desc: Desc,
    pub a: Matrix,
    pub b: Matrix,
    pub d: Matrix,
    pub beta: f32,
    /// Whether products are 1, whatever the operands.
    pub is_one: bool,
}

/// A matrix in memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub start: u64,
    pub layout: Layout,
}

impl Matrix {
    /// Asserts that the matrix is in memory of a GPU.
    fn assert_accessible(&self, gpu: &FakeGpu) {
        let Layout { dtype, rows, columns, ld } = self.layout;
        let elements = (columns - 1) * ld + rows;
        if let Err(error) = check_access(gpu, self.start, elements * dtype.size()) {
            panic!("a matrix of a GEMM: {error}");
        }
    }

    fn address(&self, row: usize, column: usize) -> *mut u8 {
        let Layout { dtype, rows, columns, ld } = self.layout;
        assert!(row < rows && column < columns, "out of bounds");
        (self.start as *mut u8).wrapping_add((row + column * ld) * dtype.size())
    }

    fn get(&self, row: usize, column: usize) -> f32 {
        // SAFETY: the element is in the matrix.
        unsafe { load(self.address(row, column), self.layout.dtype) }
    }

    fn set(&self, row: usize, column: usize, value: f32) {
        let address = self.address(row, column);
        // SAFETY: the element is in the matrix.
        unsafe {
            match self.layout.dtype {
                DType::Bf16 => address.cast::<bf16>().write_unaligned(bf16::from_f32(value)),
                _ => address.cast::<f32>().write_unaligned(value),
            }
        }
    }

    /// The columns of the matrix or of its transpose.
    fn columns(&self, of_transpose: bool) -> Vec<Vec<f32>> {
        let Layout { rows, columns, .. } = self.layout;
        if of_transpose {
            return (0..rows).map(|r| (0..columns).map(|c| self.get(r, c)).collect()).collect();
        }
        (0..columns).map(|c| (0..rows).map(|r| self.get(r, c)).collect()).collect()
    }
}

/// # Safety
/// The address must be that of an element.
unsafe fn load(address: *const u8, dtype: DType) -> f32 {
    // SAFETY: as required of the caller.
    unsafe {
        match dtype {
            DType::Bf16 => address.cast::<bf16>().read_unaligned().to_f32(),
            FP8_DTYPE => e4m3::decode(*address),
            _ => address.cast::<f32>().read_unaligned(),
        }
    }
}

/// GELU, tanh approximation.
pub(crate) fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044715 * x * x * x)).tanh())
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * b);
    }
    sums.iter().sum()
}

/// Computes `d`. Panics are errors.
pub(super) fn run(gemm: &Gemm, gpu: &FakeGpu) {
    let Gemm { ref desc, a, b, d, beta, is_one } = *gemm;
    let Constants { desc: at, operations, .. } = Constants::of(gpu.config.vendor);
    if gpu.config.checks_gemm_memory {
        [a, b, d].iter().for_each(|matrix| matrix.assert_accessible(gpu));
    }
    let is_transposed = |attribute| desc.get(attribute) as i32 == operations[1];
    let epilogue = Epilogue::new(desc, gpu, d.layout);
    let product = Product::new(gemm, is_transposed(at.transpose_a), is_transposed(at.transpose_b));
    let scales = Scales::new(gemm, gpu);
    for (row, column) in (0..d.layout.columns).flat_map(|c| (0..d.layout.rows).map(move |r| (r, c)))
    {
        let mut value = if is_one { 1.0 } else { product.element(row, column) };
        value *= scales.as_ref().map_or(1.0, |scales| scales.of(row, column));
        if beta != 0.0 {
            value += beta * d.get(row, column);
        }
        d.set(row, column, epilogue.apply(row, column, value));
    }
}

/// The operands of a product.
struct Product {
    a_rows: Vec<Vec<f32>>,
    b_columns: Vec<Vec<f32>>,
}

impl Product {
    fn new(gemm: &Gemm, transpose_a: bool, transpose_b: bool) -> Self {
        if gemm.is_one {
            return Self { a_rows: Vec::new(), b_columns: Vec::new() };
        }
        let (a_rows, b_columns) = (gemm.a.columns(!transpose_a), gemm.b.columns(transpose_b));
        let Layout { rows, columns, .. } = gemm.d.layout;
        assert_eq!((a_rows.len(), b_columns.len()), (rows, columns), "outer dimensions");
        assert_eq!(a_rows[0].len(), b_columns[0].len(), "inner dimensions");
        Self { a_rows, b_columns }
    }

    fn element(&self, row: usize, column: usize) -> f32 {
        dot(&self.a_rows[row], &self.b_columns[column])
    }
}

/// Scales of the rows of the operands, if these are fp8: then the library demands that both have the inner
/// dimension contiguous.
struct Scales([Matrix; 2]);

impl Scales {
    fn new(gemm: &Gemm, gpu: &FakeGpu) -> Option<Self> {
        let (desc, a, b, d) = (&gemm.desc, gemm.a, gemm.b, gemm.d);
        if a.layout.dtype != FP8_DTYPE {
            return None;
        }
        let Constants { desc: at, operations, fp8, .. } = Constants::of(gpu.config.vendor);
        let fp8 = fp8.as_ref().expect("fp8 GEMMs");
        let transposes = [at.transpose_a, at.transpose_b].map(|at| desc.get(at) as i32);
        assert_eq!(transposes, [operations[1], operations[0]], "transposes of fp8 operands");
        for dimension in [a.layout.rows, a.layout.columns, b.layout.rows] {
            assert!(dimension.is_multiple_of(16), "{dimension} is not a multiple of 16");
        }
        let modes = fp8.scale_modes.map(|mode| desc.get(mode) as i32);
        assert_eq!(modes, [fp8.outer_vector; 2], "scale modes");
        let vectors = [(0, d.layout.rows), (1, d.layout.columns)].map(|(at, rows)| {
            let layout = Layout { dtype: DType::F32, rows, columns: 1, ld: rows };
            let matrix = Matrix { start: desc.get(fp8.scale_pointers[at]), layout };
            matrix.assert_accessible(gpu);
            matrix
        });
        Some(Self(vectors))
    }

    fn of(&self, row: usize, column: usize) -> f32 {
        self.0[0].get(row, 0) * self.0[1].get(column, 0)
    }
}

/// What follows a product.
struct Epilogue {
    bias: Option<Matrix>,
    /// Where the input of GELU is stored.
    aux: Option<Matrix>,
}

impl Epilogue {
    fn new(desc: &Desc, gpu: &FakeGpu, layout: Layout) -> Self {
        let Constants { desc: at, epilogues, .. } = Constants::of(gpu.config.vendor);
        let epilogue = desc.get(at.epilogue) as u32;
        let bias = (epilogue != epilogues.default).then(|| {
            let dtype = dtype(desc.get(at.bias_data_type) as i32);
            let layout = Layout { dtype, columns: 1, ld: layout.rows, ..layout };
            Matrix { start: desc.get(at.bias_pointer), layout }
        });
        let aux = (epilogue == epilogues.gelu_aux_bias).then(|| {
            let layout = Layout { ld: desc.get(at.aux_ld) as usize, ..layout };
            Matrix { start: desc.get(at.aux_pointer), layout }
        });
        if gpu.config.checks_gemm_memory {
            bias.iter().chain(&aux).for_each(|matrix| matrix.assert_accessible(gpu));
        }
        Self { bias, aux }
    }

    fn apply(&self, row: usize, column: usize, value: f32) -> f32 {
        let value = value + self.bias.map_or(0.0, |bias| bias.get(row, 0));
        match self.aux {
            Some(aux) => {
                aux.set(row, column, value);
                gelu(value)
            }
            None => value,
        }
    }
}
