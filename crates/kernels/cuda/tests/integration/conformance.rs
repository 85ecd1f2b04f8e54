//! The device agrees with the f64 reference, on a real GPU. Skipped with a message without one.
//! `REGATTA_CONFORMANCE=attention` runs only the checks with this word in their name.

use std::time::{Duration, Instant};

use regatta_comm::gpu_runtime::Vendor;
use regatta_device::DeviceMemory;
use regatta_device::ops::{Device, Fp8};
use regatta_device::precision::Precision;
use regatta_device_conformance::{
    Check, PinnedBlocks, Suite, Tolerances, check_pinned_blocks, run_checks,
};
use regatta_kernels_cuda::{CudaDevice, device_count};

fn check(precision: Precision, tolerances: Tolerances, deterministic: bool) {
    if device_count(Vendor::Nvidia) == 0 {
        return eprintln!("skipped: no NVIDIA GPU");
    }
    let make_device = || -> Box<dyn Device> {
        let device = CudaDevice::open(0, precision).unwrap();
        Box::new(if deterministic { device.deterministic_results() } else { device })
    };
    let suite = Suite { make_device: &make_device, tolerances, cases: 24, max: 40, seed: 1 };
    run(suite.checks(), precision.name());
}

fn run(checks: Vec<Check<'_>>, what: &str) {
    let wanted = std::env::var("REGATTA_CONFORMANCE").unwrap_or_default();
    let checks = checks.into_iter().filter(|check| check.name.contains(&wanted));
    if let Err(failures) = run_checks(checks) {
        panic!("{} of {what}:\n{failures}", failures.lines().count());
    }
}

#[test]
fn fp8_gemms_match_the_reference() {
    if device_count(Vendor::Nvidia) == 0 {
        return eprintln!("skipped: no NVIDIA GPU");
    }
    let make_device = || -> Box<dyn Device> {
        Box::new(CudaDevice::open(0, Precision::Bf16).unwrap().with_fp8(Fp8::All).unwrap())
    };
    let tolerances = Tolerances::BF16;
    let suite = Suite { make_device: &make_device, tolerances, cases: 16, max: 40, seed: 1 };
    run(suite.fp8(), "fp8");
}

#[test]
fn dtypes_of_the_residual_stream_and_its_gradient_match_the_reference() {
    if device_count(Vendor::Nvidia) == 0 {
        return eprintln!("skipped: no NVIDIA GPU");
    }
    let (f32, bf16) = (Precision::F32, Precision::Bf16);
    for (residual, gradient) in [(f32, f32), (bf16, bf16), (bf16, f32)] {
        let make_device = || -> Box<dyn Device> {
            let device = CudaDevice::open(0, bf16).unwrap().with_residual(residual);
            Box::new(device.with_residual_gradient(gradient))
        };
        let tolerances = Tolerances::BF16;
        let suite = Suite { make_device: &make_device, tolerances, cases: 24, max: 40, seed: 1 };
        let is_residual =
            |check: &Check<'_>| ["norm", "embedding"].iter().any(|name| check.name.contains(name));
        let checks = suite.checks().into_iter().filter(is_residual).collect();
        run(checks, &format!("a residual stream in {residual:?}, its gradient in {gradient:?}"));
    }
}

#[test]
fn gpu_matches_the_reference_in_f32() {
    check(Precision::F32, Tolerances::F32, false);
}

#[test]
fn gpu_matches_the_reference_in_bf16() {
    check(Precision::Bf16, Tolerances::BF16, false);
}

#[test]
fn gpu_matches_the_reference_with_deterministic_kernels() {
    check(Precision::Bf16, Tolerances::BF16, true);
}

/// Blocks of 64 MiB, so that copies and kernels overlap.
#[test]
fn large_blocks_are_streamed_through_the_gpu() {
    if device_count(Vendor::Nvidia) == 0 {
        return eprintln!("skipped: no NVIDIA GPU");
    }
    let device = CudaDevice::open(0, Precision::F32).unwrap();
    check_pinned_blocks(&device, PinnedBlocks { blocks: 6, len: 16 << 20 });
    device.synchronize().unwrap();
}

/// Prints the bandwidth of pinned memory in each direction and in both at once.
#[test]
fn copies_in_both_directions_run_at_the_same_time() {
    if device_count(Vendor::Nvidia) == 0 {
        return eprintln!("skipped: no NVIDIA GPU");
    }
    const LEN: usize = 64 << 20;
    let device = CudaDevice::open(0, Precision::F32).unwrap();
    let dtype = device.master_dtype();
    let (from, mut to) = (device.zeros_master(LEN), device.zeros_master(LEN));
    let [mut host_from, mut host_to] = [(); 2].map(|()| device.zeros_pinned(LEN, dtype).unwrap());
    let mut timed = |loads: bool, stores: bool| -> Duration {
        device.synchronize().unwrap();
        let (start, after) = (Instant::now(), device.record_event());
        for _ in 0..4 {
            if loads {
                device.load_async(&mut host_from, to.view_mut(), after.as_ref());
            }
            if stores {
                device.store_async(from.view(), &mut host_to, after.as_ref());
            }
        }
        host_from.view().unwrap();
        host_to.view().unwrap();
        start.elapsed()
    };
    timed(true, true);
    for (name, loads, stores) in
        [("to the GPU", true, false), ("to the host", false, true), ("both", true, true)]
    {
        let directions = f64::from(u8::from(loads) + u8::from(stores));
        let bytes = 4.0 * directions * (LEN * dtype.size()) as f64;
        let seconds = timed(loads, stores).as_secs_f64();
        eprintln!("pinned copies, {name}: {:.1} GB/s", bytes / seconds / 1e9);
    }
}
