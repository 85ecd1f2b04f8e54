//! Selects the ranks to measure.

use regatta_model::bench::PairEndpoint;

/// The ranks to measure, given the hosts of all ranks: with several nodes the first of each unless
/// `all_ranks`, else all.
pub fn select_ranks(hosts: &[String], all_ranks: bool) -> Vec<PairEndpoint> {
    let end = |(rank, host): (u32, &String)| PairEndpoint { rank, host: host.clone() };
    let mut ends: Vec<PairEndpoint> = (0..).zip(hosts).map(end).collect();
    if !all_ranks && hosts.windows(2).any(|two| two[0] != two[1]) {
        let mut seen = std::collections::BTreeSet::new();
        ends.retain(|end| seen.insert(end.host.clone()));
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(hosts: &[&str], all_ranks: bool) -> Vec<u32> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        select_ranks(&hosts, all_ranks).into_iter().map(|end| end.rank).collect()
    }

    #[test]
    fn one_rank_per_node_or_all_ranks_of_one_node() {
        assert_eq!(ranks(&["a", "a", "b", "b", "a"], false), [0, 2]);
        assert_eq!(ranks(&["a", "a", "a"], false), [0, 1, 2]);
        assert_eq!(ranks(&["a", "a", "b"], true), [0, 1, 2]);
        assert!(ranks(&[], false).is_empty());
    }
}
