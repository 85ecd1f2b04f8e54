//! What a process says of its turn: a line, of ours and of peers alike.
//!
//! A word for each step, its seconds and, if they are known, behind colons where they went; then,
//! behind a bar, the loss of the last one: `0.046:0.012:0.028:0.002:0.003 0.045:… | 4.17`.

use anyhow::{Context, Result, bail};

/// Where the seconds of a step of ours went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Laps {
    pub forward: f64,
    pub backward: f64,
    /// That nothing hid.
    pub communication: f64,
    pub optimizer: f64,
}

impl Laps {
    /// Of so many seconds, those that went nowhere of these.
    pub fn other(&self, seconds: f64) -> f64 {
        seconds - self.forward - self.backward - self.communication - self.optimizer
    }
}

/// A step of one process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub seconds: f64,
    /// Peers do not say.
    pub laps: Option<Laps>,
}

/// A turn of one process.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub steps: Vec<Step>,
    /// Of the last step.
    pub loss: f64,
}

impl Answer {
    /// The seconds of a step, on the average.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum::<f64>() / self.steps.len() as f64
    }

    pub fn line(&self) -> String {
        let words: Vec<String> = self.steps.iter().map(Step::word).collect();
        format!("{} | {}", words.join(" "), self.loss)
    }

    pub fn read(line: &str) -> Result<Self> {
        let read = || {
            let (steps, loss) = line.split_once('|').context("no loss")?;
            let steps: Vec<Step> =
                steps.split_whitespace().map(Step::read).collect::<Result<_>>()?;
            if steps.is_empty() {
                bail!("no steps");
            }
            Ok(Self { steps, loss: loss.trim().parse()? })
        };
        read().with_context(|| format!("not the times of steps: {line:?}"))
    }
}

impl Step {
    fn word(&self) -> String {
        let Some(Laps { forward, backward, communication, optimizer }) = self.laps else {
            return self.seconds.to_string();
        };
        format!("{}:{forward}:{backward}:{communication}:{optimizer}", self.seconds)
    }

    fn read(word: &str) -> Result<Self> {
        let numbers: Vec<f64> = word.split(':').map(str::parse).collect::<Result<_, _>>()?;
        match numbers[..] {
            [seconds] => Ok(Self { seconds, laps: None }),
            [seconds, forward, backward, communication, optimizer] => {
                let laps = Laps { forward, backward, communication, optimizer };
                Ok(Self { seconds, laps: Some(laps) })
            }
            _ => bail!("{word} has {} numbers", numbers.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let laps = Laps { forward: 0.25, backward: 0.5, communication: 0.125, optimizer: 1e-6 };
        let steps =
            vec![Step { seconds: 1.0, laps: Some(laps) }, Step { seconds: 3.0, laps: None }];
        let answer = Answer { steps, loss: 4.17 };
        assert_eq!(Answer::read(&answer.line()).unwrap(), answer);
        assert_eq!(answer.seconds(), 2.0);
    }

    #[test]
    fn a_peer_says_less() {
        let answer = Answer::read("0.5 1.5e-2 | 4.5\n").unwrap();
        assert_eq!((answer.steps[1].seconds, answer.loss), (0.015, 4.5));
        assert!(answer.steps.iter().all(|step| step.laps.is_none()));
    }

    #[test]
    fn other_lines_are_none() {
        for line in ["", "0.5 0.5", "| 4.5", "0.5:0.1 | 4.5", "fast | 4.5", "0.5 | low"] {
            let error = Answer::read(line).unwrap_err().to_string();
            assert!(error.contains(&format!("{line:?}")), "{error}");
        }
    }
}
