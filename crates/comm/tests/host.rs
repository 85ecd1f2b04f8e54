//! Ranks on several nodes, in shared memory and across, do what every communicator must.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod suite;

use std::time::Duration;

use regatta_comm::background::Background;
use regatta_comm::join::{Settings, listen};
use regatta_comm::{Call, Collectives, Comm, CommError, Counts, DType, Kind, ReduceOp, host};
use regatta_wire::secret::Secret;

/// A world of ranks on made-up nodes.
fn world(size: u32, node: impl Fn(u32) -> u32) -> Vec<Background> {
    patient(size, node, Duration::from_secs(300))
}

/// One that does not wait long.
fn hasty(size: u32, node: impl Fn(u32) -> u32) -> Vec<Background> {
    patient(size, node, Duration::from_secs(1))
}

fn patient(size: u32, node: impl Fn(u32) -> u32, desync_after: Duration) -> Vec<Background> {
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
fn any_layout_of_nodes_is_right() {
    suite::any_layout(24, |nodes| world(nodes.len() as u32, |rank| nodes[rank as usize]));
}

#[test]
fn huge_ones_too() {
    suite::huge(|size| world(size, |rank| rank / 2));
}

/// It is known without a call, and nothing is known of ranks that are only done.
#[test]
fn that_it_is_over_comes_by_itself() {
    for nodes in [1, 3] {
        suite::on_all(world(6, |rank| rank % nodes), |comm| {
            let part = comm.split(Some(0), 0).unwrap().unwrap();
            drop(part);
            assert!(!comm.is_over());
            comm.barrier().unwrap();
            match comm.rank() {
                3 => comm.abort("it has had enough"),
                _ => {
                    while !comm.is_over() {
                        std::thread::yield_now();
                    }
                }
            }
        });
    }
}

/// Ranks 0 and 1 are on one node, 2 and 3 on another. A rank that waits for another node still takes
/// in what comes to it from its own, or the one who sends that could not bring about what it waits
/// for.
#[test]
fn who_waits_for_another_node_keeps_none_of_its_own_waiting() {
    const MANY: u32 = 50;
    let world = patient(4, |rank| rank / 2, Duration::from_secs(20));
    suite::on_all(world, |comm| match comm.rank() {
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

/// A message of a group does not come: all are told of whom, though other ways are clear.
#[test]
fn who_does_not_send_is_named_whichever_way_it_should_have_come() {
    // On the node of rank 0, and on another.
    for silent in [1, 2] {
        let ended = suite::on_all(hasty(4, |rank| rank / 2), |comm| {
            comm.barrier().unwrap();
            let (mut one, mut two) = ([0u8; 9], [0u8; 9]);
            let done = match comm.rank() {
                0 => comm.run_group(vec![receive(1, &mut one), receive(2, &mut two)]),
                3 => comm.barrier(),
                rank if rank == silent => {
                    std::thread::sleep(Duration::from_secs(3));
                    comm.barrier()
                }
                _ => comm.send(&[1u8; 9], 0, 5).and_then(|()| comm.barrier()),
            };
            (comm.rank() != silent).then(|| done.unwrap_err())
        });
        for error in ended.into_iter().flatten() {
            let CommError::Late { missing, .. } = &error else { panic!("{silent}: {error}") };
            assert!(missing.iter().any(|peer| peer.rank == silent), "{silent}: {error}");
        }
    }
}

/// A message of another type is told to all, wherever its two ranks are.
#[test]
fn who_sends_something_else_on_a_node_is_known_on_every_node() {
    let ended = suite::on_all(hasty(4, |rank| rank / 2), |comm| {
        // Others may hear of it while they are still in the barrier before.
        let done = comm.barrier().and_then(|()| match comm.rank() {
            3 => comm.send(&[1.5f32; 3], 2, 5),
            2 => comm.receive(&mut [0i32; 3], 3, 5),
            _ => Ok(()),
        });
        done.and_then(|()| comm.barrier()).unwrap_err()
    });
    for (rank, error) in ended.iter().enumerate() {
        let CommError::Disagree { sequence, ours, theirs, .. } = error else {
            panic!("rank {rank}: {error}")
        };
        let mut said = [ours.to_string(), theirs.to_string()];
        // The two know what they did themselves; the others hear of it from either.
        let other_way = ours.to_string().starts_with("send");
        if rank == 3 || (rank < 2 && other_way) {
            said.reverse();
        }
        assert_eq!(said, ["receive of 3 i32", "send of 3 f32"], "rank {rank}");
        assert_eq!(*sequence, 1, "rank {rank}");
    }
}

/// A message to be received, with tag 5.
fn receive(from: u32, output: &mut [u8]) -> Call<'_> {
    let (kind, dtype, op) = (Kind::Receive, DType::U8, ReduceOp::Sum);
    let counts = Counts::Equal(output.len());
    Call { kind, dtype, op, root: from, tag: 5, counts, input: None, output }
}

#[test]
fn ranks_that_disagree_are_told_by_name_whatever_each_is_at() {
    let ends = suite::on_all(world(4, |rank| rank / 2), |comm| {
        // In two levels calls are counted in more than one way.
        (0..3).try_for_each(|_| comm.barrier())?;
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
        let world = patient(3, node, Duration::from_secs(2));
        suite::blame::one_that_waits_elsewhere_is_not_blamed(world);
    }
}

#[test]
fn a_rank_that_gives_up_is_known_on_every_node() {
    let ended = suite::on_all(world(6, |rank| rank / 2), |comm| {
        // Others may still be in it when one has left it, and gives up.
        let together = comm.barrier();
        if comm.rank() == 3 {
            comm.abort("it has had enough");
        }
        let mut data = vec![1.0f32; 100_000];
        let mut sum = || (0..1000).try_for_each(|_| comm.all_reduce(&mut data, ReduceOp::Sum));
        (together.and_then(|()| sum()), comm.is_over())
    });
    for (end, over) in ended {
        assert!(end.unwrap_err().to_string().contains("it has had enough") && over);
    }
}
