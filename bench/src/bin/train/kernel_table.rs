//! The time of each operation of a training step.

use anyhow::Result;
use regatta_device::ops::KernelTime;
use regatta_device::precision::Precision;
use regatta_train::parallel::ProcessGroups;

use crate::Options;
use crate::preset::Preset;
use crate::worker::{BenchTrainer, WorkerArgs};

pub fn print(preset: Preset, options: &Options, cpus: &[usize]) -> Result<()> {
    println!("{}", preset.describe());
    for threads in options.threads.iter().filter(|threads| **threads <= cpus.len()) {
        for precision in options.precisions.iter().copied() {
            print_case(preset, precision, &cpus[..*threads])?;
        }
    }
    Ok(())
}

fn print_case(preset: Preset, precision: Precision, cpus: &[usize]) -> Result<()> {
    let args = WorkerArgs::single(preset, precision, preset.batch, cpus);
    let mut trainer = BenchTrainer::new(&args, ProcessGroups::single_rank())?;
    trainer.run_steps(2)?;
    trainer.engine.device_model.device.start_kernel_times();
    let steps = trainer.run_steps(preset.steps)?;
    let mut kernels = trainer.engine.device_model.device.take_kernel_times();
    kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let count = steps.len() as f64;
    let step: f64 = steps.iter().map(|(step, _)| step.seconds).sum::<f64>() / count;
    let total: f64 = kernels.iter().map(|kernel| kernel.seconds).sum::<f64>() / count;
    let (threads, ms) = (cpus.len(), step * 1e3);
    println!(
        "{threads} threads, {}: {ms:.1} ms/step, operations {:.1} ms",
        precision.name(),
        total * 1e3
    );
    for kernel in kernels {
        print_kernel(&kernel, count, step);
    }
    Ok(())
}

fn print_kernel(kernel: &KernelTime, steps: f64, step_seconds: f64) {
    let (seconds, calls) = (kernel.seconds / steps, kernel.calls as f64 / steps);
    let rate = gemm_flops(&kernel.name).map(|flops| flops * calls / seconds / 1e9);
    let rate = rate.map(|gflops| format!("{gflops:>9.0} GFLOP/s")).unwrap_or_default();
    println!(
        "  {:32}{:>9.2} ms{:>6.1} %{:>7.1} calls{rate}",
        kernel.name,
        seconds * 1e3,
        seconds / step_seconds * 100.0,
        calls
    );
}

/// FLOPs of a GEMM, by its name: `gemm MxNxK …`.
fn gemm_flops(name: &str) -> Option<f64> {
    let shape = name.strip_prefix("gemm ")?.split(' ').next()?;
    let sizes = shape.split('x').map(|size| size.parse::<f64>().ok());
    Some(2.0 * sizes.product::<Option<f64>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flops_of_gemms_follow_from_their_names() {
        assert_eq!(gemm_flops("gemm 2x3x5 bf16"), Some(60.0));
        assert_eq!(gemm_flops("adamw"), None);
        assert_eq!(gemm_flops("gemm large"), None);
    }
}
