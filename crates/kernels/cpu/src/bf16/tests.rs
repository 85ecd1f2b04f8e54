//! Every kernel that this processor has, against sums in double precision.

use half::bf16;
use proptest::prelude::*;

use super::*;
use regatta_device::random::{key, uniform};

fn kernels() -> impl Iterator<Item = Kernel> {
    let all = Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    #[cfg(target_arch = "x86_64")]
    return all.chain([Kernel::AmxEmulated]);
    #[cfg(not(target_arch = "x86_64"))]
    return all;
}

/// An operand somewhere in memory, with numbers between its own that must not matter.
#[derive(Debug, Clone)]
struct Operand {
    wide: Vec<f32>,
    narrow: Option<Vec<bf16>>,
    strides: [usize; 2],
}

impl Operand {
    fn new(seed: u64, [rows, columns]: [usize; 2], how: Placing) -> Self {
        let strides = match how.order {
            0 => [columns + how.gap, 1],
            1 => [1, rows + how.gap],
            _ => [2 * (columns + how.gap), 2],
        };
        let len = rows * strides[0] + columns * strides[1];
        let wide: Vec<f32> =
            (0..len as u64).map(|i| (uniform(key(seed, &[3]), i) - 0.5) as f32).collect();
        let narrow = how.narrow.then(|| wide.iter().map(|x| bf16::from_f32(*x)).collect());
        Self { wide, narrow, strides }
    }

    /// From a row on.
    fn matrix(&self, row: usize) -> Matrix<'_> {
        self.starting(row * self.strides[0])
    }

    /// From a column on.
    fn columns(&self, first: usize) -> Matrix<'_> {
        self.starting(first * self.strides[1])
    }

    fn starting(&self, first: usize) -> Matrix<'_> {
        let numbers = match &self.narrow {
            Some(narrow) => Slice::Bf16(&narrow[first..]),
            None => Slice::F32(&self.wide[first..]),
        };
        Matrix { numbers, row_stride: self.strides[0], column_stride: self.strides[1] }
    }

    fn rounded(&self, row: usize, column: usize) -> f64 {
        bf16::from_f32(self.wide[row * self.strides[0] + column * self.strides[1]]).to_f64()
    }
}

#[derive(Debug, Clone, Copy)]
struct Placing {
    narrow: bool,
    order: usize,
    gap: usize,
}

fn placing() -> impl Strategy<Value = Placing> {
    (any::<bool>(), 0..3_usize, 0..3_usize).prop_map(|(narrow, order, gap)| Placing {
        narrow,
        order,
        gap,
    })
}

fn sizes() -> impl Strategy<Value = GemmShape> {
    // Whole tiles are read from where they are.
    let whole = || (1..4_usize).prop_map(|tiles| 32 * tiles);
    let size = || prop_oneof![0..5_usize, 5..80_usize, whole()];
    let depth = prop_oneof![
        0..5_usize,
        5..100_usize,
        whole(),
        500..530_usize,
        544..545_usize,
        1020..1030_usize
    ];
    (size(), size(), depth).prop_map(|(m, n, k)| GemmShape { m, n, k })
}

#[derive(Debug, Clone, Copy)]
enum End {
    Set,
    Bias,
    Add,
}

#[derive(Debug, Clone)]
struct Case {
    sizes: GemmShape,
    a: Operand,
    b: Operand,
    bias: Vec<f32>,
    end: End,
    before: Vec<f32>,
    stride: usize,
}

impl Case {
    fn new(sizes: GemmShape, places: [Placing; 2], end: End, gap: usize) -> Self {
        let GemmShape { m, n, k } = sizes;
        let some = |purpose: u64, count: usize| -> Vec<f32> {
            (0..count as u64).map(|i| (uniform(key(5, &[purpose]), i) - 0.5) as f32).collect()
        };
        let stride = n + gap;
        Self {
            sizes,
            a: Operand::new(1, [m, k], places[0]),
            b: Operand::new(2, [k, n], places[1]),
            bias: some(1, n),
            end,
            before: some(2, m * stride),
            stride,
        }
    }

    fn ending(&self) -> Epilogue<'_> {
        match self.end {
            End::Set => Epilogue::Store,
            End::Bias => Epilogue::Bias(&self.bias),
            End::Add => Epilogue::Accumulate,
        }
    }

    fn product(&self, kernel: Kernel, scratch: &mut Scratch) -> Vec<f32> {
        let mut c = self.before.clone();
        let output = Output::rows(SliceMut::F32(&mut c), self.stride);
        let (a, b) = (self.a.matrix(0), self.b.matrix(0));
        product(kernel, self.sizes, a, b, self.ending(), output, scratch);
        c
    }

    /// What number `i` of the result should be, and the size of what it is a sum of.
    fn exact(&self, i: usize) -> (f64, f64) {
        let (row, column) = (i / self.stride, i % self.stride);
        let before = f64::from(self.before[i]);
        if column >= self.sizes.n {
            return (before, 0.0);
        }
        let start = match self.end {
            End::Set => 0.0,
            End::Bias => f64::from(self.bias[column]),
            End::Add => before,
        };
        (0..self.sizes.k).fold((start, start.abs()), |(sum, size), i| {
            let term = self.a.rounded(row, i) * self.b.rounded(i, column);
            (sum + term, size + term.abs())
        })
    }
}

