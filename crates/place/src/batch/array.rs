//! Job arrays: many jobs of one script, each with an index.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The tasks of a job array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct JobArray {
    first: u32,
    last: u32,
    step: u32,
    /// Tasks that may run at the same time.
    limit: Option<u32>,
}

/// Not a job array.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a number of tasks as in 10, or their indices as in 0-9 or 0-9:3 (step 3), followed by \
     %2 to run at most 2 of them at a time"
)]
pub struct JobArrayError;

/// Most tasks: sites allow fewer, to catch typing errors.
const MAX_TASKS: u32 = 1_000_000;

impl JobArray {
    /// The indices of the tasks.
    pub fn indices(self) -> impl Iterator<Item = u32> {
        (self.first..=self.last).step_by(self.step as usize)
    }

    /// Number of tasks; at least 1.
    pub fn count(self) -> u32 {
        (self.last - self.first) / self.step + 1
    }
}

impl FromStr for JobArray {
    type Err = JobArrayError;

    fn from_str(text: &str) -> Result<Self, JobArrayError> {
        let (indices, limit) = match text.split_once('%') {
            Some((indices, limit)) => (indices, Some(number(limit).filter(|n| *n > 0))),
            None => (text, None),
        };
        let limit = limit.map(|limit| limit.ok_or(JobArrayError)).transpose()?;
        let (range, step) = match indices.split_once(':') {
            Some((range, step)) => (range, number(step)),
            None => (indices, Some(1)),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first), number(last)),
            // A number of tasks has no step.
            None => {
                (Some(0), number(range).and_then(|n| n.checked_sub(1)).filter(|_| range == indices))
            }
        };
        match (first, last, step) {
            (Some(first), Some(last), Some(step @ 1..))
                if first <= last && (last - first) / step < MAX_TASKS =>
            {
                Ok(Self { first, last, step, limit })
            }
            _ => Err(JobArrayError),
        }
    }
}

/// As Slurm and PBS write it: `0-9:3%2`.
impl fmt::Display for JobArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, step, limit } = self;
        write!(f, "{first}-{last}")?;
        if *step > 1 {
            write!(f, ":{step}")?;
        }
        limit.map_or(Ok(()), |limit| write!(f, "%{limit}"))
    }
}

impl From<JobArray> for String {
    fn from(array: JobArray) -> Self {
        array.to_string()
    }
}

impl TryFrom<String> for JobArray {
    type Error = JobArrayError;

    fn try_from(text: String) -> Result<Self, JobArrayError> {
        text.parse()
    }
}

/// A number without a sign.
pub(super) fn number(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arrays_are_counts_or_ranges() {
        for (text, shown, count) in [
            ("10", "0-9", 10),
            ("1", "0-0", 1),
            ("10%2", "0-9%2", 10),
            ("3-5", "3-5", 3),
            ("0-9:3", "0-9:3", 4),
            ("0-10:3%1", "0-10:3%1", 4),
            ("4-4", "4-4", 1),
        ] {
            let array: JobArray = text.parse().unwrap();
            assert_eq!((array.to_string().as_str(), array.count()), (shown, count), "{text}");
            assert_eq!(array.indices().count() as u32, count, "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "5-3",
            "1,3",
            "0-9%0",
            "0-9%",
            "0-9:0",
            "10:2",
            "a",
            "1-",
            "0-9%2%3",
            " 3",
            "4294967296",
            "0-4294967295",
            "2000000",
        ] {
            assert_eq!(text.parse::<JobArray>(), Err(JobArrayError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_array_or_an_error(text in "[-:%0-9]{0,12}|\\PC{0,12}") {
            if let Ok(array) = text.parse::<JobArray>() {
                prop_assert_eq!(array.to_string().parse(), Ok(array));
                prop_assert_eq!(array.indices().next(), Some(array.first));
            }
        }
    }
}
