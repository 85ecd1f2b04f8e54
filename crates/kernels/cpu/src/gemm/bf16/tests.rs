//! Every kernel that this CPU supports, against sums in f64.

use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::gemm::{Epilogue, GemmShape};
use regatta_device::random::{key, uniform};

fn kernels() -> impl Iterator<Item = Kernel> {
    let all = Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    #[cfg(target_arch = "x86_64")]
    return all.chain([Kernel::AmxEmulated]);
    #[cfg(not(target_arch = "x86_64"))]
    return all;
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

/// Values around 0.
fn random_values(key: u64, len: usize) -> Vec<f32> {
    (0..len as u64).map(|i| (uniform(key, i) - 0.5) as f32).collect()
}

/// A strided operand, with elements in between that must not matter.
#[derive(Debug, Clone)]
struct Operand {
    values: Vec<f32>,
    bf16: Option<Vec<bf16>>,
    strides: [usize; 2],
}

impl Operand {
    fn new(seed: u64, [rows, columns]: [usize; 2], layout: OperandLayout) -> Self {
        let strides = match layout.order {
            0 => [columns + layout.gap, 1],
            1 => [1, rows + layout.gap],
            _ => [2 * (columns + layout.gap), 2],
        };
        let len = rows * strides[0] + columns * strides[1];
        let values = random_values(key(seed, &[3]), len);
        let bf16 = layout.is_bf16.then(|| values.iter().map(|x| bf16::from_f32(*x)).collect());
        Self { values, bf16, strides }
    }

    fn rows_from(&self, row: usize) -> MatrixSlice<'_> {
        self.elements_from(row * self.strides[0])
    }

    fn columns_from(&self, first: usize) -> MatrixSlice<'_> {
        self.elements_from(first * self.strides[1])
    }

    fn elements_from(&self, first: usize) -> MatrixSlice<'_> {
        let elements = match &self.bf16 {
            Some(bf16) => Slice::Bf16(&bf16[first..]),
            None => Slice::F32(&self.values[first..]),
        };
        MatrixSlice { elements, row_stride: self.strides[0], column_stride: self.strides[1] }
    }

    fn rounded(&self, row: usize, column: usize) -> f64 {
        bf16::from_f32(self.values[row * self.strides[0] + column * self.strides[1]]).to_f64()
    }
}

#[derive(Debug, Clone, Copy)]
struct OperandLayout {
    is_bf16: bool,
    order: usize,
    gap: usize,
}

fn operand_layout() -> impl Strategy<Value = OperandLayout> {
    let fields = (any::<bool>(), 0..3_usize, 0..3_usize);
    fields.prop_map(|(is_bf16, order, gap)| OperandLayout { is_bf16, order, gap })
}

fn gemm_shape() -> impl Strategy<Value = GemmShape> {
    // Full tiles are read in place.
    let full = || (1..4_usize).prop_map(|tiles| 32 * tiles);
    let size = || prop_oneof![0..5_usize, 5..80_usize, full()];
    let depth = prop_oneof![
        0..5_usize,
        5..100_usize,
        full(),
        500..530_usize,
        544..545_usize,
        1020..1030_usize
    ];
    (size(), size(), depth).prop_map(|(m, n, k)| GemmShape { m, n, k })
}

#[derive(Debug, Clone, Copy)]
enum EpilogueKind {
    Store,
    Bias,
    Accumulate,
}

#[derive(Debug, Clone)]
struct Case {
    shape: GemmShape,
    a: Operand,
    b: Operand,
    bias: Vec<f32>,
    epilogue: EpilogueKind,
    initial: Vec<f32>,
    stride: usize,
}

impl Case {
    fn new(
        (shape, layouts, epilogue, gap): (GemmShape, [OperandLayout; 2], EpilogueKind, usize),
    ) -> Self {
        let GemmShape { m, n, k } = shape;
        let stride = n + gap;
        let (a, b) = (Operand::new(1, [m, k], layouts[0]), Operand::new(2, [k, n], layouts[1]));
        let bias = random_values(key(5, &[1]), n);
        let initial = random_values(key(5, &[2]), m * stride);
        Self { shape, a, b, bias, epilogue, initial, stride }
    }

