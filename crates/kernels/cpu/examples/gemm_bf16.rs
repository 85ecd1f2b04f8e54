//! Benchmarks the bf16 GEMM kernels on one thread: for each that this CPU supports, the maximum error against
//! f64 and the throughput of the three GEMMs of a linear layer, next to f32 by the `gemm` crate.
//!
//! `cargo run --release -p regatta-kernels-cpu --example gemm_bf16`

use std::hint::black_box;
use std::time::Duration;

use half::bf16;
use regatta_device::random::uniform;
use regatta_kernels_cpu::gemm::bf16::{
    GemmScratch, Kernel, MatrixSlice, MatrixSliceMut, PackedB, Slice, SliceMut, gemm_packed,
};
use regatta_kernels_cpu::gemm::{Epilogue, GemmShape};

/// Rows, inputs and outputs of linear layers.
const LAYERS: [[usize; 3]; 9] = [
    [768, 128, 384],
    [768, 128, 128],
    [768, 128, 512],
    [768, 512, 128],
    [768, 128, 65],
    [1024, 384, 1152],
    [1024, 384, 384],
    [1024, 384, 1536],
    [1024, 1536, 384],
];
/// Rounds of which the fastest counts.
const ROUNDS: usize = 15;

/// One of the three GEMMs of a linear layer.
struct Case {
    name: &'static str,
    shape: GemmShape,
    a_transposed: bool,
    b_transposed: bool,
    accumulate: bool,
}

fn cases([rows, inputs, outputs]: [usize; 3]) -> [Case; 3] {
    let case = |name, [m, n, k]: [usize; 3], a_transposed, b_transposed, accumulate| {
        let shape = GemmShape { m, n, k };
        Case { name, shape, a_transposed, b_transposed, accumulate }
    };
    [
        case("y = x Wt", [rows, outputs, inputs], false, true, false),
        case("dx = dy W", [rows, inputs, outputs], false, false, false),
        case("dW += dyt x", [outputs, inputs, rows], true, false, true),
    ]
}

/// Values around 0, in f32 and rounded to bf16.
fn random_values(key: u64, count: usize) -> (Vec<f32>, Vec<bf16>) {
    let values: Vec<f32> = (0..count as u64).map(|i| (uniform(key, i) - 0.5) as f32).collect();
    let rounded = values.iter().map(|x| bf16::from_f32(*x)).collect();
    (values, rounded)
}

/// Row and column stride of an operand.
fn strides(rows: usize, columns: usize, transposed: bool) -> (usize, usize) {
    if transposed { (1, rows) } else { (columns, 1) }
}

