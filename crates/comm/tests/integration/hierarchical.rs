//! Conformance and fault tests of the hierarchical communicator on simulated nodes.

use std::time::Duration;

use regatta_comm::bootstrap::BootstrapConfig;
use regatta_comm::{
    Call, CallKind, Collectives, Comm, CommError, Communicator, Counts, DType, ReduceOp,
    hierarchical,
};

use crate::suite;

const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A world of ranks on simulated nodes.
fn world(size: u32, node: impl Fn(u32) -> u32) -> Vec<Communicator> {
    world_with(size, node, Duration::from_secs(300))
}

fn world_with(size: u32, node: impl Fn(u32) -> u32, desync_after: Duration) -> Vec<Communicator> {
    let configure = |config: &mut BootstrapConfig| {
        config.node = format!("node{}", node(config.rank));
        config.host = config.node.clone();
        config.desync_after = desync_after;
    };
    suite::in_parallel(suite::configs(size, configure), |c| hierarchical::join(c).unwrap())
}

#[test]
fn collectives_match_the_reference() {
    // Two ranks per node, cyclic, non-uniform, on a single node, and one rank per node.
    suite::all_collectives(&[1, 2, 4, 6], &[0, 1, 7, 20_000], |size| world(size, |rank| rank / 2));
    suite::all_collectives(&[4, 5, 6], &[1, 7, 20_000], |size| world(size, |rank| rank % 2));
    suite::all_collectives(&[4], &[3, 100], |size| world(size, |rank| u32::from(rank == 3)));
    suite::all_collectives(&[3], &[0, 7, 20_000], |size| world(size, |_| 0));
    suite::all_collectives(&[3], &[0, 7, 1000], |size| world(size, |rank| rank));
    suite::edge_cases(|size| world(size, |rank| rank / 2));
    suite::large_buffers(|size| world(size, |rank| rank / 2));
}

#[test]
fn sampled_combinations_match_the_reference() {
    suite::sampled_combinations(300, |size| world(size, |rank| rank / 4));
}

#[test]
fn random_messages_sessions_and_layouts_match_the_reference() {
    suite::random_messages(16, 1..9, |size| world(size, |rank| rank / 3));
    // Non-uniform nodes with scattered ranks.
    suite::random_sessions(24, 1..18, |size| world(size, |rank| (rank * 7 + size) % 5 % 3));
    suite::random_node_layouts(24, |nodes| world(nodes.len() as u32, |rank| nodes[rank as usize]));
}

/// Without a call; closing a split communicator is not a failure.
#[test]
fn abort_is_detected_without_a_call() {
    for nodes in [1, 3] {
        suite::on_all_ranks(world(6, |rank| rank % nodes), |comm| {
            let part = comm.split(Some(0), 0).unwrap().unwrap();
            drop(part);
            assert!(!comm.has_failed());
            let passed = comm.barrier();
            match comm.rank() {
                3 => {
                    passed.unwrap();
                    comm.abort("out of data");
                }
                // Rank 3 may abort before this rank has left the barrier.
                _ => {
                    while !comm.has_failed() {
                        std::thread::yield_now();
                    }
                }
            }
        });
    }
}

/// Ranks 0 and 1 are on one node, 2 and 3 on another. Rank 1 waits for another node but must still
/// drain messages from its own node, because rank 0 can only then send what rank 1 waits for.
#[test]
fn rank_waiting_for_another_node_drains_local_messages() {
    const MANY: u32 = 50;
    let world = world_with(4, |rank| rank / 2, Duration::from_secs(20));
    suite::on_all_ranks(world, |comm| match comm.rank() {
        0 => {
            (0..MANY).for_each(|tag| comm.send(&[tag as i32], 1, tag).unwrap());
            comm.send(&[7i32], 2, 0).unwrap();
        }
        1 => {
            let mut got = [0i32];
            comm.receive(&mut got, 2, 0).unwrap();
            assert_eq!(got, [7]);
            for tag in (0..MANY).rev() {
                comm.receive(&mut got, 0, tag).unwrap();
                assert_eq!(got, [tag as i32]);
            }
        }
        2 => {
            let mut got = [0i32];
            comm.receive(&mut got, 0, 0).unwrap();
            comm.send(&got, 1, 0).unwrap();
        }
        _ => {}
    });
}

