//! Collects the findings of a check: nodes with the same defect share one.

use std::collections::BTreeMap;
use std::fmt::Display;

use regatta_model::hostlist;

use super::majority::Groups;
use crate::diagnosis::{Finding, Verdict};
use crate::facts::{JobFacts, NodeFacts};

/// Different values that a reason lists.
const MAX_VALUES: usize = 3;

/// The findings of a check so far.
#[derive(Default)]
pub(super) struct Findings {
    defects: Vec<Defect>,
}

/// A defect of one or more nodes.
struct Defect {
    verdict: Verdict,
    what: String,
    /// The different values found.
    values: Vec<String>,
    hosts: Vec<String>,
    fix: String,
}

impl Findings {
    /// Adds a defect of a node. Nodes with the same defect and fix share a finding, whose reason is
    /// `what`, followed by the values found.
    pub(super) fn add(
        &mut self,
        verdict: Verdict,
        host: &str,
        what: impl Into<String>,
        value: impl Display,
        fix: impl Into<String>,
    ) {
        let (what, value, fix) = (what.into(), value.to_string(), fix.into());
        let is_same = |d: &&mut Defect| d.verdict == verdict && d.what == what && d.fix == fix;
        match self.defects.iter_mut().find(is_same) {
            Some(defect) => {
                if defect.hosts.last().is_none_or(|last| last != host) {
                    defect.hosts.push(host.to_owned());
                }
                if !defect.values.contains(&value) {
                    defect.values.push(value);
                }
            }
            None => {
                let (values, hosts) = (vec![value], vec![host.to_owned()]);
                self.defects.push(Defect { verdict, what, values, hosts, fix });
            }
        }
    }

    /// Adds the nodes whose value differs from most nodes'. Without a majority no node is at fault,
    /// and the reason names all.
    pub(super) fn add_differing<V: Ord + Clone + Display>(
        &mut self,
        verdict: Verdict,
        what: &str,
        values: &Groups<'_, V>,
        fix: &str,
    ) {
        let Some(common) = values.most_common() else { return };
        if values.is_uniform() {
            return;
        }
        if values.has_majority() {
            let what = format!("{what} differs from the other nodes' {common}");
            for (value, hosts) in values.others() {
                hosts.iter().for_each(|host| self.add(verdict, host, &what, value, fix));
            }
            return;
        }
        let group =
            |(value, hosts): &(V, Vec<&str>)| format!("{value} on {}", hostlist::compress(hosts));
        let groups: Vec<String> = values.groups.iter().take(MAX_VALUES).map(group).collect();
        self.defects.push(Defect {
            verdict,
            what: format!("{what} differs between the nodes"),
            values: vec![groups.join(", ")],
            hosts: Vec::new(),
            fix: fix.to_owned(),
        });
    }

    pub(super) fn into_list(self) -> Vec<Finding> {
        let finding = |Defect { verdict, what, values, hosts, fix }: Defect| {
            let reason = match values.len() {
                _ if values.iter().all(String::is_empty) => what,
                ..=MAX_VALUES => format!("{what}: {}", values.join(", ")),
                more => {
                    let others = more - MAX_VALUES;
                    format!("{what}: {} and {others} more", values[..MAX_VALUES].join(", "))
                }
            };
            Finding { verdict, hosts, reason, fix }
        };
        self.defects.into_iter().map(finding).collect()
    }
}

/// The values of all nodes by key, each with its node.
pub(super) fn by_key<'a, K: Ord, V, I: IntoIterator<Item = (K, V)>>(
    facts: &'a JobFacts,
    of: impl Fn(&'a NodeFacts) -> I,
) -> BTreeMap<K, Vec<(&'a NodeFacts, V)>> {
    let mut values: BTreeMap<K, Vec<_>> = BTreeMap::new();
    for node in &facts.nodes {
        for (key, value) in of(node) {
            values.entry(key).or_default().push((node, value));
        }
    }
    values
}

/// The upper median of each key's values.
pub(super) fn upper_medians<K: Ord>(
    values: BTreeMap<K, Vec<(&NodeFacts, f64)>>,
) -> BTreeMap<K, f64> {
    let median = |(key, values): (K, Vec<(&NodeFacts, f64)>)| {
        Some((key, upper_median(values.into_iter().map(|(_, value)| value))?))
    };
    values.into_iter().filter_map(median).collect()
}

/// The median, of an even number of values the upper one: of two nodes the one with less is at
/// fault. `None` without values.
pub(super) fn upper_median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The median, of an even number of values the lower one: of two nodes the one with more is at fault.
pub(super) fn lower_median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    upper_median(values.into_iter().map(|value| -value)).map(|value| -value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_the_same_defect_share_a_finding() {
        let mut findings = Findings::default();
        for (host, value) in [("n1", "1"), ("n1", "2"), ("n2", "1"), ("n3", "3"), ("n4", "4")] {
            findings.add(Verdict::Fail, host, "low limit", value, "raise it");
        }
        findings.add(Verdict::Warn, "n1", "no limit", "", "set one");
        let list = findings.into_list();
        assert_eq!(list[0].hosts, ["n1", "n2", "n3", "n4"]);
        assert_eq!(list[0].reason, "low limit: 1, 2, 3 and 1 more");
        assert_eq!((list.len(), list[1].reason.as_str()), (2, "no limit"));
    }

    #[test]
    fn without_a_majority_no_node_is_at_fault() {
        let mut findings = Findings::default();
        let values = Groups::new([("n1", Some("550.1")), ("n2", Some("550.2"))]);
        findings.add_differing(Verdict::Fail, "driver version", &values, "update");
        let list = findings.into_list();
        assert!(list[0].hosts.is_empty());
        let reason = "driver version differs between the nodes: 550.1 on n1, 550.2 on n2";
        assert_eq!(list[0].reason, reason);
    }

    #[test]
    fn medians_of_two_values() {
        assert_eq!((upper_median([1.0, 2.0]), lower_median([1.0, 2.0])), (Some(2.0), Some(1.0)));
        assert_eq!((upper_median([3.0, 1.0, 2.0]), upper_median([])), (Some(2.0), None));
    }
}