fn matrix(elements: Slice<'_>, rows: usize, columns: usize, transposed: bool) -> MatrixSlice<'_> {
    let (row_stride, column_stride) = strides(rows, columns, transposed);
    MatrixSlice { elements, row_stride, column_stride }
}

/// CPU time of this thread, which excludes other load on the machine.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// GFLOP/s in the fastest of several rounds of a few milliseconds each.
fn gflops(shape: GemmShape, mut run: impl FnMut()) -> f64 {
    let work = 2.0 * shape.m as f64 * shape.n as f64 * shape.k as f64;
    let repeats = (2e8 / work).ceil() as usize;
    let round = |run: &mut dyn FnMut()| {
        let start = thread_time();
        (0..repeats).for_each(|_| run());
        (thread_time() - start).as_secs_f64() / repeats as f64
    };
    let best = (0..ROUNDS).map(|_| round(&mut run)).fold(f64::INFINITY, f64::min);
    work / best / 1e9
}

/// Maximum error over some rows, relative to the sum of the magnitudes of the terms.
fn max_error(case: &Case, a: &[bf16], b: &[bf16], c: &[f32]) -> f64 {
    let GemmShape { m, n, k } = case.shape;
    let (a_row, a_column) = strides(m, k, case.a_transposed);
    let (b_row, b_column) = strides(k, n, case.b_transposed);
    let mut max = 0.0_f64;
    for row in (0..m).step_by(37) {
        for column in 0..n {
            let (mut sum, mut size) = (0.0, 0.0);
            for i in 0..k {
                let left = a[row * a_row + i * a_column].to_f64();
                let term = left * b[i * b_row + column * b_column].to_f64();
                (sum, size) = (sum + term, size + term.abs());
            }
            max = max.max((f64::from(c[row * n + column]) - sum).abs() / size);
        }
    }
    max
}

/// f32 GEMM by the `gemm` crate on one thread, of matrices with these row and column strides. Its output is
/// column-major, so it computes `cᵀ = bᵀ aᵀ`.
fn gemm_by_crate(
    GemmShape { m, n, k }: GemmShape,
    (a, a_strides): (&[f32], (usize, usize)),
    (b, b_strides): (&[f32], (usize, usize)),
    c: &mut [f32],
    accumulate: bool,
) {
    assert_eq!([a.len(), b.len(), c.len()], [m * k, k * n, m * n]);
    let [a_row, a_column, b_row, b_column] =
        [a_strides.0, a_strides.1, b_strides.0, b_strides.1].map(|stride| stride as isize);
    let ([a, b], c) = ([a, b].map(<[f32]>::as_ptr), c.as_mut_ptr());
    let gemm = gemm_f32::gemm::f32::get_gemm_fn();
    let (row, one, none) = (n as isize, 1.0, gemm_common::Parallelism::None);
    // SAFETY: the matrices have this shape, and `c` is borrowed mutably.
    unsafe {
        gemm(
            n, m, k, c, row, 1, accumulate, b, b_row, b_column, a, a_row, a_column, one, one,
            false, false, false, none,
        );
    }
}

/// Packs B and multiplies, in buffers of earlier GEMMs.
fn gemm(
    kernel: Kernel,
    shape: GemmShape,
    a: MatrixSlice<'_>,
    b: MatrixSlice<'_>,
    epilogue: Epilogue<'_>,
    c: MatrixSliceMut<'_>,
    (packed, scratch): &mut (PackedB, GemmScratch),
) {
    packed.pack(kernel, shape.k, shape.n, b);
    gemm_packed(shape.m, a, (&*packed).into(), epilogue, c, scratch);
}

fn measure(kernel: Kernel, case: &Case) {
    let GemmShape { m, n, k } = case.shape;
    let (a, a_bf16) = random_values(1, m * k);
    let (b, b_bf16) = random_values(2, k * n);
    let mut c = vec![0.0; m * n];
    let mut c_bf16 = vec![bf16::ZERO; m * n];
    let (mut scratch, mut packed) = <((PackedB, GemmScratch), PackedB)>::default();
    let left = |elements| matrix(elements, m, k, case.a_transposed);
    let right = |elements| matrix(elements, k, n, case.b_transposed);
    let (left_f32, right_f32) = (left(Slice::F32(&a)), right(Slice::F32(&b)));
    let crate_operands =
        ((&a[..], strides(m, k, case.a_transposed)), (&b[..], strides(k, n, case.b_transposed)));
    let by_gemm_crate = gflops(case.shape, || {
        let (a, b) = crate_operands;
        gemm_by_crate(case.shape, a, b, black_box(&mut c), case.accumulate);
    });

    let output = MatrixSliceMut::row_major(&mut c[..], n);
    gemm(kernel, case.shape, left_f32, right_f32, Epilogue::Store, output, &mut scratch);
    let error = max_error(case, &a_bf16, &b_bf16, &c);

    let epilogue = if case.accumulate { Epilogue::Accumulate } else { Epilogue::Store };
    let from_f32 = gflops(case.shape, || {
        let output = MatrixSliceMut::row_major(&mut black_box(&mut c)[..], n);
        gemm(kernel, case.shape, left_f32, right_f32, epilogue, output, &mut scratch);
    });
    packed.pack(kernel, k, n, right_f32);
    let with_packed = gflops(case.shape, || {
        let output = MatrixSliceMut::row_major(&mut black_box(&mut c)[..], n);
        gemm_packed(m, left_f32, (&packed).into(), epilogue, output, &mut scratch.1);
    });
    let operands = (left(Slice::Bf16(&a_bf16)), right(Slice::Bf16(&b_bf16)));
    let from_bf16 = gflops(case.shape, || {
        let output = match case.accumulate {
            true => SliceMut::F32(black_box(&mut c)),
            false => SliceMut::Bf16(black_box(&mut c_bf16)),
        };
        let output = MatrixSliceMut::row_major(output, n);
        gemm(kernel, case.shape, operands.0, operands.1, epilogue, output, &mut scratch);
    });
    println!(
        "{:<12} {:<12} {m:>5} {n:>5} {k:>5} {error:>9.1e} {by_gemm_crate:>8.0} {from_f32:>8.0} \
         {with_packed:>8.0} {from_bf16:>8.0}",
        kernel.name(),
        case.name,
    );
}

fn main() {
    // Arguments: names of kernels, all if there are none.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("fastest kernel: {}", Kernel::best().name());
    println!(
        "{:<12} {:<12} {:>5} {:>5} {:>5} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "kernel", "GEMM", "m", "n", "k", "error", "gemm f32", "f32 in", "packed", "bf16 in"
    );
    for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == kernel.name()) {
            continue;
        }
        for case in LAYERS.into_iter().flat_map(cases) {
            measure(kernel, &case);
        }
    }
}
