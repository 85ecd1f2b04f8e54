//! GEMM: all matrix multiplications of layers go through `Cpu::gemm`.

pub mod bf16;
mod packed_f32;
pub(crate) mod parallel_bf16;
mod peak;
pub(crate) mod small_f32;
mod task_grid;

use regatta_comm::DType;

use crate::Cpu;
use crate::gemm::bf16::MatrixSlice;
use crate::gemm::small_f32::{MatrixPtr, MatrixPtrMut};
use crate::lanes::WIDTH;
use crate::slice::{DisjointMut, Slice};
use crate::thread_pool::task_range;
use regatta_device::DeviceMemory;
use regatta_device::precision::Precision;
use regatta_device::tensor::ViewMut;

/// Multiply-adds that are worth another thread.
pub(crate) const MIN_WORK_PER_THREAD: usize = 64 * 1024;

/// Shape of a GEMM: `c` is `m` by `n`, `a` is `m` by `k`, `b` is `k` by `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmShape {
    /// Rows of `a` and `c`.
    pub m: usize,
    /// Columns of `b` and `c`.
    pub n: usize,
    /// Depth.
    pub k: usize,
}

impl GemmShape {
    /// Number of multiply-adds.
    pub fn work(self) -> usize {
        self.m.saturating_mul(self.n).saturating_mul(self.k)
    }
}

/// Epilogue of a GEMM.
#[derive(Debug, Clone, Copy)]
pub enum Epilogue<'a> {
    /// `c = a b`.
    Store,
    /// `c = a b + bias`, one element per column.
    Bias(&'a [f32]),
    /// `c += a b`.
    Accumulate,
}

impl Epilogue<'_> {
    /// The epilogue of the columns from one on.
    fn at_column(self, column: usize) -> Self {
        match self {
            Self::Bias(bias) => Self::Bias(&bias[column..]),
            other => other,
        }
    }
}

/// Operands and epilogue of a GEMM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GemmArgs<'a> {
    /// Shape.
    pub shape: GemmShape,
    /// Left operand.
    pub a: MatrixSlice<'a>,
    /// Right operand.
    pub b: MatrixSlice<'a>,
    /// Epilogue.
    pub epilogue: Epilogue<'a>,
}

impl Cpu {
    /// GEMM into the row-major matrix `c`: in bf16 if that is the device's precision or any matrix is bf16.
    pub(crate) fn gemm(&self, args: GemmArgs<'_>, c: ViewMut<'_>) {
        let GemmArgs { shape: GemmShape { m, n, k }, a, b, epilogue } = args;
        assert_eq!(c.len(), m * n, "c is not {m} by {n}");
        if m * n == 0 {
            return;
        }
        if let Epilogue::Bias(bias) = epilogue {
            assert_eq!(bias.len(), n, "the bias must have one element per column");
        }
        if k == 0 {
            match epilogue {
                Epilogue::Store => self.zero(c),
                Epilogue::Accumulate => {}
                Epilogue::Bias(bias) => self.broadcast_row(bias, c),
            }
            return;
        }
        a.assert_in_bounds(m, k);
        b.assert_in_bounds(k, n);
        let is_bf16 = |matrix: &MatrixSlice<'_>| matches!(matrix.elements, Slice::Bf16(_));
        let any_bf16 = is_bf16(&a) || is_bf16(&b) || c.dtype() == DType::Bf16;
        if self.precision == Precision::Bf16 || any_bf16 {
            self.gemm_bf16(args, c);
        } else {
            self.gemm_f32(args, c.as_slice());
        }
    }

    /// By packed panels, or by the `gemm` crate; then the longer side of `c` is split between threads.
    fn gemm_f32(&self, args: GemmArgs<'_>, c: &mut [f32]) {
        let GemmArgs { shape, epilogue, .. } = args;
        let GemmShape { m, n, k } = shape;
        let _timer = self.kernel_times.timer(|| format!("gemm {m}x{n}x{k} f32"));
        let (a, b) = (args.a.as_ptr(), args.b.as_ptr());
        if packed_f32::is_faster(self.isa, shape) {
            // SAFETY: `gemm` checked the bounds of both operands.
            return unsafe { self.gemm_packed(shape, a, b, c, epilogue) };
        }
        if let Epilogue::Bias(bias) = epilogue {
            self.broadcast_row(bias, ViewMut::from_slice(c));
        }
        let accumulate = !matches!(epilogue, Epilogue::Store);
        let c = DisjointMut::new(c);
        let tasks = self.pool.tasks(shape.work(), MIN_WORK_PER_THREAD);
        self.pool.run(tasks, |task| {
            let (rows, columns) = if m >= n {
                (task_range(m, tasks, task, WIDTH), 0..n)
            } else {
                (0..m, task_range(n, tasks, task, WIDTH))
            };
            if rows.is_empty() || columns.is_empty() {
                return;
            }
            let shape = GemmShape { m: rows.len(), n: columns.len(), k };
            let ptr = c.ptr_f32(rows.start * n + columns.start);
            // SAFETY: `gemm` checked the bounds of both operands; tasks have disjoint parts of `c`.
            unsafe {
                let (a, b) = (a.at_row(rows.start), b.at_column(columns.start));
                gemm_by_crate(shape, a, b, MatrixPtrMut { ptr, row_stride: n }, accumulate);
            }
        });
    }
}

/// Calls the `gemm` crate. Its output is column-major, so it computes `cᵀ = bᵀ aᵀ`.
///
/// # Safety
/// The matrices must have the given shape, and `c` must not be accessed otherwise.
unsafe fn gemm_by_crate(
    GemmShape { m, n, k }: GemmShape,
    a: MatrixPtr,
    b: MatrixPtr,
    c: MatrixPtrMut,
    accumulate: bool,
) {
    let gemm = gemm_f32::gemm::f32::get_gemm_fn();
    // SAFETY: the caller's promise.
    unsafe {
        gemm(
            n,
            m,
            k,
            c.ptr,
            c.row_stride as isize,
            1,
            accumulate,
            b.ptr,
            b.row_stride as isize,
            b.column_stride as isize,
            a.ptr,
            a.row_stride as isize,
            a.column_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}
