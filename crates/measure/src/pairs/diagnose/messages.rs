//! Findings as sentences: what is slow, by how much, and what to check.

use std::fmt;

use regatta_model::units::format_ranks;

use super::{FaultLocation, FaultSubject, LinkScope, PairFinding, SlowDirection};

impl fmt::Display for FaultLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { host, ranks } => {
                write!(f, "{host} ({})", format_ranks(ranks))
            }
            Self::Rank { rank, host } => write!(f, "rank {rank} on {host}"),
        }
    }
}

impl fmt::Display for PairFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what(), self.values())?;
        if let Some(ambiguity) = self.ambiguity() {
            write!(f, "; {ambiguity}")?;
        }
        write!(f, "; {}", self.hint())
    }
}

impl PairFinding {
    fn what(&self) -> String {
        let intra_node = self.scope == LinkScope::IntraNode;
        match (&self.subject, self.direction) {
            (FaultSubject::Endpoint(location), direction) => {
                let verb = match direction {
                    SlowDirection::Send => "sends slowly",
                    SlowDirection::Recv => "receives slowly",
                    SlowDirection::Both => "is slow",
                };
                format!("{location} {verb}{}", if intra_node { " within its node" } else { "" })
            }
            (FaultSubject::Link { from, to }, SlowDirection::Both) => {
                format!("the link between {from} and {to} is slow in both directions")
            }
            (FaultSubject::Link { from, to }, _) => {
                format!("the link from {from} to {to} is slow in this direction only")
            }
            (FaultSubject::Network { slow, of, from, to }, _) => {
                let scope = if intra_node { "intra-node" } else { "inter-node" };
                format!(
                    "{slow} of {of} {scope} links are slower than the others, the slowest from \
                     {from} to {to}; typical slow link"
                )
            }
        }
    }

    fn values(&self) -> String {
        let bandwidth = self.bandwidth.map(|observed| {
            let (value, expected) = (bandwidth(observed.value), bandwidth(observed.expected));
            let percent = 100.0 * observed.ratio();
            format!("{value}, {percent:.0} % of the expected {expected}")
        });
        let latency = self.latency_us.map(|observed| {
            let (value, expected) = (short(observed.value), short(observed.expected));
            let ratio = observed.ratio();
            format!("8-byte latency {value} µs, {ratio:.1} times the expected {expected} µs")
        });
        bandwidth.into_iter().chain(latency).collect::<Vec<_>>().join("; ")
    }

    /// Other causes with the same symptoms.
    fn ambiguity(&self) -> Option<String> {
        (!self.conclusive).then(|| match &self.subject {
            FaultSubject::Link { from, to } => {
                format!("with two endpoints the cause may be {from}, {to} or the link")
            }
            _ => "with three endpoints the cause may also be its links to the other two".to_owned(),
        })
    }

    fn hint(&self) -> &'static str {
        let intra_node = self.scope == LinkScope::IntraNode;
        match (&self.subject, self.bandwidth) {
            (FaultSubject::Network { .. }, _) => {
                "typical of multi-switch networks and multi-socket nodes: compare with the topology"
            }
            (_, Some(_)) if intra_node => {
                "check the ranks' core and memory binding and other load on the node"
            }
            (_, None) if intra_node => "check the ranks' core binding",
            (FaultSubject::Endpoint(_), Some(_)) => {
                "check its NIC and cable (speed, width, errors), CPU frequency and other load"
            }
            (FaultSubject::Endpoint(_), None) => {
                "check its CPU frequency, C-states, interrupts and other load"
            }
            (FaultSubject::Link { .. }, _) => {
                "check the switches and cables between them (errors, drops) and the routing"
            }
        }
    }
}

/// Bandwidth in GB/s, or in MB/s below 1 GB/s.
pub(in crate::pairs) fn bandwidth(gb_per_s: f64) -> String {
    match gb_per_s {
        low if low < 1.0 => format!("{} MB/s", short(low * 1e3)),
        high => format!("{} GB/s", short(high)),
    }
}

/// About three significant digits.
pub(in crate::pairs) fn short(value: f64) -> String {
    match value {
        high if high >= 99.95 => format!("{high:.0}"),
        middle if middle >= 9.995 => format!("{middle:.1}"),
        low => format!("{low:.2}"),
    }
}
