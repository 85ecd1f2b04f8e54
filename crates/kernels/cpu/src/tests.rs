//! Every operation against the plain one in double precision: on all levels of instructions, in both
//! precisions, with sizes that fit no vector, on one to three threads.

mod attention;
mod elementwise;
mod gemm;
mod tokens;

use crate::*;
use regatta_device::random::{key, normal};
use regatta_device::reference::Reference;

/// A tensor of an operation.
#[derive(Clone, Copy)]
enum Kind {
    /// As parameters are stored.
    Real(usize),
    /// As activations are stored.
    Activation(usize),
}
use Kind::{Activation as Act, Real};

/// Tensors on both devices.
type Tensors<'a> = &'a mut [Tensor];

fn devices() -> Vec<Cpu> {
    let mut all = Vec::new();
    for isa in Isa::all() {
        for precision in [Precision::F32, Precision::Bf16] {
            all.extend([1, 3].map(|threads| Cpu::with_isa(threads, precision, isa)));
        }
    }
    all.push(Cpu::new(2, Precision::F32));
    #[cfg(target_arch = "x86_64")]
    all.extend([1, 3].map(|threads| with_kernel(threads, bf16::Kernel::AmxEmulated)));
    all
}

/// One whose products of brain floats are made of other instructions than the best.
#[cfg(target_arch = "x86_64")]
fn with_kernel(threads: usize, kernel: bf16::Kernel) -> Cpu {
    Cpu { halves: Bf16Gemm::of(kernel), ..Cpu::new(threads, Precision::Bf16) }
}

/// Slice that both formats have.
fn numbers(seed: u64, elements: usize) -> Vec<f32> {
    let number = |i| half::bf16::from_f64(normal(key(seed, &[]), i)).to_f32();
    (0..elements as u64).map(number).collect()
}

fn tensors(device: &dyn Device, kinds: &[Kind]) -> Vec<Tensor> {
    let tensor = |(seed, kind): (u64, &Kind)| {
        let mut tensor = match kind {
            Real(elements) => device.real(*elements),
            Act(elements) => device.activation(*elements),
        };
        device.put(&numbers(seed, tensor.len()), tensor.view_mut());
        tensor
    };
    (0..).zip(kinds).map(tensor).collect()
}

fn fetched(device: &dyn Device, tensors: &[Tensor]) -> Vec<Vec<f32>> {
    let fetch = |tensor: &Tensor| {
        let mut numbers = vec![0.0; tensor.len()];
        device.fetch(tensor.view(), &mut numbers);
        numbers
    };
    tensors.iter().map(fetch).collect()
}

/// Runs an operation on both devices, and compares all tensors and what is returned. Twice here: it
/// must be the same to the last bit.
#[track_caller]
fn same(what: &str, kinds: &[Kind], operation: impl Fn(&dyn Device, Tensors<'_>) -> f64) {
    let reference = Reference::new();
    let mut expected = tensors(&reference, kinds);
    let expected_result = operation(&reference, &mut expected);
    let expected = fetched(&reference, &expected);
    for cpu in devices() {
        let run = || {
            let mut found = tensors(&cpu, kinds);
            let result = operation(&cpu, &mut found);
            (fetched(&cpu, &found), result)
        };
        let (found, result) = run();
        let (again, result_again) = run();
        assert!(again == found && result_again.to_bits() == result.to_bits(), "{what}: differs");
        let error = match cpu.precision {
            Precision::F32 => 2e-5,
            Precision::Bf16 => 3e-2,
        };
        let case = format!("{what} on {}", cpu.describe());
        let off = (result - expected_result).abs();
        assert!(
            off <= error * expected_result.abs().max(1.0),
            "{case}: {result} {expected_result}"
        );
        for (tensor, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // The largest number of a tensor says how exact its sums can be.
            let most = expected.iter().fold(1.0f32, |most, x| most.max(x.abs()));
            for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                let off = (found - expected).abs();
                assert!(
                    f64::from(off) <= error * f64::from(most) && found.is_finite(),
                    "{case}: number {at} of tensor {tensor} is {found}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    let cpu = Cpu::new(1, Precision::F32);
    let mut logits = Tensor::zeroed(40, DType::F32);
    logits.view_mut().host::<f32>()[17] = f32::NAN;
    assert!(cpu.cross_entropy(&[0, 3], logits.view_mut(), None).is_nan());
    assert!(cpu.square_sum(logits.view()).is_nan());
}

#[test]
#[should_panic(expected = "tensors of different lengths")]
fn wrong_lengths_are_refused() {
    let cpu = Cpu::new(2, Precision::F32);
    cpu.add(Tensor::zeroed(3, DType::F32).view(), Tensor::zeroed(4, DType::F32).view_mut());
}

#[test]
fn it_says_what_it_computes_with() {
    let text = Cpu::with_isa(2, Precision::Bf16, Isa::Plain).describe();
    assert_eq!(text, "2 threads, bf16 on portable");
    assert_eq!(Cpu::with_isa(2, Precision::F32, Isa::Plain).kernels(), "plain");
    assert_eq!(serde_json::to_string(&Precision::Bf16).unwrap(), "\"bf16\"");
}
