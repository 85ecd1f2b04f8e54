//! Ranks and operations in words.

use std::collections::BTreeSet;

use regatta_events::operation::Communicator;
use regatta_events::status::CurrentOperation;
use regatta_model::hostlist;
use regatta_model::units::{format_bytes, format_ranks, pluralize};

use super::groups::Groups;

/// Names of ranks.
impl Groups<'_> {
    /// `rank 3`, `ranks 0-2,4`.
    pub fn list(&self, ranks: &BTreeSet<u32>) -> String {
        format_ranks(&ranks.iter().copied().collect::<Vec<_>>())
    }

    /// `rank 3 on n2`.
    pub fn with_hosts(&self, ranks: &BTreeSet<u32>) -> String {
        let hosts = ranks.iter().filter_map(|rank| self.host(*rank));
        let hosts: BTreeSet<&str> = hosts.collect();
        let hosts: Vec<&str> = hosts.into_iter().collect();
        match hosts.is_empty() {
            true => self.list(ranks),
            false => format!("{} on {}", self.list(ranks), hostlist::compress(&hosts)),
        }
    }

    /// Ranks whose status does not have the communicator.
    pub fn without(&self, ranks: &BTreeSet<u32>) -> String {
        let is_silent = ranks.iter().all(|rank| !self.known.contains_key(rank));
        let why = match is_silent {
            true => "no status: no communicator, or the node does not see the run folder",
            false => "no such communicator",
        };
        format!("{} ({why})", self.with_hosts(ranks))
    }
}

/// `all-reduce 57 (4 MiB of bf16, communicator tp, 8 ranks)`, `send 12 (4 MiB of bf16, communicator pp)`.
pub(super) fn describe(operation: &CurrentOperation, communicator: &Communicator) -> String {
    let (index, bytes) = (operation.index, format_bytes(operation.bytes));
    let size = match (operation.bytes, operation.dtype.known_name()) {
        (0, _) => None,
        (_, Some(dtype)) => Some(format!("{bytes} of {dtype}")),
        (_, None) => Some(bytes),
    };
    let ranks = (communicator.ranks > 0 && !operation.kind.is_p2p())
        .then(|| pluralize(communicator.ranks as usize, "rank"));
    let details = [size, Some(format!("communicator {}", communicator.label())), ranks];
    let details: Vec<String> = details.into_iter().flatten().collect();
    let kind = operation.kind.known_name().unwrap_or("collective");
    format!("{kind} {index} ({})", details.join(", "))
}

/// Whole seconds.
pub(super) fn seconds(nanoseconds: u64) -> u64 {
    nanoseconds / 1_000_000_000
}
