//! Layouts, transposes, accumulation and epilogues, against the reference device.

use half::bf16;
use regatta_comm::gpu_runtime::Vendor;
use regatta_comm::{DType, Element};
use regatta_device::LinearOps;
use regatta_device::ops::{
    LinearArgs, LinearBackwardInputArgs, LinearBackwardWeightArgs, LinearShape,
};
use regatta_device::reference::Reference;
use regatta_device::tensor::{View, ViewMut};

use super::super::{Epilogue, Gemm, GemmArgs};
use super::Fake;
use crate::Ptr;
use crate::fake::blas::candidate;
use crate::fake::gemm::gelu;

const SHAPE: LinearShape = LinearShape { rows: 5, inputs: 3, outputs: 8 };

fn values(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|at| ((at * 7 + seed * 5) % 17) as f32 / 8.0 - 1.0).collect()
}

fn to_bf16(values: &[f32]) -> Vec<bf16> {
    values.iter().copied().map(bf16::from_f32).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

fn ptr<E: Element>(values: &[E]) -> Ptr {
    Ptr(values.as_ptr() as u64)
}

fn assert_close(actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (actual, expected) in actual.iter().zip(expected) {
        let difference = (f64::from(*actual) - expected).abs();
        assert!(difference <= tolerance * (1.0 + expected.abs()), "{actual} is not {expected}");
    }
}

fn fakes() -> impl Iterator<Item = Fake> {
    [Vendor::Nvidia, Vendor::Amd].into_iter().map(|vendor| Fake::new(vendor, &[candidate(1, 1.0)]))
}

/// `x`, the weight, the bias and an output.
fn tensors() -> [Vec<f32>; 4] {
    let LinearShape { rows, inputs, outputs } = SHAPE;
    [rows * inputs, outputs * inputs, outputs, rows * outputs].map(|len| values(len, len))
}

#[test]
fn forward_adds_the_bias() {
    let [x, weight, bias, _] = tensors();
    let mut expected = vec![0.0f64; SHAPE.rows * SHAPE.outputs];
    let (wide_x, wide_weight, wide_bias) = (wide(&x), wide(&weight), wide(&bias));
    Reference.linear(LinearArgs {
        shape: SHAPE,
        x: View::from_slice(&wide_x),
        weight: View::from_slice(&wide_weight),
        bias: Some(View::from_slice(&wide_bias)),
        y: ViewMut::from_slice(&mut expected),
    });
    for fake in fakes() {
        let mut y = vec![f32::NAN; expected.len()];
        let gemm = Gemm::forward(SHAPE, DType::F32, DType::F32);
        let args = GemmArgs::new(ptr(&weight), ptr(&x), Ptr(y.as_mut_ptr() as u64));
        let args = GemmArgs { bias: ptr(&bias), ..args };
        fake.run(gemm.with_epilogue(Epilogue::Bias(DType::F32)), &args).unwrap();
        assert_close(&y, &expected, 1e-6);
    }
}

#[test]
fn gelu_saves_its_input() {
    let [x, weight, bias, _] = tensors().map(|values| to_bf16(&values));
    for fake in fakes() {
        let len = SHAPE.rows * SHAPE.outputs;
        let (mut y, mut saved, mut plain) =
            (vec![bf16::NAN; len], vec![bf16::NAN; len], vec![f32::NAN; len]);
        let gemm = Gemm::forward(SHAPE, DType::Bf16, DType::F32);
        let args = GemmArgs::new(ptr(&weight), ptr(&x), Ptr(plain.as_mut_ptr() as u64));
        let args = GemmArgs { bias: ptr(&bias), ..args };
        fake.run(gemm.with_epilogue(Epilogue::Bias(DType::Bf16)), &args).unwrap();
        let gemm = Gemm::forward(SHAPE, DType::Bf16, DType::Bf16);
        let d = Ptr(y.as_mut_ptr() as u64);
        let args = GemmArgs { d, aux: Ptr(saved.as_mut_ptr() as u64), ..args };
        fake.run(gemm.with_epilogue(Epilogue::GeluAuxBias(DType::Bf16)), &args).unwrap();
        let floats = |values: &[bf16]| values.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
        assert_close(&floats(&saved), &wide(&plain), 0.01);
        let activated: Vec<f64> = plain.iter().map(|x| f64::from(gelu(*x))).collect();
        assert_close(&floats(&y), &activated, 0.01);
    }
}

#[test]
fn input_gradients_are_stored_or_added() {
    let [x, weight, _, dy] = tensors();
    for (accumulate, fake) in
        [false, true].into_iter().flat_map(|add| fakes().map(move |f| (add, f)))
    {
        let (mut dx, mut expected) = (x.clone(), wide(&x));
        let (wide_dy, wide_weight) = (wide(&dy), wide(&weight));
        Reference.linear_backward_input(LinearBackwardInputArgs {
            shape: SHAPE,
            dy: View::from_slice(&wide_dy),
            weight: View::from_slice(&wide_weight),
            dx: ViewMut::from_slice(&mut expected),
            accumulate,
        });
        let gemm = Gemm::backward_input(SHAPE, DType::F32, DType::F32).accumulate(accumulate);
        let args = GemmArgs::new(ptr(&weight), ptr(&dy), Ptr(dx.as_mut_ptr() as u64));
        fake.run(gemm, &args).unwrap();
        assert_close(&dx, &expected, 1e-6);
    }
}

#[test]
fn weight_gradients_of_bf16_are_added_in_f32() {
    let [x, weight, _, dy] = tensors();
    for fake in fakes() {
        let (mut dweight, mut expected) = (weight.clone(), wide(&weight));
        let (wide_x, wide_dy) = (wide(&x), wide(&dy));
        Reference.linear_backward_weight(LinearBackwardWeightArgs {
            shape: SHAPE,
            x: View::from_slice(&wide_x),
            dy: View::from_slice(&wide_dy),
            dweight: ViewMut::from_slice(&mut expected),
            dbias: None,
        });
        let (x, dy) = (to_bf16(&x), to_bf16(&dy));
        let gemm = Gemm::backward_weight(SHAPE, DType::Bf16, DType::F32);
        let args = GemmArgs::new(ptr(&x), ptr(&dy), Ptr(dweight.as_mut_ptr() as u64));
        fake.run(gemm, &args).unwrap();
        assert_close(&dweight, &expected, 1e-6);
    }
}
