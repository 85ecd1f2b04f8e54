//! Which ranks are measured.

use regatta_model::bench::PairEnd;

/// The ranks to measure, of the hosts of all ranks: the first of each node if there are several
/// nodes, else all; `every`: all in any case.
pub fn ends(hosts: &[String], every: bool) -> Vec<PairEnd> {
    let end = |(rank, host): (usize, &String)| PairEnd { rank: rank as u32, host: host.clone() };
    let all: Vec<PairEnd> = hosts.iter().enumerate().map(end).collect();
    if every || hosts.windows(2).all(|two| two[0] == two[1]) {
        return all;
    }
    let mut seen = std::collections::BTreeSet::new();
    all.into_iter().filter(|end| seen.insert(end.host.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(hosts: &[&str], every: bool) -> Vec<u32> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        ends(&hosts, every).into_iter().map(|end| end.rank).collect()
    }

    #[test]
    fn one_of_each_node_or_all_of_one() {
        assert_eq!(ranks(&["a", "a", "b", "b", "a"], false), [0, 2]);
        assert_eq!(ranks(&["a", "a", "a"], false), [0, 1, 2]);
        assert_eq!(ranks(&["a", "a", "b"], true), [0, 1, 2]);
        assert!(ranks(&[], false).is_empty());
    }
}
