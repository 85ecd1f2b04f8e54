//! The metrics that a training left, and how two of them compare.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::path::Path;

use regatta_train::metrics::StepMetrics;
use serde_json::Value;

/// What a step came to: all but times, bit by bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub loss: f64,
    pub gradient_norm: f64,
    pub rate: f64,
    pub tokens: u64,
}

/// The metrics of a run: steps, and losses of validations.
#[derive(Debug, Default, PartialEq)]
pub struct Metrics {
    pub steps: BTreeMap<u64, Step>,
    pub validations: BTreeMap<u64, f64>,
}

/// The metrics that are in a file, each step once and in order.
pub fn metrics_of(file: &Path) -> Metrics {
    let text = std::fs::read_to_string(file).unwrap();
    let mut metrics = Metrics::default();
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        if let Some(loss) = value["validation_loss"].as_f64() {
            let before = metrics.validations.insert(value["step"].as_u64().unwrap(), loss);
            assert_eq!(before, None, "{line}");
            continue;
        }
        let StepMetrics { step, loss, gradient_norm, rate, tokens, .. } =
            serde_json::from_value(value).unwrap();
        let last = metrics.steps.last_key_value().map_or(0, |(step, _)| *step);
        assert!(step > last, "step {step} after {last}");
        metrics.steps.insert(step, Step { loss, gradient_norm, rate, tokens });
    }
    metrics
}

/// How many steps are done by now, from the last whole line of a file.
pub fn done_of(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let last = text.split_inclusive('\n').rfind(|line| line.ends_with('\n'));
    let step = |line: &str| serde_json::from_str::<Value>(line).ok()?["step"].as_u64();
    last.and_then(step).unwrap_or(0)
}

/// Asserts that every step from the first to the last is there, and as in the other run bit by bit;
/// so are validations of the same steps.
pub fn assert_same(run: &Metrics, other: &Metrics, steps: u64) {
    let all: Vec<u64> = run.steps.keys().copied().collect();
    assert_eq!(all, (1..=steps).collect::<Vec<_>>());
    assert_agree(run, other);
}

/// Asserts that what both runs have is the same bit by bit; a step may be missing.
pub fn assert_agree(run: &Metrics, other: &Metrics) {
    for (step, what) in &run.steps {
        assert_eq!(other.steps.get(step), Some(what), "step {step}");
    }
    for (step, loss) in &run.validations {
        let there = other.validations.get(step);
        assert!(there.is_none_or(|there| there == loss), "validation after {step}");
    }
}

/// Asserts that losses are the same but for the order in which numbers were added.
pub fn assert_near(run: &Metrics, other: &Metrics) {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs();
    assert!(run.steps.keys().eq(other.steps.keys()));
    for ((step, a), b) in run.steps.iter().zip(other.steps.values()) {
        assert!(near(a.loss, b.loss), "step {step}: {a:?} {b:?}");
    }
    assert!(run.validations.keys().eq(other.validations.keys()));
    for ((step, a), b) in run.validations.iter().zip(other.validations.values()) {
        assert!(near(*a, *b), "validation after {step}: {a} {b}");
    }
}
