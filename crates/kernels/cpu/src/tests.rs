//! Every operation against the f64 reference: on all instruction sets, in both precisions, with sizes that
//! are no multiple of the vector width, on one to three threads.

mod attention;
mod elementwise;
mod embedding_loss;
mod linear_norm;

use regatta_comm::DType;

use crate::*;
use regatta_device::ops::CrossEntropyArgs;
use regatta_device::random::{key, normal};
use regatta_device::reference::Reference;
use regatta_device::tensor::{Tensor, ViewMut};
use regatta_device::{Device, ElementwiseOps, LossOps};
use regatta_device_conformance::host_copy::{read_scalar, scalar, tokens};

/// Dtype and length of a tensor.
#[derive(Clone, Copy)]
enum TensorSpec {
    Master(usize),
    Activation(usize),
}
use TensorSpec::{Activation as Act, Master};

fn devices() -> Vec<Cpu> {
    let mut all = Vec::new();
    for isa in Isa::all() {
        for precision in [Precision::F32, Precision::Bf16] {
            all.extend([1, 3].map(|threads| Cpu::with_isa(threads, precision, isa)));
        }
    }
    all.push(Cpu::new(2, Precision::F32));
    #[cfg(target_arch = "x86_64")]
    all.extend([1, 3].map(|threads| {
        let bf16_gemm = Bf16Gemm::with_kernel(gemm::bf16::Kernel::AmxEmulated);
        Cpu { bf16_gemm, ..Cpu::new(threads, Precision::Bf16) }
    }));
    all
}

/// Random values that are exact in bf16.
fn random_values(seed: u64, len: usize) -> Vec<f32> {
    let value = |i| half::bf16::from_f64(normal(key(seed, &[]), i)).to_f32();
    (0..len as u64).map(value).collect()
}

fn tensors(device: &dyn Device, specs: &[TensorSpec]) -> Vec<Tensor> {
    let tensor = |(seed, spec): (u64, &TensorSpec)| {
        let mut tensor = match spec {
            Master(elements) => device.zeros_master(*elements),
            Act(elements) => device.zeros_activation(*elements),
        };
        device.copy_from_host(&random_values(seed, tensor.len()), tensor.view_mut());
        tensor
    };
    (0..).zip(specs).map(tensor).collect()
}

fn to_host(device: &dyn Device, tensors: &[Tensor]) -> Vec<Vec<f32>> {
    let copy = |tensor: &Tensor| {
        let mut values = vec![0.0; tensor.len()];
        device.copy_to_host(tensor.view(), &mut values);
        values
    };
    tensors.iter().map(copy).collect()
}

/// Runs an operation on the reference and on all CPU devices, and compares all tensors and the resulting
/// scalar. A second run on a device must give the same bits.
#[track_caller]
fn check_result(
    what: &str,
    specs: &[TensorSpec],
    operation: impl Fn(&dyn Device, &mut [Tensor]) -> f64,
) {
    let reference = Reference::new();
    let mut expected = tensors(&reference, specs);
    let expected_result = operation(&reference, &mut expected);
    let expected = to_host(&reference, &expected);
    for cpu in devices() {
        let run = || {
            let mut found = tensors(&cpu, specs);
            let result = operation(&cpu, &mut found);
            (to_host(&cpu, &found), result)
        };
        let (found, result) = run();
        let (again, result_again) = run();
        let reproducible = again == found && result_again.to_bits() == result.to_bits();
        assert!(reproducible, "{what}: not reproducible");
        let tolerance = match cpu.precision {
            Precision::F32 => 2e-5,
            Precision::Bf16 => 3e-2,
        };
        let case = format!("{what} on {}", cpu.describe());
        let error = (result - expected_result).abs();
        let max = expected_result.abs().max(1.0);
        assert!(error <= tolerance * max, "{case}: {result} {expected_result}");
        for (tensor, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // Errors are relative to the largest element of a tensor.
            let max = expected.iter().fold(1.0f32, |max, x| max.max(x.abs()));
            for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                let error = (found - expected).abs();
                assert!(
                    f64::from(error) <= tolerance * f64::from(max) && found.is_finite(),
                    "{case}: element {at} of tensor {tensor} is {found}, expected {expected}"
                );
            }
        }
    }
}

/// As [`check_result`], for an operation without a result.
#[track_caller]
fn check_reference<const N: usize>(
    what: &str,
    specs: [TensorSpec; N],
    operation: impl Fn(&dyn Device, [ViewMut<'_>; N]),
) {
    check_result(what, &specs, |device, tensors| {
        let tensors: &mut [Tensor; N] = tensors.try_into().unwrap();
        operation(device, tensors.each_mut().map(Tensor::view_mut));
        0.0
    });
}

#[test]
fn nan_propagates() {
    let cpu = Cpu::new(1, Precision::F32);
    let mut logits = Tensor::zeros(40, DType::F32);
    logits.view_mut().as_slice::<f32>()[17] = f32::NAN;
    let [mut loss, mut sum] = [(); 2].map(|()| scalar(&cpu, 0.0));
    cpu.cross_entropy(CrossEntropyArgs {
        targets: tokens(&cpu, &[0, 3]).view(),
        vocab: 20,
        logits: logits.view_mut(),
        grad_scale: None,
        loss: loss.view_mut(),
    });
    cpu.sum_of_squares(logits.view(), sum.view_mut());
    assert!(read_scalar(&cpu, &loss).is_nan() && read_scalar(&cpu, &sum).is_nan());
}

#[test]
#[should_panic(expected = "tensor lengths differ")]
fn different_lengths_panic() {
    let cpu = Cpu::new(2, Precision::F32);
    cpu.add_assign(Tensor::zeros(3, DType::F32).view(), Tensor::zeros(4, DType::F32).view_mut());
}

#[test]
fn describe_names_threads_precision_and_kernel() {
    let text = Cpu::with_isa(2, Precision::Bf16, Isa::PORTABLE).describe();
    assert_eq!(text, "2 threads, bf16 on portable");
    assert_eq!(Cpu::with_isa(2, Precision::F32, Isa::PORTABLE).gemm_kernel(), "portable");
    assert_eq!(serde_json::to_string(&Precision::Bf16).unwrap(), "\"bf16\"");
}
