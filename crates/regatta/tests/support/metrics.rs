//! Recorded metrics of training runs, and comparisons of them.

use std::collections::BTreeMap;
use std::path::Path;

use regatta_train::metrics::StepMetrics;
use serde_json::Value;

/// The metrics of a step without times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepValues {
    pub loss: f64,
    pub grad_norm: f64,
    pub lr: f64,
    pub tokens: u64,
}

/// The metrics of a run by step.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct RunMetrics {
    pub steps: BTreeMap<u64, StepValues>,
    pub val_losses: BTreeMap<u64, f64>,
}

impl RunMetrics {
    /// Drops validations that `run` does not have: one is lost if the run is killed between a
    /// checkpoint and the validation of its step.
    pub fn with_validations_of(&self, run: &Self) -> Self {
        let mut metrics = self.clone();
        metrics.val_losses.retain(|step, _| run.val_losses.contains_key(step));
        metrics
    }
}

/// Reads a metrics file; panics if a step is duplicated or out of order.
pub fn read_metrics(file: &Path) -> RunMetrics {
    let text = std::fs::read_to_string(file).unwrap();
    let mut metrics = RunMetrics::default();
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        if let Some(loss) = value["val_loss"].as_f64() {
            let previous = metrics.val_losses.insert(value["step"].as_u64().unwrap(), loss);
            assert_eq!(previous, None, "{line}");
            continue;
        }
        let StepMetrics { step, loss, grad_norm, lr, tokens, .. } =
            serde_json::from_value(value).unwrap();
        let last = metrics.steps.last_key_value().map_or(0, |(step, _)| *step);
        assert!(step > last, "step {step} after {last}");
        metrics.steps.insert(step, StepValues { loss, grad_norm, lr, tokens });
    }
    metrics
}

/// The last step in a metrics file that is being written, from its last complete line.
pub fn last_step_in(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let last = text.split_inclusive('\n').rfind(|line| line.ends_with('\n'));
    let step = |line: &str| serde_json::from_str::<Value>(line).ok()?["step"].as_u64();
    last.and_then(step).unwrap_or(0)
}

/// Asserts that a run has all steps from 1 to `steps`, bitwise identical to those of another run.
pub fn assert_identical(run: &RunMetrics, other: &RunMetrics, steps: u64) {
    let all: Vec<u64> = run.steps.keys().copied().collect();
    assert_eq!(all, (1..=steps).collect::<Vec<_>>());
    assert_common_steps_identical(run, other);
}

/// Asserts that the steps of a run, which may have gaps, are bitwise identical to those of another
/// run.
pub fn assert_common_steps_identical(run: &RunMetrics, other: &RunMetrics) {
    for (step, values) in &run.steps {
        assert_eq!(other.steps.get(step), Some(values), "step {step}");
    }
    for (step, loss) in &run.val_losses {
        let expected = other.val_losses.get(step);
        assert!(expected.is_none_or(|expected| expected == loss), "validation at step {step}");
    }
}

/// Asserts that two runs have the same losses up to the rounding of a different summation order.
pub fn assert_close(run: &RunMetrics, other: &RunMetrics) {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs();
    assert!(run.steps.keys().eq(other.steps.keys()));
    for ((step, a), b) in run.steps.iter().zip(other.steps.values()) {
        assert!(close(a.loss, b.loss), "step {step}: {a:?} {b:?}");
    }
    assert!(run.val_losses.keys().eq(other.val_losses.keys()));
    for ((step, a), b) in run.val_losses.iter().zip(other.val_losses.values()) {
        assert!(close(*a, *b), "validation at step {step}: {a} {b}");
    }
}
