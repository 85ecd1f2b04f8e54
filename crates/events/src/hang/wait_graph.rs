//! The wait graph: tells causes from consequences, because a rank that others wait for may itself wait.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Ranks that wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// These ranks.
    pub waiting: BTreeSet<u32>,
    /// The ranks whose progress would end it; empty if they are not known.
    pub blocked_by: BTreeSet<u32>,
}

/// How a wait relates to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The ranks that block it wait in no other.
    Cause,
    /// The ranks that block it wait for ranks that wait for them.
    Cycle,
    /// The ranks that block it wait for ranks that do not wait for them.
    Consequence,
}

/// The ranks among `late` that do not wait for others, if there are any: the rest is their consequence.
pub fn at_fault(late: BTreeSet<u32>, waiting: &BTreeSet<u32>) -> BTreeSet<u32> {
    if late.is_subset(waiting) { late } else { &late - waiting }
}

/// The role of each wait. One depends on another if a rank that blocks it waits there.
pub fn roles(waits: &[Wait]) -> Vec<Role> {
    let mut waits_of: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (i, wait) in waits.iter().enumerate() {
        wait.waiting.iter().for_each(|rank| waits_of.entry(*rank).or_default().push(i));
    }
    let mut depends = vec![BTreeSet::new(); waits.len()];
    let mut dependents = depends.clone();
    for (i, wait) in waits.iter().enumerate() {
        let others = wait.blocked_by.iter().filter_map(|rank| waits_of.get(rank)).flatten();
        for &other in others.filter(|other| **other != i) {
            depends[i].insert(other);
            dependents[other].insert(i);
        }
    }
    let mut visited = BTreeSet::new();
    let is_start = |i: &usize| !visit(*i, &dependents, &mut visited).is_empty();
    let starts: Vec<usize> = (0..waits.len()).filter(is_start).collect();
    // From the last start backwards: what a start depends on has been visited from it before, so that
    // they are a cycle, or from a later start, so that it is visited already.
    visited.clear();
    let mut roles = vec![Role::Consequence; waits.len()];
    for start in starts.into_iter().rev() {
        let component = visit(start, &depends, &mut visited);
        if component.iter().all(|i| depends[*i].is_subset(&component)) {
            let role = if component.len() == 1 { Role::Cause } else { Role::Cycle };
            component.into_iter().for_each(|i| roles[i] = role);
        }
    }
    roles
}

/// Visits a node and those that it leads to; returns those that were not visited before.
fn visit(start: usize, next: &[BTreeSet<usize>], visited: &mut BTreeSet<usize>) -> BTreeSet<usize> {
    let (mut open, mut found) = (vec![start], BTreeSet::new());
    while let Some(i) = open.pop() {
        if visited.insert(i) {
            found.insert(i);
            open.extend(&next[i]);
        }
    }
    found
}

/// These ranks and those that they wait for, directly or not, each with the ranks that it waits for.
pub fn reachable(
    ranks: BTreeSet<u32>,
    waits_for: impl Fn(u32) -> BTreeSet<u32>,
) -> BTreeMap<u32, BTreeSet<u32>> {
    let (mut found, mut open) = (BTreeMap::new(), Vec::from_iter(ranks));
    while let Some(rank) = open.pop() {
        found.entry(rank).or_insert_with(|| {
            let others = waits_for(rank);
            open.extend(&others);
            others
        });
    }
    found
}

/// The ranks that these wait for, directly or not, and that wait for no rank themselves. If there are
/// none, the ranks of cycles (deadlocks).
pub fn root_causes(ranks: BTreeSet<u32>, waits_for: impl Fn(u32) -> BTreeSet<u32>) -> Vec<u32> {
    let wait = |(rank, blocked_by)| Wait { waiting: BTreeSet::from([rank]), blocked_by };
    let waits: Vec<Wait> = reachable(ranks, waits_for).into_iter().map(wait).collect();
    let roles = roles(&waits);
    let first = roles.iter().min();
    let causes = waits.into_iter().zip(&roles).filter(|(_, role)| Some(*role) == first);
    causes.flat_map(|(wait, _)| wait.waiting).collect()
}

/// Whether a wait is long enough to explain a delay: it must cover at least half of it. A rank with
/// several communicators often waits briefly in one of them.
pub fn explains_delay(waited: Duration, delay: Duration) -> bool {
    waited * 2 >= delay
}
