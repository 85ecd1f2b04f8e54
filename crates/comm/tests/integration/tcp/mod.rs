//! The communicator test suite and fault tests over TCP.

mod algorithms;
mod bootstrap_errors;
mod call_mismatch;
mod network_faults;
mod nic_binding;
mod random_mismatch;
mod rank_failure;

use regatta_comm::bootstrap::{BootstrapConfig, join};
use regatta_comm::{CallKind, Communicator};

use crate::suite;

/// The configurations of all ranks on this machine.
fn configs(size: u32) -> Vec<BootstrapConfig> {
    suite::configs(size, |_| {})
}

fn join_all(all: Vec<BootstrapConfig>) -> Vec<Communicator> {
    suite::in_parallel(all, |config| join(config).unwrap())
}

fn world(size: u32) -> Vec<Communicator> {
    join_all(configs(size))
}

#[test]
fn collectives_match_the_reference() {
    suite::all_collectives(&[1, 2, 3, 4, 5, 8, 9], &[0, 1, 7, 100, 5003], world);
    suite::edge_cases(world);
    suite::large_buffers(world);
}

#[test]
fn sampled_combinations_match_the_reference() {
    suite::sampled_combinations(600, world);
}

#[test]
fn random_messages_are_delivered() {
    suite::random_messages(16, 1..9, world);
    suite::random_groups(16, 1..9, world);
}

#[test]
fn random_sessions_match_the_reference() {
    suite::random_sessions(24, 1..18, world);
}

#[test]
fn many_ranks_and_large_messages_match_the_reference() {
    use CallKind::{AllReduce, Barrier, Broadcast, ReduceScatter};
    for kind in [AllReduce, ReduceScatter, Barrier, Broadcast] {
        suite::Case::sum(kind, 1000).check(world(17));
    }
    for kind in CallKind::ALL {
        let in_place = matches!(kind, AllReduce | ReduceScatter);
        suite::Case { in_place, ..suite::Case::sum(kind, 1_000_003) }.check(world(3));
    }
}

#[test]
fn messages_with_other_tags_overtake_large_ones() {
    suite::messages_with_other_tags_overtake_large_ones(world(2));
}

#[test]
fn communicators_of_one_rank_run_concurrently() {
    suite::communicators_of_one_rank_run_concurrently(world(4), 200, |i| 1 + i * 97 % 5000);
}
