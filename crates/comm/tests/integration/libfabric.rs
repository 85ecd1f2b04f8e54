//! The communicator test suite and fault tests over libfabric.
//! Skipped with a message if libfabric is missing and not required.

use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, engine, join};
use regatta_comm::engine::Engine as _;
use regatta_comm::libfabric::{ProviderChoice, available_providers};
use regatta_comm::{CallKind, Collectives, Comm, CommError, Communicator, ReduceOp, hierarchical};
use regatta_testbed::{REQUIRE_LIBFABRIC, skip};

use crate::rank_process::{MAIN, Operation, RankScript, own_config, own_script, start_local};
use crate::suite;

/// The providers without hardware requirements, if they are available; else prints why not, or fails if
/// they are required. shm needs each rank in its own process.
fn providers() -> Vec<&'static str> {
    let available = available_providers().unwrap_or_else(|why| vec![why]);
    let is_available = |provider: &&str| {
        let layered = [format!("{provider}/"), format!("{provider};")];
        available.iter().any(|name| layered.iter().any(|start| name.starts_with(start)))
    };
    let (found, missing): (Vec<_>, Vec<_>) = ["tcp", "shm"].into_iter().partition(is_available);
    let why = |provider| format!("no provider {provider}: {}", available.join(", "));
    missing.into_iter().for_each(|provider| skip(REQUIRE_LIBFABRIC, why(provider)));
    found
}

/// The configurations of all ranks on this machine.
fn configs(size: u32, provider: &str) -> Vec<BootstrapConfig> {
    suite::configs(size, |config| config.fabric = ProviderChoice::parse(provider))
}

/// Ranks over the tcp provider, which connects ranks of the same process.
fn world(size: u32) -> Vec<Communicator> {
    suite::in_parallel(configs(size, "tcp"), |config| join(config).unwrap())
}

/// [`world`], if the tcp provider is available.
fn tcp_world(size: u32) -> Option<Vec<Communicator>> {
    has_tcp().then(|| world(size))
}

fn has_tcp() -> bool {
    providers().contains(&"tcp")
}

#[test]
fn the_selected_provider_is_used() {
    if has_tcp() {
        let name = |config| engine(config).unwrap().transports().to_string();
        let names = suite::in_parallel(configs(2, "tcp"), name);
        assert!(names.iter().all(|name| name.starts_with("libfabric: tcp")), "{names:?}");
    }
}

#[test]
fn collectives_match_the_reference() {
    if has_tcp() {
        suite::all_collectives(&[1, 2, 3, 4, 5], &[0, 1, 7, 100, 5003], world);
        suite::edge_cases(world);
    }
}

