//! Measures the kernels of `cpu::bf16` on one thread: for each that this processor has, the
//! largest error against double precision, and how fast the three products of a linear layer are,
//! beside single precision by the `gemm` crate in the same run.
//!
//! `cargo run --release -p regatta-kernels-cpu --example bf16`

use std::hint::black_box;
use std::time::Duration;

use half::bf16;
use regatta_device::random::uniform;
use regatta_kernels_cpu::bf16::{
    Epilogue, Kernel, Matrix, Slice, SliceMut, Output, Packed, Scratch, GemmShape, product,
    product_packed,
};

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
const TURNS: usize = 15;

/// One of the three products: its name, its sizes, and whether its operands are transposed.
struct Case {
    name: &'static str,
    sizes: GemmShape,
    a_transposed: bool,
    b_transposed: bool,
    adds: bool,
}

fn cases([rows, inputs, outputs]: [usize; 3]) -> [Case; 3] {
    let case = |name, [m, n, k]: [usize; 3], a_transposed, b_transposed, adds| Case {
        name,
        sizes: GemmShape { m, n, k },
        a_transposed,
        b_transposed,
        adds,
    };
    [
        case("y = x Wt", [rows, outputs, inputs], false, true, false),
        case("dx = dy W", [rows, inputs, outputs], false, false, false),
        case("dW += dyt x", [outputs, inputs, rows], true, false, true),
    ]
}

/// Slice around 0, in single precision and rounded.
fn numbers(key: u64, count: usize) -> (Vec<f32>, Vec<bf16>) {
    let wide: Vec<f32> = (0..count as u64).map(|i| (uniform(key, i) - 0.5) as f32).collect();
    let narrow = wide.iter().map(|x| bf16::from_f32(*x)).collect();
    (wide, narrow)
}

/// The strides of an operand of so many rows and columns.
fn strides(rows: usize, columns: usize, transposed: bool) -> (usize, usize) {
    if transposed { (1, rows) } else { (columns, 1) }
}

fn matrix(numbers: Slice<'_>, rows: usize, columns: usize, transposed: bool) -> Matrix<'_> {
    let (row_stride, column_stride) = strides(rows, columns, transposed);
    Matrix { numbers, row_stride, column_stride }
}

/// How long this thread has run: other work on the machine takes time, but not this.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// GFLOP/s in the best of several turns, each of a few milliseconds.
fn speed(sizes: GemmShape, mut run: impl FnMut()) -> f64 {
    let work = 2.0 * sizes.m as f64 * sizes.n as f64 * sizes.k as f64;
    let repeats = (2e8 / work).ceil() as usize;
    let turn = |run: &mut dyn FnMut()| {
        let start = thread_time();
        (0..repeats).for_each(|_| run());
        (thread_time() - start).as_secs_f64() / repeats as f64
    };
    let best = (0..TURNS).map(|_| turn(&mut run)).fold(f64::INFINITY, f64::min);
    work / best / 1e9
}

/// The largest error of some rows, as a share of the sum of the products' sizes.
fn error(case: &Case, a: &[bf16], b: &[bf16], c: &[f32]) -> f64 {
    let GemmShape { m, n, k } = case.sizes;
    let (a_row, a_column) = strides(m, k, case.a_transposed);
    let (b_row, b_column) = strides(k, n, case.b_transposed);
    let mut largest = 0.0_f64;
    for row in (0..m).step_by(37) {
        for column in 0..n {
            let (mut sum, mut size) = (0.0, 0.0);
            for i in 0..k {
                let left = a[row * a_row + i * a_column].to_f64();
                let term = left * b[i * b_row + column * b_column].to_f64();
                (sum, size) = (sum + term, size + term.abs());
            }
            largest = largest.max((f64::from(c[row * n + column]) - sum).abs() / size);
        }
    }
    largest
}

fn single_precision(case: &Case, a: &[f32], b: &[f32], c: &mut [f32]) {
    let GemmShape { m, n, k } = case.sizes;
    let (a_row, a_column) = strides(m, k, case.a_transposed);
    let (b_row, b_column) = strides(k, n, case.b_transposed);
    // SAFETY: the operands are as large as the strides say, and nobody else writes the result.
    unsafe {
        // Its results lie column by column: rows for columns, and the right operand first.
        gemm_f32::gemm::f32::get_gemm_fn()(
            n,
            m,
            k,
            c.as_mut_ptr(),
            n as isize,
            1,
            case.adds,
            b.as_ptr(),
            b_row as isize,
            b_column as isize,
            a.as_ptr(),
            a_row as isize,
            a_column as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}

fn measure(kernel: Kernel, case: &Case) {
    let GemmShape { m, n, k } = case.sizes;
    let (a, a_narrow) = numbers(1, m * k);
    let (b, b_narrow) = numbers(2, k * n);
    let mut c = vec![0.0; m * n];
    let mut c_narrow = vec![bf16::ZERO; m * n];
    let (mut scratch, mut packed) = (Scratch::default(), Packed::default());
    let left = |numbers| matrix(numbers, m, k, case.a_transposed);
    let right = |numbers| matrix(numbers, k, n, case.b_transposed);
    let f32s = speed(case.sizes, || single_precision(case, &a, &b, black_box(&mut c)));

    let output = Output::rows(SliceMut::F32(&mut c), n);
    let (left_f32, right_f32) = (left(Slice::F32(&a)), right(Slice::F32(&b)));
    product(kernel, case.sizes, left_f32, right_f32, Epilogue::Store, output, &mut scratch);
    let error = error(case, &a_narrow, &b_narrow, &c);

    let ending = if case.adds { Epilogue::Accumulate } else { Epilogue::Store };
    let from_f32 = speed(case.sizes, || {
        let output = Output::rows(SliceMut::F32(black_box(&mut c)), n);
        product(kernel, case.sizes, left_f32, right_f32, ending, output, &mut scratch);
    });
    packed.fill(kernel, k, n, right_f32);
    let with_packed = speed(case.sizes, || {
        let output = Output::rows(SliceMut::F32(black_box(&mut c)), n);
        product_packed(m, left_f32, &packed, ending, output, &mut scratch);
    });
    let narrow = (left(Slice::Bf16(&a_narrow)), right(Slice::Bf16(&b_narrow)));
    let from_bf16 = speed(case.sizes, || {
        let output = if case.adds {
            SliceMut::F32(black_box(&mut c))
        } else {
            SliceMut::Bf16(black_box(&mut c_narrow))
        };
        let output = Output::rows(output, n);
        product(kernel, case.sizes, narrow.0, narrow.1, ending, output, &mut scratch);
    });
    println!(
        "{:<12} {:<12} {m:>5} {n:>5} {k:>5} {error:>9.1e} {f32s:>8.0} {from_f32:>8.0} \
         {with_packed:>8.0} {from_bf16:>8.0}",
        kernel.name(),
        case.name,
    );
}

fn main() {
    // Names of kernels may be given, to see only those.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("best here: {}", Kernel::best().name());
    println!(
        "{:<12} {:<12} {:>5} {:>5} {:>5} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "kernel", "product", "m", "n", "k", "error", "gemm f32", "f32 in", "packed", "bf16 in"
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