fn case() -> impl Strategy<Value = Case> {
    let end = prop_oneof![Just(End::Set), Just(End::Bias), Just(End::Add)];
    (sizes(), [placing(), placing()], end, 0..4_usize)
        .prop_map(|(sizes, places, end, gap)| Case::new(sizes, places, end, gap))
}

/// Each sum is rounded once an addition at most, and products not at all or once.
fn tolerance(k: usize, size: f64) -> f64 {
    (k as f64 + 4.0) * size * f64::from(f32::EPSILON)
}

/// Fewer where nothing is optimised: tiles played by plain loops are slow.
const CASES: u32 = if cfg!(debug_assertions) { 20 } else { 200 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn products_are_right(case in case()) {
        // What an earlier product left must not matter.
        let mut scratch = Scratch::default();
        for kernel in kernels() {
            let c = case.product(kernel, &mut scratch);
            for (i, found) in c.iter().enumerate() {
                let (exact, size) = case.exact(i);
                let error = (f64::from(*found) - exact).abs();
                prop_assert!(
                    error <= tolerance(case.sizes.k, size),
                    "{}: number {i} is {found}, not {exact}", kernel.name()
                );
            }
        }
    }

    #[test]
    fn results_in_brain_floats_are_the_same_rounded(case in case()) {
        let mut scratch = Scratch::default();
        for kernel in kernels() {
            let mut c: Vec<bf16> = case.before.iter().map(|x| bf16::from_f32(*x)).collect();
            let rounded = Case { before: c.iter().map(|x| x.to_f32()).collect(), ..case.clone() };
            let output = Output::rows(SliceMut::Bf16(&mut c), case.stride);
            let (a, b) = (case.a.matrix(0), case.b.matrix(0));
            product(kernel, case.sizes, a, b, case.ending(), output, &mut scratch);
            for (i, found) in c.iter().enumerate() {
                let (exact, size) = rounded.exact(i);
                let error = (found.to_f64() - exact).abs();
                let of_rounding = exact.abs() / 256.0 * 1.001;
                prop_assert!(
                    error <= of_rounding + tolerance(case.sizes.k, size),
                    "{}: number {i} is {found}, not {exact}", kernel.name()
                );
            }
        }
    }

    #[test]
    fn packed_operands_and_cut_rows_give_the_same_bits(case in case(), cut in 0.0..1.0_f64) {
        let GemmShape { m, n, k } = case.sizes;
        let cut = (cut * m as f64) as usize;
        let (mut scratch, mut packed) = (Scratch::default(), Packed::default());
        for kernel in kernels() {
            let whole = case.product(kernel, &mut scratch);
            packed.fill(kernel, k, n, case.b.matrix(0));
            let mut parts = case.before.clone();
            let (upper, lower) = parts.split_at_mut(cut * case.stride);
            for (c, rows) in [(upper, 0..cut), (lower, cut..m)] {
                let output = Output::rows(SliceMut::F32(c), case.stride);
                let (a, ending) = (case.a.matrix(rows.start), case.ending());
                product_packed(rows.len(), a, &packed, ending, output, &mut scratch);
            }
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&whole), bits(&parts), "{}", kernel.name());
        }
    }

    /// A part of a packed operand gives what that part gives, packed alone. Other rows and columns
    /// do not count.
    #[test]
    fn parts_of_packed_operands_are_operands(
        case in case(), cuts in [0.0..1.0_f64, 0.0..1.0, 0.0..1.0],
    ) {
        let GemmShape { m, n, k } = case.sizes;
        let some = |of: usize, cut: f64| (cut * (of + 1) as f64) as usize;
        let (first, columns) = (some(k / 32, cuts[0]) * 32, some(n, cuts[1]));
        let rows = first..first + some(k - first, cuts[2]);
        let (mut scratch, mut packed) = (Scratch::default(), Packed::default());
        for kernel in kernels() {
            let mut product_of = |a: Matrix<'_>, b: Right<'_>| {
                let mut c = case.before.clone();
                let output = Output::rows(SliceMut::F32(&mut c), case.stride);
                product_packed(m, a, b, case.ending(), output, &mut scratch);
                c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            let a = case.a.columns(rows.start);
            packed.fill(kernel, rows.len(), columns, case.b.matrix(rows.start));
            let expected = product_of(a, (&packed).into());
            packed.fill(kernel, k, n, case.b.matrix(0));
            let found = product_of(a, packed.part(rows.clone(), columns));
            prop_assert_eq!(expected, found, "{}: {:?} by {}", kernel.name(), rows, columns);
        }
    }

    #[test]
    fn rounding_is_that_of_the_half_crate(bits in prop::collection::vec(any::<u32>(), 0..100)) {
        let numbers: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
        let mut found = vec![bf16::ZERO; numbers.len()];
        round_to(&numbers, &mut found);
        for (number, found) in numbers.iter().zip(&found) {
            prop_assert_eq!(found.to_bits(), bf16::from_f32(*number).to_bits(), "{}", number);
        }
        let mut wide = vec![0.0; found.len()];
        widen(&found, &mut wide);
        for (found, wide) in found.iter().zip(&wide) {
            prop_assert_eq!(found.to_f32().to_bits(), wide.to_bits());
        }
    }
}

