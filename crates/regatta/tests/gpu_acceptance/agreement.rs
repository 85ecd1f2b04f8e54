//! The GPU trains as CPUs do, and checkpoints move between them.

use serde_json::Value;

use crate::harness::{Harness, Target};
use crate::rows::check_rows;
use crate::support::from_json;
use crate::support::metrics::RunMetrics;
use crate::tolerance::{check_losses, max_loss_error};

/// A learning rate at which the loss decreases steadily, so that rounding errors do not grow.
const MODEL: &str = "num_layers=2 num_heads=2 hidden_size=128 seq_len=128 batch=8 lr=3e-4 \
                     warmup_steps=10 decay_steps=100 eval_interval=25 eval_batches=2 \
                     metrics.tensorboard=false";

const MODELS: [&str; 2] = ["family=gpt2", "family=llama"];

/// The steps of a run after `first`, without validations.
fn steps_after(run: &RunMetrics, first: u64) -> RunMetrics {
    let steps = run.steps.range(first + 1..).map(|(step, values)| (*step, *values)).collect();
    RunMetrics { steps, ..Default::default() }
}

/// Asserts that 50 steps on the GPU and on CPUs have the same losses.
fn check_curves(precision: &str, tolerance: f64) {
    let Some(harness) = Harness::or_skip() else { return };
    check_rows(
        &MODELS,
        |model| format!("{precision}, {model}"),
        |model| {
            let words = format!(
                "{MODEL} {model} precision={precision} checkpoint.interval=0 train.steps=50"
            );
            let run = |device: &str| {
                let words = format!("{words} train.device={device}");
                harness.run_in(&format!("{device}-{}", model.replace('=', "-")), 1, &words)
            };
            let cpu = run("cpu");
            let [first, last] = [1, 50].map(|step| cpu.steps[&step].loss);
            assert!(last < first - 0.3, "the loss does not decrease: {first} to {last}");
            let device = if harness.target == Target::Gpu { "gpu" } else { "auto" };
            check_losses(&run(device), &cpu, tolerance)
        },
    );
}

#[test]
fn cpu_and_gpu_losses_agree_over_50_steps_in_f32() {
    check_curves("f32", 1e-4);
}

/// Both round operands and activations to bf16, by up to 2^-9 of their value, at different points.
#[test]
fn cpu_and_gpu_losses_agree_over_50_steps_in_bf16() {
    check_curves("bf16", 5e-3);
}

/// The state is f32 on every device, so that the first loss after a move is exact up to rounding.
#[test]
fn checkpoints_move_from_gpu_to_cpu_and_back() {
    let Some(harness) = Harness::or_skip() else { return };
    check_rows(
        &MODELS,
        |model| (*model).to_owned(),
        |model| {
            let name = model.replace('=', "-");
            let words = format!("{MODEL} {model} precision=f32 checkpoint.interval=10");
            let full =
                harness.run_in(&format!("full-{name}"), 1, &format!("{words} train.steps=30"));
            let run = format!("moved-{name}");
            harness.run_in(&run, 1, &format!("{words} train.steps=10"));
            let back = if harness.target == Target::Gpu { "gpu" } else { "auto" };
            for (device, from, to) in [("cpu", 10, 20), (back, 20, 30)] {
                let words = format!("--resume {run} train.device={device} train.steps={to}");
                harness.run(1, &words).assert_ok(&format!("resumed after step {from} from "));
                let moved = harness.metrics(&run).steps[&(from + 1)].loss;
                let expected = full.steps[&(from + 1)].loss;
                let error = ((moved - expected) / expected).abs();
                assert!(
                    error <= 1e-5,
                    "step {} on {device}: {moved}, expected {expected}",
                    from + 1
                );
            }
            let [moved, full] = [harness.metrics(&run), full].map(|run| steps_after(&run, 0));
            check_losses(&moved, &full, 1e-4)
        },
    );
}

/// Ranks of a run, the smoke test of which must pass.
#[test]
fn smoke_test_passes() {
    let Some(harness) = Harness::or_skip() else { return };
    check_rows(
        &[1, 2],
        |ranks| format!("{ranks} ranks"),
        |ranks| {
            let words = format!("--smoke train.steps=10 --json --run-dir smoke-{ranks}");
            let report: Value = from_json(&harness.run(*ranks, &words).ok());
            assert_eq!(report["passed"], true, "{report}");
            assert_eq!(report["ranks"], *ranks, "{report}");
            Ok("passed".to_owned())
        },
    );
}

/// Waiting after every kernel changes no result.
#[test]
fn launch_blocking_has_the_same_losses() {
    let Some(harness) = Harness::or_skip() else { return };
    let words =
        format!("{MODEL} family=gpt2 deterministic=true checkpoint.interval=0 train.steps=5");
    let expected = harness.run_in("asynchronous", 1, &words);
    let _slots = harness.slots(1);
    let mut command = harness.train(1, &format!("{words} --run-dir blocking"));
    command.env("REGATTA_LAUNCH_BLOCKING", "1");
    let blocking = crate::support::process::Process::spawn(&harness.folder, &mut command);
    harness.finish(blocking).ok();
    assert_eq!(max_loss_error(&harness.metrics("blocking"), &expected), Ok(0.0));
}
