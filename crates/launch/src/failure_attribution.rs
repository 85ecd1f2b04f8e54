//! Which rank failed first. Reports arrive in any order: a rank may notice that its peer died, fail
//! and exit before the exit of that peer is reported.

use std::collections::{BTreeMap, BTreeSet};

use regatta_model::result::RankExit;

/// The reported failures of a job.
#[derive(Debug, Default)]
pub(crate) struct FailureAttribution {
    /// The failure that was reported first.
    reported_first: Option<(u32, RankExit)>,
    /// The failures that are not the effect of a signal from the launcher.
    failures: BTreeMap<u32, RankExit>,
    /// For each rank that failed because it lost a peer, that peer.
    lost_peers: BTreeMap<u32, u32>,
}

impl FailureAttribution {
    /// Records the failure that was reported first.
    pub fn set_first(&mut self, rank: u32, exit: RankExit) {
        self.reported_first = Some((rank, exit));
    }

    /// Records a failure that is not the effect of a signal from the launcher.
    pub fn add_failure(&mut self, rank: u32, exit: RankExit) {
        self.failures.insert(rank, exit);
    }

    /// Records that a rank failed because it lost a peer. A rank that aborted may name itself.
    pub fn add_lost_peer(&mut self, rank: u32, peer: u32) {
        if rank != peer {
            self.lost_peers.entry(rank).or_insert(peer);
        }
    }

    /// Whether a failure was reported.
    pub fn reported_first(&self) -> Option<(u32, RankExit)> {
        self.reported_first
    }

    /// The rank that failed first: from the failure that was reported first, follows the lost peers
    /// to a failed rank that lost none. Where that does not lead to one, because ranks lost each
    /// other or a peer that did not fail, the failure that was reported first.
    pub fn first_failure(&self) -> Option<(u32, RankExit)> {
        let (mut rank, mut exit) = self.reported_first?;
        let mut visited = BTreeSet::from([rank]);
        while let Some(&peer) = self.lost_peers.get(&rank) {
            match self.failures.get(&peer) {
                Some(&failure) if visited.insert(peer) => (rank, exit) = (peer, failure),
                _ => return self.reported_first,
            }
        }
        Some((rank, exit))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOST: RankExit = RankExit::Exit(1);

    #[test]
    fn ranks_that_lost_each_other_or_a_running_peer_are_not_replaced() {
        let mut attribution = FailureAttribution::default();
        attribution.set_first(2, LOST);
        attribution.add_failure(2, LOST);
        attribution.add_lost_peer(2, 1);
        assert_eq!(attribution.first_failure(), Some((2, LOST)), "rank 1 runs");
        attribution.add_failure(1, LOST);
        attribution.add_lost_peer(1, 2);
        assert_eq!(attribution.first_failure(), Some((2, LOST)));
    }

    #[test]
    fn rank_that_aborted_failed_first() {
        let mut attribution = FailureAttribution::default();
        attribution.set_first(1, LOST);
        for rank in [1, 0] {
            attribution.add_failure(rank, LOST);
            attribution.add_lost_peer(rank, 0);
        }
        assert_eq!(attribution.first_failure(), Some((0, LOST)));
    }

    proptest! {
        /// Ranks fail one after the other, each because it lost one that failed before. The first is
        /// found whatever the order of the reports.
        #[test]
        fn first_failure_does_not_depend_on_the_order_of_reports(
            (order, lost, reports) in (2usize..9).prop_flat_map(|ranks| {
                let order = Just((0..ranks as u32).collect::<Vec<_>>()).prop_shuffle();
                let lost = proptest::collection::vec(any::<prop::sample::Index>(), ranks - 1);
                let reports = Just((0..2 * ranks - 1).collect::<Vec<_>>()).prop_shuffle();
                (order, lost, reports)
            }),
        ) {
            let culprit = RankExit::Exit(3);
            let mut attribution = FailureAttribution::default();
            for report in reports {
                match report.checked_sub(order.len()) {
                    // The exits come first among the reports, then the lost peers.
                    None => {
                        let exit = if report == 0 { culprit } else { LOST };
                        if attribution.reported_first().is_none() {
                            attribution.set_first(order[report], exit);
                        }
                        attribution.add_failure(order[report], exit);
                    }
                    Some(i) => {
                        let peer = order[lost[i].index(i + 1)];
                        attribution.add_lost_peer(order[i + 1], peer);
                    }
                }
            }
            prop_assert_eq!(attribution.first_failure(), Some((order[0], culprit)));
        }
    }
}
