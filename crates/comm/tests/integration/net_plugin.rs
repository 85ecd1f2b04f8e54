//! The communicator test suite and fault tests over net plug-ins of NCCL: the fake one, which checks how
//! it is used, and the one that `REGATTA_TEST_NET_PLUGIN` names.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, engine, join};
use regatta_comm::engine::Engine as _;
use regatta_comm::net_plugin::SUPPORTED_VERSIONS;
use regatta_comm::{CallKind, Collectives, Comm, CommError, Communicator, ReduceOp};

use crate::rank_process::{self, MAIN, Operation, RankScript, own_config, own_script, start_local};
use crate::suite;

/// The fake plug-in, which cargo builds beside this program.
fn fake() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libnccl_net_fake.so")
}

/// The plug-in to test in addition to the fake one.
fn other() -> Option<PathBuf> {
    let path = std::env::var_os("REGATTA_TEST_NET_PLUGIN").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: REGATTA_TEST_NET_PLUGIN names no other net plug-in");
    }
    path
}

/// All plug-ins, for tests in several processes.
fn plugins() -> Vec<PathBuf> {
    [fake()].into_iter().chain(other()).collect()
}

/// The configurations of all ranks on this machine, with a version of the fake plug-in.
fn configs(size: u32, version: Option<u32>) -> Vec<BootstrapConfig> {
    suite::configs(size, |config| {
        (config.net_plugin, config.net_plugin_version) = (Some(fake()), version);
    })
}

fn connect(size: u32, version: Option<u32>) -> Vec<Communicator> {
    suite::in_parallel(configs(size, version), |config| join(config).unwrap())
}

/// Ranks over the newest version of the fake plug-in.
fn world(size: u32) -> Vec<Communicator> {
    connect(size, None)
}

#[test]
fn the_newest_or_the_selected_version_is_used() {
    for (version, used) in
        [None].into_iter().chain(SUPPORTED_VERSIONS.map(Some)).map(|v| (v, v.unwrap_or(11)))
    {
        let name = |config| engine(config).unwrap().transports().to_string();
        let expected = format!("net plug-in: Fake (v{used}), 2 NICs: fake0, fake1");
        assert_eq!(suite::in_parallel(configs(2, version), name), [expected.clone(), expected]);
    }
}

#[test]
fn collectives_match_the_reference_over_every_version() {
    for version in SUPPORTED_VERSIONS.map(Some) {
        suite::all_collectives(&[2, 4], &[0, 1, 7, 5003], |size| connect(size, version));
    }
}

#[test]
fn collectives_and_edge_cases_match_the_reference() {
    suite::all_collectives(&[1, 3, 5], &[0, 1, 100, 5003], world);
    suite::edge_cases(world);
}

#[test]
fn messages_around_the_eager_and_chunk_limits_match_the_reference() {
    // Around the eager limit and the chunk size, and many chunks.
    let counts = [1000, 4081, 4082, 4083, 131_071, 131_073, 600_001];
    suite::on_all_ranks(world(3), |comm| {
        for count in counts {
            for kind in [CallKind::AllReduce, CallKind::AllGather] {
                let in_place = kind == CallKind::AllReduce;
                suite::Case { in_place, ..suite::Case::sum(kind, count) }.check_on_rank(comm);
            }
        }
    });
}

#[test]
fn messages_with_other_tags_overtake_large_ones() {
    suite::messages_with_other_tags_overtake_large_ones(world(2));
}

#[test]
fn a_ring_of_first_messages_does_not_deadlock() {
    // No rank has posted a receive when its neighbour connects.
    suite::on_all_ranks(world(4), |comm| {
        let (rank, ranks) = (comm.rank(), comm.size());
        let across = (rank + 2) % ranks;
        comm.send(&[rank as i32], across, 0).unwrap();
        let mut got = [99];
        comm.receive(&mut got, across, 0).unwrap();
        assert_eq!(got, [across as i32]);
    });
}

#[test]
fn a_sender_beyond_its_window_waits_for_credits() {
    suite::on_all_ranks(world(2), |comm| {
        for i in 0..3000 {
            let mut received = [-1];
            match comm.rank() {
                0 => comm.send(&[i], 1, 0).unwrap(),
                _ => {
                    comm.receive(&mut received, 0, 0).unwrap();
                    assert_eq!(received, [i]);
                }
            }
        }
    });
}

#[test]
fn communicators_of_one_rank_run_concurrently() {
    suite::communicators_of_one_rank_run_concurrently(world(4), 20, |i| 1 + i * 997 % 50_000);
}

