//! Tells causes from consequences: a rank that others wait for may itself wait in another operation.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Role};

/// Assigns the roles. A finding depends on another if a rank that it waits for waits there.
pub(super) fn assign_roles(findings: &mut [Finding]) {
    let graph = Graph::new(findings);
    let is_cause = |i: &usize| graph.depends[*i].is_empty();
    let causes: Vec<usize> = (0..findings.len()).filter(is_cause).collect();
    let explained = graph.dependents_of(&causes);
    for (i, finding) in findings.iter_mut().enumerate() {
        let on_cycle =
            || graph.depends[i].iter().any(|next| graph.dependents_of(&[i]).contains(next));
        finding.role = match is_cause(&i) {
            true => Role::Cause,
            false if !explained.contains(&i) && on_cycle() => Role::Cycle,
            false => Role::Consequence,
        };
        if finding.role == Role::Cycle && !finding.ranks.is_empty() {
            finding.message += "; these ranks wait for each other: they may call the collectives in \
                                different orders";
        }
    }
}

struct Graph {
    depends: Vec<BTreeSet<usize>>,
    reverse: Vec<BTreeSet<usize>>,
}

impl Graph {
    fn new(findings: &[Finding]) -> Self {
        let mut waits: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (i, finding) in findings.iter().enumerate() {
            finding.waiting.iter().for_each(|rank| waits.entry(*rank).or_default().push(i));
        }
        let mut graph = Self {
            depends: vec![BTreeSet::new(); findings.len()],
            reverse: vec![BTreeSet::new(); findings.len()],
        };
        for (i, finding) in findings.iter().enumerate() {
            let others = finding.blocked_by.iter().filter_map(|rank| waits.get(rank)).flatten();
            for other in others.copied().filter(|other| *other != i) {
                graph.depends[i].insert(other);
                graph.reverse[other].insert(i);
            }
        }
        graph
    }

    /// The findings that depend on one of these, directly or not; and these.
    fn dependents_of(&self, start: &[usize]) -> BTreeSet<usize> {
        let mut found: BTreeSet<usize> = start.iter().copied().collect();
        let mut next: Vec<usize> = start.to_vec();
        while let Some(i) = next.pop() {
            next.extend(self.reverse[i].iter().copied().filter(|i| found.insert(*i)));
        }
        found
    }
}
