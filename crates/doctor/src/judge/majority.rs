//! The value that most nodes have, and the nodes that differ.

use std::collections::BTreeMap;

/// The values of all nodes, grouped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups<'a, V> {
    /// Each value with its hosts, the most frequent first; of equally frequent ones the value of
    /// the first node.
    pub groups: Vec<(V, Vec<&'a str>)>,
}

impl<'a, V: Ord + Clone> Groups<'a, V> {
    /// Groups hosts by value. Hosts without a value are not counted.
    pub fn new(values: impl IntoIterator<Item = (&'a str, Option<V>)>) -> Self {
        let mut order: Vec<V> = Vec::new();
        let mut hosts: BTreeMap<V, Vec<&'a str>> = BTreeMap::new();
        for (host, value) in values {
            let Some(value) = value else { continue };
            let known = hosts.entry(value.clone()).or_default();
            if known.is_empty() {
                order.push(value);
            }
            known.push(host);
        }
        let take = |value: V| hosts.remove(&value).map(|hosts| (value, hosts));
        let mut groups: Vec<(V, Vec<&'a str>)> = order.into_iter().filter_map(take).collect();
        // Stable: the first node decides between equal counts.
        groups.sort_by_key(|(_, hosts)| std::cmp::Reverse(hosts.len()));
        Self { groups }
    }

    /// The most frequent value.
    pub fn most_common(&self) -> Option<&V> {
        self.groups.first().map(|(value, _)| value)
    }

    /// Whether all nodes have the same value.
    pub fn is_uniform(&self) -> bool {
        self.groups.len() <= 1
    }

    /// Whether more than half of the nodes have the same value, so that the others are at fault.
    pub fn has_majority(&self) -> bool {
        let all: usize = self.groups.iter().map(|(_, hosts)| hosts.len()).sum();
        self.groups.first().is_some_and(|(_, hosts)| 2 * hosts.len() > all)
    }

    /// The values that differ from the most frequent one, with their hosts.
    pub fn others(&self) -> &[(V, Vec<&'a str>)] {
        self.groups.get(1..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_differ_from_the_majority_are_named() {
        let values = [("n1", Some(8)), ("n2", Some(7)), ("n3", Some(8)), ("n4", None)];
        let groups = Groups::new(values);
        assert_eq!(groups.most_common(), Some(&8));
        assert!(groups.has_majority() && !groups.is_uniform());
        assert_eq!(groups.others(), [(7, vec!["n2"])]);
    }

    #[test]
    fn two_different_nodes_have_no_majority() {
        let groups = Groups::new([("n1", Some("b")), ("n2", Some("a"))]);
        assert_eq!(groups.most_common(), Some(&"b"), "the first node's");
        assert!(!groups.has_majority());
        let none = Groups::<u32>::new([("n1", None)]);
        assert!(none.is_uniform() && !none.has_majority() && none.others().is_empty());
    }
}
