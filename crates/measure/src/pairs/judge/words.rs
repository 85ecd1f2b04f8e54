//! What stands out, in sentences: what is slow, by how much, and what to look at.

use std::fmt;

use regatta_model::CpuSet;

use super::{Finding, Place, Scope, Subject, Way};

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { host, ranks } => {
                let list: CpuSet = ranks.iter().map(|rank| *rank as usize).collect();
                let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
                write!(f, "{host} ({noun} {list})")
            }
            Self::Rank { rank, host } => write!(f, "rank {rank} on {host}"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what(), self.figures())?;
        if let Some(doubt) = self.doubt() {
            write!(f, "; {doubt}")?;
        }
        write!(f, "; {}", self.advice())
    }
}

impl Finding {
    fn what(&self) -> String {
        let inside = if self.scope == Scope::Inside { " inside its node" } else { "" };
        match (&self.subject, self.way) {
            (Subject::Place(place), Way::Sending) => format!("{place} sends slowly{inside}"),
            (Subject::Place(place), Way::Receiving) => format!("{place} receives slowly{inside}"),
            (Subject::Place(place), Way::Both) => format!("{place} is slow{inside}"),
            (Subject::Link { from, to }, Way::Both) => {
                format!("between {from} and {to} it is slow, both ways")
            }
            (Subject::Link { from, to }, _) => {
                format!("from {from} to {to} it is slow, and not on the way back")
            }
            (Subject::Network { slow, of, from, to }, _) => {
                let between = if inside.is_empty() { "nodes" } else { "ranks of a node" };
                format!(
                    "{slow} of {of} links between {between} are slower than the others, most of \
                     all from {from} to {to}; typical of them"
                )
            }
        }
    }

    fn figures(&self) -> String {
        let bandwidth = self.bandwidth.map(|figure| {
            let (value, expected) = (bandwidth(figure.value), bandwidth(figure.expected));
            let percent = 100.0 * figure.ratio();
            format!("{value}, {percent:.0} % of the {expected} to be expected")
        });
        let latency = self.latency_us.map(|figure| {
            let (value, expected) = (short(figure.value), short(figure.expected));
            let times = figure.ratio();
            format!("8 bytes take {value} µs, {times:.1} times the {expected} µs to be expected")
        });
        bandwidth.into_iter().chain(latency).collect::<Vec<_>>().join("; ")
    }

    /// What else would look the same.
    fn doubt(&self) -> Option<String> {
        if self.told_apart {
            return None;
        }
        Some(match &self.subject {
            Subject::Link { from, to } => {
                format!("of two it cannot be told whether it is {from} or {to} or what is between")
            }
            _ => {
                "of three it cannot be told whether it is this one or what is between it and both \
                  others"
                    .to_owned()
            }
        })
    }

    fn advice(&self) -> &'static str {
        let inside = self.scope == Scope::Inside;
        match (&self.subject, self.bandwidth) {
            (Subject::Network { .. }, _) => {
                "this is how networks of several switches, or machines of several sockets, look: \
                 compare with how it is built"
            }
            (_, Some(_)) if inside => {
                "look at how ranks are bound to cores and memory, and at what else runs there"
            }
            (_, None) if inside => "look at which cores the ranks are bound to",
            (Subject::Place(_), Some(_)) => {
                "look at its network interface and cable (speed, width, errors), at its processors' \
                 frequency, and at what else runs there"
            }
            (Subject::Place(_), None) => {
                "look at its processors' frequency and sleep states, at interrupts, and at what \
                 else runs there"
            }
            (Subject::Link { .. }, _) => {
                "look at the switches and cables between them (errors, drops), and at which way \
                 packets are routed"
            }
        }
    }
}

/// GB/s in the unit that suits the figure.
pub(in crate::pairs) fn bandwidth(gb_per_s: f64) -> String {
    match gb_per_s {
        low if low < 1.0 => format!("{} MB/s", short(low * 1e3)),
        high => format!("{} GB/s", short(high)),
    }
}

/// About three digits.
pub(in crate::pairs) fn short(figure: f64) -> String {
    match figure {
        high if high >= 99.95 => format!("{high:.0}"),
        middle if middle >= 9.995 => format!("{middle:.1}"),
        low => format!("{low:.2}"),
    }
}
