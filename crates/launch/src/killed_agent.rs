//! The end of an agent that was killed, as it arrives over the standard error of ssh or srun: the agent's
//! connection is closed by then.

use std::fmt;

/// Marks the line.
const MARKER: &str = "regatta-agent-killed host=";

/// An agent that was killed. None of its processes is left, nor any of its ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KilledAgent {
    /// Its host, as the job spells it.
    pub host: String,
}

impl KilledAgent {
    /// The line that says so.
    pub fn to_line(&self) -> String {
        format!("{MARKER}{}", self.host)
    }

    /// Parses a line of standard error, which ssh or srun may have prefixed.
    pub fn parse(line: &str) -> Option<Self> {
        let (_, host) = line.split_once(MARKER)?;
        Some(Self { host: host.trim_end().to_owned() })
    }
}

impl fmt::Display for KilledAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the agent of {} was killed; none of its processes is left", self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_an_agent_is_parsed_behind_any_prefix() {
        let end = KilledAgent { host: "n1.site".to_owned() };
        for prefix in ["", "error: ", "3: error: "] {
            assert_eq!(
                KilledAgent::parse(&format!("{prefix}{}", end.to_line())),
                Some(end.clone())
            );
        }
        assert_eq!(KilledAgent::parse("srun: error: n1: task 0: Killed"), None);
    }
}