    fn epilogue(&self) -> Epilogue<'_> {
        match self.epilogue {
            EpilogueKind::Store => Epilogue::Store,
            EpilogueKind::Bias => Epilogue::Bias(&self.bias),
            EpilogueKind::Accumulate => Epilogue::Accumulate,
        }
    }

    fn gemm(&self, kernel: Kernel, scratch: &mut (PackedB, GemmScratch)) -> Vec<f32> {
        let mut c = self.initial.clone();
        let output = MatrixSliceMut::row_major(&mut c[..], self.stride);
        let (a, b) = (self.a.rows_from(0), self.b.rows_from(0));
        gemm(kernel, self.shape, a, b, self.epilogue(), output, scratch);
        c
    }

    /// Exact element `i` of the output, and the sum of the magnitudes of its terms.
    fn exact(&self, i: usize) -> (f64, f64) {
        let (row, column) = (i / self.stride, i % self.stride);
        let initial = f64::from(self.initial[i]);
        if column >= self.shape.n {
            return (initial, 0.0);
        }
        let start = match self.epilogue {
            EpilogueKind::Store => 0.0,
            EpilogueKind::Bias => f64::from(self.bias[column]),
            EpilogueKind::Accumulate => initial,
        };
        (0..self.shape.k).fold((start, start.abs()), |(sum, size), i| {
            let term = self.a.rounded(row, i) * self.b.rounded(i, column);
            (sum + term, size + term.abs())
        })
    }

    /// Sums are rounded at most once per addition, products at most once, and the output by `rounding`.
    fn assert_close(&self, kernel: Kernel, c: impl Iterator<Item = f64>, rounding: f64) {
        for (i, found) in c.enumerate() {
            let (exact, size) = self.exact(i);
            let tolerance = (self.shape.k as f64 + 4.0) * size * f64::from(f32::EPSILON);
            let close = (found - exact).abs() <= exact.abs() * rounding + tolerance;
            assert!(close, "{}: element {i} is {found}, expected {exact}", kernel.name());
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let epilogue = prop_oneof![
        Just(EpilogueKind::Store),
        Just(EpilogueKind::Bias),
        Just(EpilogueKind::Accumulate)
    ];
    (gemm_shape(), [operand_layout(), operand_layout()], epilogue, 0..4_usize).prop_map(Case::new)
}

/// Fewer in debug builds, where emulated tiles are slow.
const CASES: u32 = if cfg!(debug_assertions) { 20 } else { 200 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn gemm_matches_f64(case in case()) {
        // Scratch of an earlier GEMM must not matter.
        let mut scratch = Default::default();
        for kernel in kernels() {
            let c = case.gemm(kernel, &mut scratch);
            case.assert_close(kernel, c.into_iter().map(f64::from), 0.0);
        }
    }

    #[test]
    fn bf16_output_is_the_rounded_f32_output(case in case()) {
        let mut scratch = Default::default();
        for kernel in kernels() {
            let mut c: Vec<bf16> = case.initial.iter().map(|x| bf16::from_f32(*x)).collect();
            let rounded = Case { initial: c.iter().map(|x| x.to_f32()).collect(), ..case.clone() };
            let output = MatrixSliceMut::row_major(SliceMut::Bf16(&mut c), case.stride);
            let (a, b) = (case.a.rows_from(0), case.b.rows_from(0));
            gemm(kernel, case.shape, a, b, case.epilogue(), output, &mut scratch);
            rounded.assert_close(kernel, c.into_iter().map(f64::from), 1.001 / 256.0);
        }
    }

    #[test]
    fn packing_and_splitting_rows_do_not_change_bits(case in case(), split in 0.0..1.0_f64) {
        let GemmShape { m, n, k } = case.shape;
        let split = (split * m as f64) as usize;
        let (mut scratch, mut packed) = <((PackedB, GemmScratch), PackedB)>::default();
        for kernel in kernels() {
            let expected = case.gemm(kernel, &mut scratch);
            packed.pack(kernel, k, n, case.b.rows_from(0));
            let mut found = case.initial.clone();
            let (upper, lower) = found.split_at_mut(split * case.stride);
            for (c, rows) in [(upper, 0..split), (lower, split..m)] {
                let output = MatrixSliceMut::row_major(c, case.stride);
                let (a, epilogue) = (case.a.rows_from(rows.start), case.epilogue());
                gemm_packed(rows.len(), a, (&packed).into(), epilogue, output, &mut scratch.1);
            }
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&expected), bits(&found), "{}", kernel.name());
        }
    }

    /// Rows and columns outside the slice do not matter.
    #[test]
    fn slice_of_packed_b_equals_the_packed_slice(
        case in case(), fractions in [0.0..1.0_f64, 0.0..1.0, 0.0..1.0],
    ) {
        let GemmShape { m, n, k } = case.shape;
        let part = |of: usize, fraction: f64| (fraction * (of + 1) as f64) as usize;
        let (first, columns) = (part(k / 32, fractions[0]) * 32, part(n, fractions[1]));
        let rows = first..first + part(k - first, fractions[2]);
        let (mut scratch, mut packed) = (GemmScratch::default(), PackedB::default());
        for kernel in kernels() {
            let mut multiply = |a: MatrixSlice<'_>, b: PackedBView<'_>| {
                let mut c = case.initial.clone();
                let output = MatrixSliceMut::row_major(&mut c[..], case.stride);
                gemm_packed(m, a, b, case.epilogue(), output, &mut scratch);
                c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            let a = case.a.columns_from(rows.start);
            packed.pack(kernel, rows.len(), columns, case.b.rows_from(rows.start));
            let expected = multiply(a, (&packed).into());
            packed.pack(kernel, k, n, case.b.rows_from(0));
            let found = multiply(a, packed.slice(rows.clone(), columns));
            prop_assert_eq!(expected, found, "{}: {:?} by {}", kernel.name(), rows, columns);
        }
    }

    #[test]
    fn rounding_matches_the_half_crate(bits: u32) {
        let value = f32::from_bits(bits);
        prop_assert_eq!(round_to_bf16(value), bf16::from_f32(value).to_bits(), "{}", value);
    }
}

