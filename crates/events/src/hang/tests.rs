//! Hangs of jobs of which everything is known.

use std::time::Duration;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::*;

fn set(ranks: &[u32]) -> BTreeSet<u32> {
    ranks.iter().copied().collect()
}

/// The root causes for rank 0 in this wait graph.
fn for_rank_0(waits: &[(u32, &[u32])]) -> Vec<u32> {
    let of = |rank| waits.iter().find(|(of, _)| *of == rank).map(|(_, next)| set(next));
    root_causes(set(&[0]), |rank| of(rank).unwrap_or_default())
}

#[test]
fn ranks_without_outgoing_edges_are_root_causes() {
    assert_eq!(for_rank_0(&[]), [0]);
    assert_eq!(for_rank_0(&[(0, &[3]), (3, &[1])]), [1]);
    assert_eq!(for_rank_0(&[(0, &[1, 2, 3]), (1, &[2, 3]), (2, &[1, 0])]), [3]);
    assert_eq!(for_rank_0(&[(0, &[1, 2]), (5, &[0])]), [1, 2]);
}

#[test]
fn without_them_a_cycle_is_the_root_cause() {
    assert_eq!(for_rank_0(&[(0, &[1]), (1, &[0])]), [0, 1]);
    // A rank that waits for a cycle is not part of it.
    assert_eq!(for_rank_0(&[(0, &[4, 2]), (4, &[2]), (2, &[3]), (3, &[2])]), [2, 3]);
    assert_eq!(for_rank_0(&[(0, &[4]), (4, &[7]), (7, &[9]), (9, &[4])]), [4, 7, 9]);
}

#[test]
fn short_waits_do_not_explain_a_delay() {
    let second = Duration::from_secs(1);
    assert!(explains_delay(second * 2, second * 4));
    assert!(!explains_delay(second, second * 4));
}

#[test]
fn late_ranks_that_wait_themselves_are_not_at_fault() {
    assert_eq!(at_fault(set(&[1, 2, 3]), &set(&[0, 1, 2])), set(&[3]));
    assert_eq!(at_fault(set(&[1, 2]), &set(&[0, 1, 2])), set(&[1, 2]), "a cycle, or a consequence");
    assert_eq!(at_fault(set(&[]), &set(&[0])), set(&[]));
}

/// The ranks that a rank waits for, directly or not.
fn waits_on(waits: &[Wait], rank: u32) -> BTreeSet<u32> {
    let of = |rank| {
        let waits = waits.iter().filter(|wait| wait.waiting.contains(&rank));
        waits.flat_map(|wait| &wait.blocked_by).copied().collect::<BTreeSet<u32>>()
    };
    let mut all = BTreeSet::new();
    of(rank).into_iter().for_each(|next| all.extend(reachable(set(&[next]), of).into_keys()));
    all
}

/// Waits whose ranks at fault were selected as collectors do.
fn waits() -> impl Strategy<Value = Vec<Wait>> {
    let wait = (btree_set(0u32..8, 1..4), btree_set(0u32..8, 0..4));
    vec(wait, 1..7).prop_map(|all| {
        let waiting: BTreeSet<u32> = all.iter().flat_map(|(waiting, _)| waiting).copied().collect();
        let wait = |(own, late): (BTreeSet<u32>, BTreeSet<u32>)| {
            let blocked_by = at_fault(&late - &own, &waiting);
            Wait { waiting: own, blocked_by }
        };
        all.into_iter().map(wait).collect()
    })
}

fn stages() -> impl Strategy<Value = BTreeMap<u32, Stage>> {
    let all = vec![Stage::NotEntered, Stage::Enqueued, Stage::Started, Stage::Completed];
    btree_map(0u32..6, prop::sample::select(all), 0..6)
}

proptest! {
    /// Every hang has a cause, which may be unknown, or a cycle; neither is the consequence of another.
    #[test]
    fn consequences_are_never_named_as_causes(waits in waits()) {
        let roles = roles(&waits);
        prop_assert!(roles.iter().any(|role| *role != Role::Consequence), "{waits:?}");
        let waiting: BTreeSet<u32> = waits.iter().flat_map(|wait| &wait.waiting).copied().collect();
        for (wait, role) in waits.iter().zip(&roles) {
            let free = wait.blocked_by.is_disjoint(&waiting);
            prop_assert_eq!(*role == Role::Cause, free, "{:?}", waits);
            for rank in wait.blocked_by.iter().filter(|_| *role == Role::Cycle) {
                let others = waits_on(&waits, *rank);
                prop_assert!(!others.is_disjoint(&wait.waiting), "{waits:?}");
                prop_assert!(others.is_subset(&waiting), "{waits:?}");
            }
        }
    }

    /// Root causes wait for no rank, or for each other; whoever waits waits for one of them.
    #[test]
    fn root_causes_explain_every_wait(edges in vec(btree_set(0u32..7, 0..3), 7)) {
        let next = |rank: u32| -> BTreeSet<u32> {
            edges[rank as usize].iter().copied().filter(|other| *other != rank).collect()
        };
        let causes = root_causes(set(&[0]), next);
        prop_assert!(!causes.is_empty());
        let free = |rank: &u32| next(*rank).is_empty();
        let found = reachable(set(&[0]), next);
        if found.keys().any(free) {
            prop_assert!(causes.iter().eq(found.keys().filter(|rank| free(rank))));
        }
        for cause in &causes {
            prop_assert!(found.contains_key(cause));
            let back = reachable(set(&[*cause]), next);
            prop_assert!(back.keys().all(|rank| causes.contains(rank)), "{causes:?}");
        }
    }

    /// The cause names ranks by what they did, and there is one unless all are equally far.
    #[test]
    fn judgement_names_ranks_that_differ(
        calls in btree_map(1u64..4, vec((0u32..6, 0u8..2), 0..5), 0..3),
        stages in stages(),
    ) {
        match judge(&calls, &stages, PartialEq::eq) {
            Cause::Mismatch { sequence, majority, minority } => {
                prop_assert_ne!(majority.1, minority.1);
                prop_assert!(calls[&sequence].contains(&majority));
                prop_assert!(calls[&sequence].contains(&minority));
            }
            Cause::Behind(ranks, lowest) => {
                prop_assert!(!ranks.is_empty());
                for (rank, stage) in &stages {
                    prop_assert_eq!(ranks.contains(rank), *stage == lowest);
                    prop_assert!(*stage >= lowest);
                }
            }
            Cause::Unknown(_) => {
                let different: BTreeSet<Stage> = stages.into_values().collect();
                prop_assert!(different.len() <= 1 && !different.contains(&Stage::NotEntered));
            }
        }
    }
}
