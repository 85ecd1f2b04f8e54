//! The CPU and the reference device pass the checks that all devices share.

use regatta_device::Device;
use regatta_device::precision::Precision;
use regatta_device::reference::Reference;
use regatta_device_conformance::{Suite, Tolerances, run_checks, run_suite};
use regatta_kernels_cpu::Cpu;

/// Random cases of each operation.
const CASES: u32 = 24;

fn reference() -> Box<dyn Device> {
    Box::new(Reference)
}

fn cpu(threads: usize, precision: Precision) -> Box<dyn Device> {
    Box::new(Cpu::new(threads, precision))
}

#[test]
fn gradients_agree_with_finite_differences() {
    let tolerances = Tolerances::F64;
    let suite = Suite { make_device: &reference, tolerances, cases: 40, max: 6, seed: 1 };
    run_checks(suite.finite_differences()).unwrap();
}

#[test]
fn reference_agrees_with_formulas() {
    let run = |names: &[&str], tolerance: f64| {
        let tolerances = Tolerances { master: tolerance, activation: tolerance };
        let suite = Suite { make_device: &reference, tolerances, cases: 256, max: 20, seed: 2 };
        let is_named = |name: &str| names.iter().any(|wanted| name == format!("random {wanted}"));
        run_checks(suite.random_formulas().into_iter().filter(|check| is_named(&check.name)))
            .unwrap();
    };
    run(&["decode_attention"], 1e-14);
    run(&["attention by chunks", "attention by heads"], 1e-12);
    run(&["vocab-parallel loss", "column copies", "elementwise", "adamw", "sgd"], 1e-13);
    run(&["NaN loss", "NaN sum", "clip_coefficient"], 1e-15);
}

#[test]
fn cpu_conforms_in_f32() {
    run_suite(&|| cpu(2, Precision::F32), Tolerances::F32, CASES, 40, 3).unwrap();
}

#[test]
fn cpu_conforms_in_bf16() {
    run_suite(&|| cpu(2, Precision::Bf16), Tolerances::BF16, CASES, 40, 4).unwrap();
}

#[test]
fn one_thread_conforms() {
    for (precision, tolerances) in
        [(Precision::F32, Tolerances::F32), (Precision::Bf16, Tolerances::BF16)]
    {
        let make_device = || cpu(1, precision);
        let suite =
            Suite { make_device: &make_device, tolerances, cases: 4 * CASES, max: 40, seed: 5 };
        run_checks([suite.random_operations(), suite.random_formulas()].into_iter().flatten())
            .unwrap();
    }
}