#[test]
fn hard_cases_are_rounded_to_even_and_nothing_becomes_a_number() {
    let cases = [
        (0x3f80_8000, 0x3f80),
        (0x3f81_8000, 0x3f82),
        (0x3f80_8001, 0x3f81),
        (0x7f7f_ffff, 0x7f80),
        (0x7f80_0000, 0x7f80),
        (0xff80_0000, 0xff80),
        (0x8000_0000, 0x8000),
        (0x0000_8001, 0x0001),
    ];
    for (from, to) in cases {
        let mut found = [bf16::ZERO];
        round_to(&[f32::from_bits(from)], &mut found);
        assert_eq!(found[0].to_bits(), to, "{from:x}");
    }
    for none in [0x7f80_0001, 0x7fff_ffff, 0xffc0_0000, 0xffff_ffff] {
        let mut found = [bf16::ZERO];
        round_to(&[f32::from_bits(none)], &mut found);
        assert!(found[0].is_nan(), "{none:x}");
    }
}

#[test]
fn what_is_no_number_stays_visible_in_products() {
    for kernel in kernels() {
        let mut a = vec![1.0; 20 * 40];
        a[3 * 40 + 7] = f32::NAN;
        a[5 * 40 + 8] = f32::INFINITY;
        let b = vec![1.0; 40 * 20];
        let mut c = vec![0.0; 20 * 20];
        let a = Matrix::rows(Slice::F32(&a), 40);
        let b = Matrix::rows(Slice::F32(&b), 40).transposed();
        let output = Output::rows(SliceMut::F32(&mut c), 20);
        let sizes = GemmShape { m: 20, n: 20, k: 40 };
        product(kernel, sizes, a, b, Epilogue::Store, output, &mut Scratch::default());
        for (row, c) in c.chunks(20).enumerate() {
            let right = |x: &f32| match row {
                3 => x.is_nan(),
                5 => *x == f32::INFINITY,
                _ => *x == 40.0,
            };
            assert!(c.iter().all(right), "{}: row {row} is {c:?}", kernel.name());
        }
    }
}

#[test]
fn the_best_kernel_is_available_and_has_a_name() {
    let best = Kernel::best();
    assert!(best.is_available());
    assert_eq!(kernels().next(), Some(best));
    let mut names: Vec<_> = kernels().map(Kernel::name).collect();
    names.dedup();
    assert_eq!(names.len(), kernels().count());
}

#[test]
#[should_panic(expected = "32..50 by 3 is no part of 40 by 4")]
fn rows_that_are_not_packed_are_refused() {
    let mut packed = Packed::default();
    packed.fill(Kernel::Portable, 40, 4, Matrix::rows(Slice::F32(&[0.0; 160]), 4));
    packed.part(32..50, 3);
}

#[test]
#[should_panic(expected = "a step of rows begins before 16..32")]
fn rows_within_a_step_are_refused() {
    let mut packed = Packed::default();
    packed.fill(Kernel::Portable, 40, 4, Matrix::rows(Slice::F32(&[0.0; 160]), 4));
    packed.part(16..32, 4);
}

#[test]
#[should_panic(expected = "11 numbers do not hold a matrix of 3 by 4 with strides [4, 1]")]
fn an_operand_that_is_too_short_is_refused() {
    let a = Matrix::rows(Slice::F32(&[0.0; 11]), 4);
    let b = Matrix::rows(Slice::F32(&[0.0; 8]), 2);
    let mut c = [0.0; 6];
    let output = Output::rows(SliceMut::F32(&mut c), 2);
    let sizes = GemmShape { m: 3, n: 2, k: 4 };
    product(Kernel::Portable, sizes, a, b, Epilogue::Store, output, &mut Scratch::default());
}
