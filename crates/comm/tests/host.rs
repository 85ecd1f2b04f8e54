//! Ranks on several nodes, in shared memory and across, do what every communicator must.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod suite;

use std::time::Duration;

use regatta_comm::background::Background;
use regatta_comm::join::{Settings, listen};
use regatta_comm::{Collectives, Comm, ReduceOp, host};
use regatta_wire::secret::Secret;

/// A world of ranks on made-up nodes.
fn world(size: u32, node: impl Fn(u32) -> u32) -> Vec<Background> {
    late_after(Duration::from_secs(300), size, node)
}

fn late_after(desync_after: Duration, size: u32, node: impl Fn(u32) -> u32) -> Vec<Background> {
    let secret = Secret::generate().unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let rank = |rank| Settings {
        node: format!("node{}", node(rank)),
        host: format!("node{}", node(rank)),
        join_within: Duration::from_secs(30),
        desync_after,
        ..Settings::new(rank, size, "127.0.0.1", port, secret.clone())
    };
    let mut all: Vec<Settings> = (0..size).map(rank).collect();
    all[0].listener = Some(listener);
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|s| scope.spawn(|| host::join(s))).collect();
        threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
    })
}

#[test]
fn two_on_each_node() {
    suite::every_kind(&[1, 2, 4, 6], &[0, 1, 7, 20_000], |size| world(size, |rank| rank / 2));
    suite::special(|size| world(size, |rank| rank / 2));
}

#[test]
fn ranks_dealt_in_turn_and_nodes_of_different_sizes() {
    suite::every_kind(&[4, 5, 6], &[1, 7, 20_000], |size| world(size, |rank| rank % 2));
    suite::every_kind(&[4], &[3, 100], |size| world(size, |rank| u32::from(rank == 3)));
}

#[test]
fn all_on_one_node_and_each_on_its_own() {
    suite::every_kind(&[3], &[0, 7, 20_000], |size| world(size, |_| 0));
    suite::every_kind(&[3], &[0, 7, 1000], |size| world(size, |rank| rank));
}

#[test]
fn any_combination_is_right() {
    suite::product(300, |size| world(size, |rank| rank / 4));
}

#[test]
fn any_messages_arrive() {
    suite::any_messages(16, 1..9, |size| world(size, |rank| rank / 3));
}

#[test]
fn any_session_is_right() {
    // Nodes of all sizes, ranks anywhere.
    suite::any_session(24, 1..18, |size| world(size, |rank| (rank * 7 + size) % 5 % 3));
}

#[test]
fn huge_ones_too() {
    suite::huge(|size| world(size, |rank| rank / 2));
}

#[test]
fn ranks_that_disagree_are_told_by_name_whatever_each_is_at() {
    let ends = suite::on_all(world(4, |rank| rank / 2), |comm| {
        // In two levels calls are counted in more than one way.
        (0..3).try_for_each(|_| comm.barrier()).unwrap();
        let mut all = vec![0u8; if comm.rank() == 1 { 12 } else { 0 }];
        match comm.rank() {
            // This one is not even in a collective.
            0 => comm.receive(&mut [0u8], 2, 7),
            3 => comm.gather(&[1i8; 3], &mut [], 1),
            _ => comm.gather(&[1u8; 3], &mut all, 1),
        }?;
        comm.barrier()
    });
    for end in ends {
        let error = end.unwrap_err().to_string();
        let both = error.contains("gather of 12 u8") && error.contains("gather of 12 i8");
        assert!(both && error.contains("rank 3 on node1"), "{error}");
    }
}

#[test]
fn one_that_waits_elsewhere_is_not_blamed() {
    let of: [fn(u32) -> u32; 3] = [|_| 0, |rank| rank / 2, |rank| u32::from(rank > 0)];
    for node in of {
        let world = late_after(Duration::from_secs(2), 3, node);
        suite::blame::one_that_waits_elsewhere_is_not_blamed(world);
    }
}

#[test]
fn a_rank_that_gives_up_is_known_on_every_node() {
    let ended = suite::on_all(world(6, |rank| rank / 2), |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 3 {
            comm.abort("it has had enough");
        }
        let mut data = vec![1.0f32; 100_000];
        (0..1000).try_for_each(|_| comm.all_reduce(&mut data, ReduceOp::Sum))
    });
    for end in ended {
        assert!(end.unwrap_err().to_string().contains("it has had enough"));
    }
}
