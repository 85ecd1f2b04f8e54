//! Selects the ranks to measure.

use regatta_model::bench::PairEndpoint;

/// The ranks to measure, given the hosts of all ranks: with several nodes the first of each unless
/// `all_ranks`, else all.
pub fn select_ranks(hosts: &[String], all_ranks: bool) -> Vec<PairEndpoint> {
    let end =
        |(rank, host): (usize, &String)| PairEndpoint { rank: rank as u32, host: host.clone() };
    let all: Vec<PairEndpoint> = hosts.iter().enumerate().map(end).collect();
    if all_ranks || hosts.windows(2).all(|two| two[0] == two[1]) {
        return all;
    }
    let mut seen = std::collections::BTreeSet::new();
    all.into_iter().filter(|end| seen.insert(end.host.clone())).collect()
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
