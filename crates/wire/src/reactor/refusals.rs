//! Refused connections. An unauthenticated peer can connect ten thousand times a second, so the
//! records are bounded, and each combination of peer and reason is reported once.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::net::{IpAddr, Ipv4Addr};

use crate::link::LinkError;

/// Maximum number of separate records; further refusals share one.
const MAX_ENTRIES: usize = 1000;

/// Refused connections of one peer for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Peer address; the unspecified address stands for all peers beyond the limit.
    pub peer: IpAddr,
    /// Reason; for reasons with a value, that of the first connection.
    pub why: String,
    /// Number of connections so far.
    pub count: u64,
}

/// Why an accepted connection was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum RefusalReason {
    #[error("the peer disconnected before it authenticated")]
    Disconnected,
    #[error("too many unauthenticated connections")]
    Evicted,
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A reason without its values: a peer could invent any number of versions.
#[derive(Debug, PartialEq, Eq, Hash)]
struct RefusalKey(IpAddr, Discriminant<RefusalReason>, Option<Discriminant<LinkError>>);

/// All refusals, in the order of their first occurrence.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    all: Vec<Refusal>,
    index: HashMap<RefusalKey, usize>,
    reported: usize,
}

impl Refusals {
    pub(super) fn count(&mut self, peer: IpAddr, reason: &RefusalReason) {
        let error = match reason {
            RefusalReason::Link(error) => Some(discriminant(error)),
            _ => None,
        };
        let key = RefusalKey(peer, discriminant(reason), error);
        let position = match self.index.get(&key) {
            Some(&position) => position,
            None if self.all.len() >= MAX_ENTRIES => self.overflow_index(),
            None => {
                self.index.insert(key, self.all.len());
                self.all.push(Refusal { peer, why: reason.to_string(), count: 0 });
                self.all.len() - 1
            }
        };
        self.all[position].count += 1;
    }

    /// Records that have not been reported.
    pub(super) fn take_new(&mut self) -> Vec<Refusal> {
        let first = std::mem::replace(&mut self.reported, self.all.len());
        self.all[first..].to_vec()
    }

    pub(super) fn all(&self) -> &[Refusal] {
        &self.all
    }

    fn overflow_index(&mut self) -> usize {
        if self.all.len() == MAX_ENTRIES {
            let why = format!("various reasons ({MAX_ENTRIES} peers are listed separately)");
            self.all.push(Refusal { peer: Ipv4Addr::UNSPECIFIED.into(), why, count: 0 });
        }
        MAX_ENTRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(theirs: u16) -> RefusalReason {
        LinkError::VersionMismatch { theirs, ours: 1 }.into()
    }

    #[test]
    fn each_peer_and_reason_is_reported_once_and_counted() {
        let (one, two) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut refusals = Refusals::default();
        let bad_magic = LinkError::BadMagic.into();
        for reason in [RefusalReason::Disconnected, version(7), version(8), bad_magic] {
            refusals.count(one, &reason);
        }
        refusals.count(two, &RefusalReason::Disconnected);
        let counts: Vec<_> = refusals.take_new().iter().map(|r| (r.peer, r.count)).collect();
        assert_eq!(counts, [(one, 1), (one, 2), (one, 1), (two, 1)]);

        refusals.count(two, &RefusalReason::Disconnected);
        assert_eq!(refusals.take_new(), []);
        assert_eq!(refusals.all()[3].count, 2);
    }

    #[test]
    fn refusals_beyond_the_limit_share_one_record() {
        let mut refusals = Refusals::default();
        for n in 0..5000u32 {
            refusals.count(Ipv4Addr::from(n).into(), &RefusalReason::Disconnected);
        }
        assert_eq!(refusals.take_new().len(), MAX_ENTRIES + 1);
        assert_eq!(refusals.all().iter().map(|r| r.count).sum::<u64>(), 5000);
    }
}
