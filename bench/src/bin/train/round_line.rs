//! The line in which a worker process reports a round, in the same format for Regatta and PyTorch.
//!
//! It is JSON: `{"steps": [{"seconds": 0.046, "phases": {"forward": 0.012, …}}, …], "loss": 4.17}`.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Seconds of the phases of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PhaseTimes {
    pub forward: f64,
    pub backward: f64,
    /// Exposed communication.
    pub communication: f64,
    pub optimizer: f64,
}

impl PhaseTimes {
    /// Seconds of a step that are in none of the phases.
    pub fn other(&self, step_seconds: f64) -> f64 {
        step_seconds - self.forward - self.backward - self.communication - self.optimizer
    }
}

/// Time of a step of one process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    pub seconds: f64,
    /// `None` for PyTorch.
    pub phases: Option<PhaseTimes>,
}

/// A round of one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundReport {
    pub steps: Vec<StepTime>,
    /// Loss of the last step.
    pub loss: f64,
}

impl RoundReport {
    /// Mean seconds of a step.
    pub fn mean_seconds(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum::<f64>() / self.steps.len() as f64
    }

    pub fn parse(line: &str) -> Result<Self> {
        let invalid = || format!("invalid report of a round: {line:?}");
        let report: Self = serde_json::from_str(line).with_context(invalid)?;
        ensure!(!report.steps.is_empty(), "{}: no steps", invalid());
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_round_trip() {
        let (forward, backward, communication, optimizer) = (0.25, 0.5, 0.125, 1e-6);
        let phases = Some(PhaseTimes { forward, backward, communication, optimizer });
        let step = |seconds, phases| StepTime { seconds, phases };
        let report = RoundReport { steps: vec![step(1.0, phases), step(3.0, None)], loss: 4.17 };
        assert_eq!(RoundReport::parse(&serde_json::to_string(&report).unwrap()).unwrap(), report);
        assert_eq!(report.mean_seconds(), 2.0);
    }

    #[test]
    fn phases_are_optional() {
        let line = "{\"steps\": [{\"seconds\": 0.5}, {\"seconds\": 1.5e-2}], \"loss\": 4.5}\n";
        let report = RoundReport::parse(line).unwrap();
        assert_eq!((report.steps[1].seconds, report.loss), (0.015, 4.5));
        assert!(report.steps.iter().all(|step| step.phases.is_none()));
    }

    #[test]
    fn invalid_lines_are_rejected() {
        let lines = [
            "",
            "{\"steps\": [{\"seconds\": 0.5}]}",
            "{\"steps\": [], \"loss\": 4.5}",
            "{\"steps\": [{\"seconds\": 0.5, \"phases\": {\"forward\": 0.1}}], \"loss\": 4.5}",
            "{\"steps\": [{\"seconds\": \"fast\"}], \"loss\": 4.5}",
            "{\"steps\": [{\"seconds\": 0.5}], \"loss\": \"low\"}",
        ];
        for line in lines {
            let error = RoundReport::parse(line).unwrap_err().to_string();
            assert!(error.contains(&format!("{line:?}")), "{error}");
        }
    }
}
