//! Ranks that are connected by TCP do what every communicator must, and never hang.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

#[path = "tcp/algorithms.rs"]
mod algorithms;
#[path = "tcp/bound.rs"]
mod bound;
#[path = "tcp/cluster.rs"]
mod cluster;
#[path = "tcp/disagree.rs"]
mod disagree;
#[path = "tcp/joining.rs"]
mod joining;
#[path = "tcp/killed.rs"]
mod killed;
#[path = "tcp/meeting.rs"]
mod meeting;
#[path = "tcp/odd.rs"]
mod odd;
#[path = "tcp/process.rs"]
mod process;
#[path = "tcp/seeded.rs"]
mod seeded;
mod suite;

use std::time::Duration;

use regatta_comm::bootstrap::{BootstrapConfig, join, listen};
use regatta_comm::worker::Communicator;
use regatta_comm::{CallKind, Collectives, Comm, DType, ReduceOp};
use regatta_wire::secret::Secret;

/// BootstrapConfig for all ranks of a world on this machine.
fn settings(size: u32) -> Vec<BootstrapConfig> {
    let secret = Secret::generate().unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let rank = |rank| BootstrapConfig {
        host: format!("node{rank}"),
        join_within: Duration::from_secs(20),
        ..BootstrapConfig::new(rank, size, "127.0.0.1", port, secret.clone())
    };
    let mut all: Vec<BootstrapConfig> = (0..size).map(rank).collect();
    all[0].listener = Some(listener);
    all
}

fn joined(all: Vec<BootstrapConfig>) -> Vec<Communicator> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|s| scope.spawn(|| join(s))).collect();
        threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
    })
}

fn world(size: u32) -> Vec<Communicator> {
    joined(settings(size))
}

#[test]
fn every_collective_gives_what_the_reference_gives() {
    suite::all_collectives(&[1, 2, 3, 4, 5, 8, 9], &[0, 1, 7, 100, 5003], world);
}

#[test]
fn special_ones_too() {
    suite::edge_cases(world);
}

#[test]
fn any_combination_is_right() {
    suite::sampled_combinations(600, world);
}

#[test]
fn any_messages_arrive() {
    suite::random_messages(16, 1..9, world);
    suite::random_message_groups(16, 1..9, world);
}

#[test]
fn any_session_is_right() {
    suite::random_sessions(24, 1..18, world);
}

#[test]
fn huge_ones_too() {
    suite::large_buffers(world);
}

#[test]
fn many_ranks_and_large_messages() {
    let case = |kind, count: usize, in_place| suite::Case {
        kind,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        root: 1,
        sizes: suite::Sizes::Equal(count),
        in_place,
        seed: 3,
    };
    for kind in
        [CallKind::AllReduce, CallKind::ReduceScatter, CallKind::Barrier, CallKind::Broadcast]
    {
        case(kind, 1000, false).check(world(17));
    }
    for kind in CallKind::ALL {
        let in_place = kind == CallKind::AllReduce || kind == CallKind::ReduceScatter;
        case(kind, 1_000_003, in_place).check(world(3));
    }
}

#[test]
fn messages_of_other_tags_may_overtake_large_ones() {
    let (large, small) = (vec![7u8; 3 << 20], [1u8]);
    suite::on_all_ranks(world(2), |comm| match comm.rank() {
        0 => {
            comm.send(&large, 1, 1).unwrap();
            comm.send(&small, 1, 2).unwrap();
            comm.barrier().unwrap();
        }
        _ => {
            let (mut a, mut b) = (vec![0; large.len()], [0]);
            comm.receive(&mut b, 0, 2).unwrap();
            comm.receive(&mut a, 0, 1).unwrap();
            assert!(a == large && b == small);
            comm.barrier().unwrap();
        }
    });
}

#[test]
fn communicators_of_one_rank_work_at_the_same_time() {
    suite::on_all_ranks(world(4), |comm| {
        let pair = comm.split(Some(comm.rank() / 2), 0).unwrap().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..200 {
                    let mut data = vec![i as f32; 1 + i * 97 % 5000];
                    comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    assert!(data.iter().all(|v| *v == 4.0 * i as f32));
                }
            });
            for i in 0..300 {
                let mut data = vec![i as i64; 1 + i * 31 % 3000];
                pair.all_reduce(&mut data, ReduceOp::Max).unwrap();
                assert!(data.iter().all(|v| *v == i as i64));
            }
        });
    });
}