/// Both transports are polled: a missing message is reported even if the other transport is idle.
#[test]
fn missing_sender_is_reported_on_either_transport() {
    // On the node of rank 0, and on another node.
    for silent in [1, 2] {
        let ended = suite::on_all_ranks(world_with(4, |rank| rank / 2, SHORT_TIMEOUT), |comm| {
            comm.barrier().unwrap();
            let (mut one, mut two) = ([0u8; 9], [0u8; 9]);
            let done = match comm.rank() {
                0 => comm.run_group(vec![receive(1, &mut one), receive(2, &mut two)]),
                3 => comm.barrier(),
                rank if rank == silent => {
                    suite::timeouts::make_no_call(comm);
                    comm.barrier()
                }
                _ => comm.send(&[1u8; 9], 0, 5).and_then(|()| comm.barrier()),
            };
            (comm.rank() != silent).then(|| done.unwrap_err())
        });
        for error in ended.into_iter().flatten() {
            let CommError::Timeout { missing, .. } = &error else { panic!("{silent}: {error}") };
            assert!(missing.iter().any(|peer| peer.rank == silent), "{silent}: {error}");
        }
    }
}

/// A mismatch between two ranks of a node is reported on all nodes.
#[test]
fn message_mismatch_within_a_node_is_reported_on_every_node() {
    let ended = suite::on_all_ranks(world_with(4, |rank| rank / 2, SHORT_TIMEOUT), |comm| {
        // The error may reach other ranks while they are still in the barrier.
        let done = comm.barrier().and_then(|()| match comm.rank() {
            3 => comm.send(&[1.5f32; 3], 2, 5),
            2 => comm.receive(&mut [0i32; 3], 3, 5),
            _ => Ok(()),
        });
        done.and_then(|()| comm.barrier()).unwrap_err()
    });
    for (rank, error) in ended.iter().enumerate() {
        let CommError::CallMismatch { sequence, ours, theirs, .. } = error else {
            panic!("rank {rank}: {error}")
        };
        let mut calls = [ours.to_string(), theirs.to_string()];
        // The two ranks report their own call first; the others report either order.
        let sender_first = ours.to_string().starts_with("send");
        if rank == 3 || (rank < 2 && sender_first) {
            calls.reverse();
        }
        assert_eq!(calls, ["receive of 3 i32", "send of 3 f32"], "rank {rank}");
        assert_eq!(*sequence, 1, "rank {rank}");
    }
}

/// A message to be received, with tag 5.
fn receive(from: u32, output: &mut [u8]) -> Call<'_> {
    let counts = Counts::Equal(output.len());
    Call { root: from, tag: 5, ..Call::new(CallKind::Receive, DType::U8, counts, output) }
}

#[test]
fn call_mismatch_reports_both_calls_independently_of_other_ranks() {
    let ends = suite::on_all_ranks(world(4, |rank| rank / 2), |comm| {
        // The engines of a hierarchical communicator count calls differently.
        (0..3).try_for_each(|_| comm.barrier())?;
        let mut all = vec![0u8; if comm.rank() == 1 { 12 } else { 0 }];
        match comm.rank() {
            // Not even in a collective.
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
fn rank_waiting_in_another_communicator_is_not_reported() {
    let of: [fn(u32) -> u32; 3] = [|_| 0, |rank| rank / 2, |rank| u32::from(rank > 0)];
    for node in of {
        let world = world_with(3, node, Duration::from_secs(2));
        suite::timeouts::rank_waiting_in_another_communicator_is_not_reported(world);
    }
}

#[test]
fn abort_reaches_ranks_on_every_node() {
    let ended = suite::on_all_ranks(world(6, |rank| rank / 2), |comm| {
        // Others may still be in the barrier when rank 3 aborts.
        let together = comm.barrier();
        if comm.rank() == 3 {
            comm.abort("out of data");
        }
        let mut data = vec![1.0f32; 100_000];
        let mut sum = || (0..1000).try_for_each(|_| comm.all_reduce(&mut data, ReduceOp::Sum));
        (together.and_then(|()| sum()), comm.has_failed())
    });
    for (end, over) in ended {
        assert!(end.unwrap_err().to_string().contains("out of data") && over);
    }
}