#[test]
fn a_call_mismatch_is_reported_by_all_ranks() {
    let mut all = configs(3, None);
    all.iter_mut().for_each(|config| config.desync_after = Duration::from_secs(2));
    let start = Instant::now();
    let errors = suite::in_parallel(all, |config| {
        let comm = join(config).unwrap();
        // Several chunks, so user memory is in use when the call fails.
        let count = if comm.rank() == 1 { 900_000 } else { 1_000_000 };
        let mut values = vec![1.0f32; count];
        // The other ranks may fail before the barrier returns.
        let sum = comm.barrier().and_then(|()| comm.all_reduce(&mut values, ReduceOp::Sum));
        let error = sum.unwrap_err();
        std::thread::sleep(Duration::from_millis(100));
        error
    });
    for error in &errors {
        assert!(matches!(error, CommError::CallMismatch { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("900000 f32") && text.contains("1000000 f32"), "{text}");
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{errors:?}");
}

#[test]
fn an_aborted_communicator_does_not_affect_others() {
    suite::on_all_ranks(world(3), |comm| {
        let split = comm.split(Some(0), 0).unwrap().unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            split.abort("test abort");
        }
        let mut sums =
            (0..100).map(|_| split.all_reduce(&mut vec![1.0f32; 1_000_000], ReduceOp::Sum));
        let error = sums.find_map(Result::err);
        assert!(matches!(error, Some(CommError::Aborted { .. })), "{error:?}");
        drop(split);
        let mut sum = vec![1.0f32; 300_000];
        comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        assert!(sum.iter().all(|v| *v == 3.0));
    });
}

/// How many registrations of the fake plug-in overlap memory.
fn registrations(memory: &[u8]) -> usize {
    type Count = unsafe extern "C" fn(usize, usize) -> usize;
    // SAFETY: the library is loaded already, and the function has this type.
    unsafe {
        let library = libloading::Library::new(fake()).unwrap();
        let count = library.get::<Count>(b"regatta_fake_net_registrations").unwrap();
        count(memory.as_ptr().addr(), memory.len())
    }
}

/// Whether the abort lets the message end or closes the connection depends on the load of the machine.
#[test]
fn memory_of_an_aborted_operation_is_not_registered() {
    for round in 0..10 {
        suite::on_all_ranks(world(2), |comm| {
            let split = comm.split(Some(0), 0).unwrap().unwrap();
            let mut bytes = vec![1u8; 16 << 20];
            comm.barrier().unwrap();
            let result = std::thread::scope(|scope| {
                let abort = || {
                    std::thread::sleep(Duration::from_micros(500 * u64::from(round)));
                    split.abort("test abort");
                };
                ((round + comm.rank()) % 2 == 0).then(|| scope.spawn(abort));
                split.broadcast(&mut bytes, 0)
            });
            assert_eq!(registrations(&bytes), 0, "round {round}, {result:?}");
        });
    }
}

#[test]
fn unusable_plugins_are_reported_by_all_ranks() {
    type Change = fn(&mut Vec<BootstrapConfig>);
    let cases: [(Change, [&str; 2]); 5] = [
        (
            |all| all[1].net_plugin = Some("/nonexistent/libnccl-net.so".into()),
            ["rank 1 on node1 cannot use the net plug-in: cannot load", "regatta plugin check"],
        ),
        (
            |all| all[2].net_plugin_version = Some(8),
            [
                "rank 2 on node2 cannot use the net plug-in: it loaded Fake (v8), rank 0 loaded Fake (v11)",
                "REGATTA_NET_PLUGIN_VERSION the same",
            ],
        ),
        (
            |all| all[1].net_plugin_version = Some(12),
            ["exports no ncclNetPlugin_v12", "REGATTA_NET_PLUGIN_VERSION selects a version"],
        ),
        (
            |all| all[0].net_plugin = Some(std::env::current_exe().unwrap()),
            ["rank 0 on node0", "cannot load"],
        ),
        (
            |all| all[2].net_plugin = None,
            ["rank 0 on node0 and rank 2 on node2 select different networks", "REGATTA_NET_PLUGIN"],
        ),
    ];
    for (change, expected) in cases {
        let mut all = configs(3, None);
        change(&mut all);
        for error in suite::in_parallel(all, |config| join(config).err().unwrap().to_string()) {
            assert!(expected.iter().all(|part| error.contains(part)), "{expected:?}: {error}");
        }
    }
}

/// Attempts to see a failure before its effects.
const ATTEMPTS: usize = 5;

/// Not a test itself: connects and reports the error.
#[test]
fn connecting_rank_main() {
    if let Some(()) = own_script() {
        match join(own_config()) {
            Ok(_) => rank_process::report("connected"),
            Err(error) => rank_process::report(error),
        }
    }
}

#[test]
fn failures_of_a_plugin_name_the_function_and_the_rank() {
    let (first, any) = ("rank 0 on ", "rank ");
    for (function, rank, expected) in [
        ("init", first, "init of the net plug-in Fake (v11) failed"),
        ("devices", first, "devices of the net plug-in Fake (v11) failed: ncclSystemError (2)"),
        ("listen", first, "its warning: \"NET/Fake: asked to fail"),
        ("connect", any, "connect of the net plug-in Fake (v11) failed"),
        ("accept", any, "accept of the net plug-in Fake (v11) failed"),
        ("regMr", any, "regMr of the net plug-in Fake (v11) failed"),
        ("irecv", any, "irecv of the net plug-in Fake (v11) failed"),
    ] {
        let (fake, failing) = (fake(), [("NCCL_NET_FAKE_FAIL", function)]);
        let variables = [("REGATTA_NET_PLUGIN", fake.to_str().unwrap()), failing[0]];
        // The peer that fails first closes its connections, which may be what the other one sees.
        let is_named = (0..ATTEMPTS).any(|_| {
            let mut ranks = start_local(2, "net_plugin::connecting_rank_main", &(), &variables);
            ranks.outcomes().into_iter().all(|outcome| {
                let error = outcome.unwrap();
                assert!(error.contains("cannot use the net plug-in"), "{function}: {error}");
                error.contains(rank) && error.contains(expected)
            })
        });
        assert!(is_named, "{function}");
    }
    let fake = fake();
    let variables =
        [("REGATTA_NET_PLUGIN", fake.to_str().unwrap()), ("NCCL_NET_FAKE_DEVICES", "0")];
    for outcome in start_local(2, "net_plugin::connecting_rank_main", &(), &variables).outcomes() {
        let error = outcome.unwrap();
        assert!(error.contains("the net plug-in Fake (v11) has no NIC on this node"), "{error}");
        assert!(error.contains("REGATTA_FABRIC names a libfabric provider"), "{error}");
    }
}

#[test]
fn rank_processes_pass_the_suite() {
    for plugin in plugins() {
        for ranks in [1, 2, 4] {
            let variables = [("REGATTA_NET_PLUGIN", plugin.to_str().unwrap())];
            let mut processes = start_local(ranks, "net_plugin::suite_rank_main", &(), &variables);
            for (rank, child) in processes.children.drain(..).enumerate() {
                let output = child.wait_with_output().unwrap();
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{plugin:?}, rank {rank} of {ranks}: {stderr}");
            }
        }
    }
}

/// The rank process.
#[test]
fn suite_rank_main() {
    let Some(()) = own_script() else { return };
    let comm = join(own_config()).unwrap();
    suite::check_rank_process(&comm);
    let (rank, size) = (comm.rank(), comm.size());
    suite::group_on_rank(&comm);
    // The last message is large, and its sender exits at once.
    let mut last = vec![rank as i32; 1_000_000];
    match rank {
        0 if size > 1 => comm.send(&last, size - 1, 3).unwrap(),
        _ if size > 1 && rank == size - 1 => {
            comm.receive(&mut last, 0, 3).unwrap();
            assert!(last.iter().all(|value| *value == 0));
        }
        _ => {}
    }
}

#[test]
fn a_killed_rank_is_named() {
    for plugin in plugins() {
        for (kind, count, victim) in [
            (CallKind::AllReduce, 1_000_000, 2),
            (CallKind::Broadcast, 300_000, 0),
            (CallKind::AllGather, 1000, 1),
            (CallKind::Barrier, 0, 2),
        ] {
            let (script, operation) = (RankScript::all_reduce(count), Operation::Collective(kind));
            let script = RankScript { operation, victim, call: 7, after_us: 500, ..script };
            let start_at = Instant::now();
            let variables = [("REGATTA_NET_PLUGIN", plugin.to_str().unwrap())];
            let mut ranks = start_local(3, MAIN, &script, &variables);
            ranks.assert_victim_lost(script, "net plug-in");
            assert!(start_at.elapsed() < Duration::from_secs(60), "{script:?}");
        }
    }
}