#[test]
fn rounding_is_to_nearest_even_and_keeps_nan() {
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
        assert_eq!(round_to_bf16(f32::from_bits(from)), to, "{from:x}");
    }
    for nan in [0x7f80_0001, 0x7fff_ffff, 0xffc0_0000, 0xffff_ffff] {
        assert!(bf16::from_bits(round_to_bf16(f32::from_bits(nan))).is_nan(), "{nan:x}");
    }
}

#[test]
fn nan_and_infinity_propagate() {
    for kernel in kernels() {
        let mut a = vec![1.0; 20 * 40];
        a[3 * 40 + 7] = f32::NAN;
        a[5 * 40 + 8] = f32::INFINITY;
        let b = vec![1.0; 40 * 20];
        let mut c = vec![0.0; 20 * 20];
        let a = MatrixSlice::row_major(&a[..], 40);
        let b = MatrixSlice::row_major(&b[..], 40).transposed();
        let output = MatrixSliceMut::row_major(&mut c[..], 20);
        let shape = GemmShape { m: 20, n: 20, k: 40 };
        gemm(kernel, shape, a, b, Epilogue::Store, output, &mut Default::default());
        for (row, c) in c.chunks(20).enumerate() {
            let is_expected = |x: &f32| match row {
                3 => x.is_nan(),
                5 => *x == f32::INFINITY,
                _ => *x == 40.0,
            };
            assert!(c.iter().all(is_expected), "{}: row {row} is {c:?}", kernel.name());
        }
    }
}

#[test]
fn best_kernel_is_the_first_available_one() {
    let best = Kernel::best();
    assert!(best.is_available());
    assert_eq!(kernels().next(), Some(best));
    let mut names: Vec<_> = kernels().map(Kernel::name).collect();
    names.dedup();
    assert_eq!(names.len(), kernels().count());
}

/// 40 by 4 zeros.
fn packed_zeros() -> PackedB {
    let mut packed = PackedB::default();
    packed.pack(Kernel::Portable, 40, 4, MatrixSlice::row_major(&[0.0; 160][..], 4));
    packed
}

#[test]
#[should_panic(expected = "rows 32..50 by 3 are out of bounds for 40 by 4")]
fn slice_out_of_bounds_panics() {
    packed_zeros().slice(32..50, 3);
}

#[test]
#[should_panic(expected = "the first of rows 16..32 is not a multiple of 32")]
fn unaligned_slice_panics() {
    packed_zeros().slice(16..32, 4);
}

#[test]
#[should_panic(expected = "11 elements are too few for a 3 by 4 matrix with strides [4, 1]")]
fn short_operand_panics() {
    let a = MatrixSlice::row_major(&[0.0; 11][..], 4);
    let b = MatrixSlice::row_major(&[0.0; 8][..], 2);
    let mut c = [0.0; 6];
    let output = MatrixSliceMut::row_major(&mut c[..], 2);
    let shape = GemmShape { m: 3, n: 2, k: 4 };
    gemm(Kernel::Portable, shape, a, b, Epilogue::Store, output, &mut Default::default());
}
