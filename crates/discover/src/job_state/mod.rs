//! The states of jobs in the output of schedulers' commands. Text in, states out; no I/O.
//!
//! Lines that cannot be parsed are skipped: other sites configure other columns, and a job that is
//! not found is reported as such.

mod flux;
mod pbs;
mod slurm;

use serde::{Deserialize, Serialize};

pub use flux::parse_flux_jobs;
pub use pbs::parse_qstat;
pub use slurm::{SACCT_FORMAT, SQUEUE_FORMAT, parse_sacct, parse_squeue};

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Waits in the queue.
    Pending,
    /// Runs.
    Running,
    /// Started and suspended.
    Suspended,
    /// Ended with exit code 0.
    Completed,
    /// Ended with another exit code, or by a failure of a node.
    Failed,
    /// Cancelled by the user or an administrator.
    Cancelled,
    /// Ended by its time limit.
    TimedOut,
}

impl JobState {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed out",
        }
    }

    /// Whether the job has ended.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running | Self::Suspended)
    }
}

/// A job as its scheduler reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job's ID.
    pub id: String,
    /// The job's name, if reported.
    pub name: Option<String>,
    /// Its state.
    pub state: JobState,
    /// Why it waits or how it ended, in the scheduler's words.
    pub reason: Option<String>,
    /// Seconds since its start.
    pub elapsed: Option<u64>,
    /// Time limit in seconds.
    pub limit: Option<u64>,
    /// Exit code of its script.
    pub exit_code: Option<i32>,
}

/// Seconds of `D-HH:MM:SS`, `HH:MM:SS`, `MM:SS`, or `D-HH` and `D-HH:MM` of Slurm.
fn clock_seconds(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days), clock),
        None => (None, text),
    };
    let fields: Vec<u64> = clock.split(':').map(|f| f.parse().ok()).collect::<Option<_>>()?;
    let units: &[u64] = match (days, fields.len()) {
        (Some(_), 1..=3) | (None, 3) => &[3600, 60, 1],
        (None, 2) => &[60, 1],
        _ => return None,
    };
    let days = days.map_or(Some(0), |days| days.parse::<u64>().ok())?.checked_mul(86_400)?;
    let mut parts = fields.iter().zip(units);
    parts.try_fold(days, |sum, (field, unit)| sum.checked_add(field.checked_mul(*unit)?))
}

/// A text that says something, on one line.
fn said(text: &str) -> Option<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!text.is_empty() && text != "None" && text != "(None)").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn clocks_are_read() {
        for (text, seconds) in [
            ("0:05", Some(5)),
            ("30:00", Some(1800)),
            ("1:02:03", Some(3723)),
            ("2-03:04:05", Some(183_845)),
            ("1-12", Some(129_600)),
            ("100:00:00", Some(360_000)),
            ("UNLIMITED", None),
            ("INVALID", None),
            ("5", None),
            ("", None),
            ("99999999999999999999:00", None),
            ("18446744073709551615-00:00:00", None),
        ] {
            assert_eq!(clock_seconds(text), seconds, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC{0,80}|[-0-9:|A-Z\n{}\"=.\t]{0,80}") {
            for parse in [parse_squeue, parse_sacct, parse_qstat, parse_flux_jobs] {
                let jobs = parse(&text);
                prop_assert!(jobs.iter().all(|job| !job.id.is_empty()));
            }
        }
    }
}