#[test]
fn messages_around_the_eager_and_chunk_limits_match_the_reference() {
    let Some(world) = tcp_world(3) else { return };
    // Around the eager limit and the chunk size, and many chunks.
    let counts = [1000, 2030, 4096, 65_535, 65_537, 600_001];
    suite::on_all_ranks(world, |comm| {
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
    let Some(world) = tcp_world(2) else { return };
    suite::messages_with_other_tags_overtake_large_ones(world);
}

/// Rank 0 sends many messages to rank 1, which starts to receive them later.
fn send_many(comm: &Communicator, count: i32, delay: Duration) {
    if comm.rank() == 1 {
        std::thread::sleep(delay);
    }
    for i in 0..count {
        let mut received = [0];
        match comm.rank() {
            0 if comm.size() > 1 => comm.send(&[i], 1, 0).unwrap(),
            1 => {
                comm.receive(&mut received, 0, 0).unwrap();
                assert_eq!(received, [i]);
            }
            _ => {}
        }
    }
}

#[test]
fn a_sender_beyond_its_window_waits_for_credits() {
    let Some(world) = tcp_world(2) else { return };
    suite::on_all_ranks(world, |comm| send_many(comm, 5000, Duration::from_millis(300)));
}

#[test]
fn communicators_of_one_rank_run_concurrently() {
    let Some(world) = tcp_world(4) else { return };
    suite::communicators_of_one_rank_run_concurrently(world, 50, |i| 1 + i * 997 % 50_000);
}

#[test]
fn a_call_mismatch_is_reported_by_all_ranks() {
    if !has_tcp() {
        return;
    }
    let mut all = configs(3, "tcp");
    all.iter_mut().for_each(|s| s.desync_after = Duration::from_secs(2));
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
    let Some(world) = tcp_world(3) else { return };
    suite::on_all_ranks(world, |comm| {
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

#[test]
fn hierarchical_communicators_use_libfabric_between_nodes() {
    if !has_tcp() {
        return;
    }
    suite::all_collectives(&[4], &[0, 1, 7, 20_000], |size| {
        let mut all = configs(size, "tcp");
        all.iter_mut().for_each(|s| s.node = format!("node{}", s.rank / 2));
        suite::in_parallel(all, |config| hierarchical::join(config).unwrap())
    });
}

#[test]
fn unavailable_providers_are_reported_by_all_ranks() {
    type Change = fn(&mut Vec<BootstrapConfig>);
    let cases: [(u32, &str, Change, [&str; 2]); 4] = [
        (
            2,
            "nonexistent",
            |_| {},
            ["rank 0 on node0 cannot use the selected libfabric provider: ", "REGATTA_FABRIC"],
        ),
        (
            3,
            "tcp",
            |all| all[2].fabric = ProviderChoice::Tcp,
            ["rank 0 on node0 and rank 2 on node2 select different networks", "REGATTA_FABRIC"],
        ),
        (
            2,
            "shm",
            |all| all[1].node = "another".to_owned(),
            ["rank 0 on node0", "shm cannot reach ranks on other nodes"],
        ),
        (2, "shm", |_| {}, ["rank 1 on node1", "of the same process"]),
    ];
    let has_shm = providers().contains(&"shm");
    for (size, provider, change, expected) in cases {
        if provider == "shm" && !has_shm {
            continue;
        }
        let mut all = configs(size, provider);
        change(&mut all);
        for error in suite::in_parallel(all, |config| join(config).err().unwrap().to_string()) {
            assert!(expected.iter().all(|part| error.contains(part)), "{expected:?}: {error}");
        }
    }
}

#[test]
fn rank_processes_pass_the_suite() {
    for provider in providers() {
        for ranks in 1..=5 {
            let variables = [("REGATTA_FABRIC", provider)];
            let mut processes = start_local(ranks, "libfabric::suite_rank_main", &(), &variables);
            for (rank, child) in processes.children.drain(..).enumerate() {
                let output = child.wait_with_output().unwrap();
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{provider}, rank {rank} of {ranks}: {stderr}");
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
    // Rank 0 runs ahead of rank 1.
    send_many(&comm, 3000, Duration::ZERO);
    comm.barrier().unwrap();
}

/// Not with shm: a rank killed while it holds a lock in shm's memory blocks all others.
#[test]
fn a_killed_rank_is_named() {
    if !has_tcp() {
        return;
    }
    for (kind, count, victim) in [
        (CallKind::AllReduce, 1_000_000, 2),
        (CallKind::Broadcast, 300_000, 0),
        (CallKind::AllGather, 1000, 1),
        (CallKind::Barrier, 0, 2),
    ] {
        let (script, operation) = (RankScript::all_reduce(count), Operation::Collective(kind));
        let script = RankScript { operation, victim, call: 7, after_us: 500, ..script };
        let start_at = Instant::now();
        let mut ranks = start_local(3, MAIN, &script, &[("REGATTA_FABRIC", "tcp")]);
        let killed = ranks.children[victim as usize].id();
        ranks.assert_victim_lost(script, "libfabric");
        assert!(start_at.elapsed() < Duration::from_secs(60), "{script:?}");
        let segments = std::fs::read_dir("/dev/shm").unwrap().flatten();
        let mut segments = segments.map(|file| file.file_name().to_string_lossy().into_owned());
        let left = segments.find(|name| name.starts_with(&format!("{killed}:")));
        assert_eq!(left, None, "leaked segment");
    }
}
