//! The line in which a worker process reports a round, in the same format for Regatta and PyTorch.
//!
//! One word per step: its seconds and, if known, those of its phases, separated by colons; then a bar and the
//! loss of the last step: `0.046:0.012:0.028:0.002:0.003 0.045:… | 4.17`.

use anyhow::{Context, Result, bail};

/// Seconds of the phases of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    pub seconds: f64,
    /// `None` for PyTorch.
    pub phases: Option<PhaseTimes>,
}

/// A round of one process.
#[derive(Debug, Clone, PartialEq)]
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

    pub fn to_line(&self) -> String {
        let words: Vec<String> = self.steps.iter().map(StepTime::word).collect();
        format!("{} | {}", words.join(" "), self.loss)
    }

    pub fn parse(line: &str) -> Result<Self> {
        let parse = || {
            let (steps, loss) = line.split_once('|').context("no loss")?;
            let steps = steps.split_whitespace().map(StepTime::parse);
            let steps = steps.collect::<Result<Vec<_>>>()?;
            if steps.is_empty() {
                bail!("no steps");
            }
            Ok(Self { steps, loss: loss.trim().parse()? })
        };
        parse().with_context(|| format!("invalid report of a round: {line:?}"))
    }
}

impl StepTime {
    fn word(&self) -> String {
        let Some(PhaseTimes { forward, backward, communication, optimizer }) = self.phases else {
            return self.seconds.to_string();
        };
        format!("{}:{forward}:{backward}:{communication}:{optimizer}", self.seconds)
    }

    fn parse(word: &str) -> Result<Self> {
        let seconds: Vec<f64> = word.split(':').map(str::parse).collect::<Result<_, _>>()?;
        match seconds[..] {
            [seconds] => Ok(Self { seconds, phases: None }),
            [seconds, forward, backward, communication, optimizer] => {
                let phases = PhaseTimes { forward, backward, communication, optimizer };
                Ok(Self { seconds, phases: Some(phases) })
            }
            _ => bail!("{word} has {} fields, expected 1 or 5", seconds.len()),
        }
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
        assert_eq!(RoundReport::parse(&report.to_line()).unwrap(), report);
        assert_eq!(report.mean_seconds(), 2.0);
    }

    #[test]
    fn phases_are_optional() {
        let report = RoundReport::parse("0.5 1.5e-2 | 4.5\n").unwrap();
        assert_eq!((report.steps[1].seconds, report.loss), (0.015, 4.5));
        assert!(report.steps.iter().all(|step| step.phases.is_none()));
    }

    #[test]
    fn invalid_lines_are_rejected() {
        for line in ["", "0.5 0.5", "| 4.5", "0.5:0.1 | 4.5", "fast | 4.5", "0.5 | low"] {
            let error = RoundReport::parse(line).unwrap_err().to_string();
            assert!(error.contains(&format!("{line:?}")), "{error}");
        }
    }
}
