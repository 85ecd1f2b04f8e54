//! The communicator test suite and fault tests over libfabric.
//! Skipped with a message if libfabric is missing.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

#[path = "tcp/port_file.rs"]
mod port_file;
#[allow(dead_code, reason = "shared with the TCP tests")]
#[path = "tcp/rank_process.rs"]
mod rank_process;
mod suite;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, engine, join};
use regatta_comm::libfabric::{ProviderChoice, available_providers};
use regatta_comm::{CallKind, Collectives, Comm, CommError, Communicator, ReduceOp, hierarchical};

use rank_process::{
    ARGUMENTS, RankScript, SecretFile, as_rank, assert_victim_lost, environment, own_config,
    secret_file,
};

/// Providers without hardware requirements. shm needs each rank in its own process.
const PROVIDERS: [&str; 2] = ["tcp", "shm"];

/// Set for a rank process.
const RANK_PROCESS: &str = "REGATTA_TEST_SUITE_RANK";

/// Whether a provider is available; prints why not.
fn is_available(provider: &str) -> bool {
    let names = available_providers().inspect_err(|why| println!("skipped: {why}"));
    let Ok(names) = names else { return false };
    let layered = [format!("{provider}/"), format!("{provider};")];
    let found = names.iter().any(|name| layered.iter().any(|start| name.starts_with(start)));
    if !found {
        println!("skipped: libfabric has no {provider}; available: {}", names.join(", "));
    }
    found
}

fn thread_providers() -> impl Iterator<Item = &'static str> {
    providers().filter(|provider| *provider != "shm")
}

fn providers() -> impl Iterator<Item = &'static str> {
    PROVIDERS.into_iter().filter(|provider| is_available(provider))
}

/// The configurations of all ranks on this machine.
fn configs(size: u32, provider: &str) -> Vec<BootstrapConfig> {
    suite::configs(size, |config| config.fabric = ProviderChoice::parse(provider))
}

fn world(size: u32, provider: &str) -> Vec<Communicator> {
    suite::in_parallel(configs(size, provider), |config| join(config).unwrap())
}

/// Runs many cases on one communicator, because opening endpoints is slow.
fn all_collectives(size: u32, provider: &str, counts: &[usize]) {
    let cases = suite::cases(size, counts);
    suite::on_all_ranks(world(size, provider), |comm| {
        cases.iter().for_each(|case| case.check_on_rank(comm));
    });
}

#[test]
fn the_selected_provider_is_used() {
    for provider in thread_providers() {
        let name = |config| engine(config).unwrap().transport_name().to_owned();
        let names = suite::in_parallel(configs(2, provider), name);
        let start = format!("libfabric: {provider}");
        assert!(names.iter().all(|name| name.starts_with(&start)), "{names:?}");
    }
}

#[test]
fn collectives_match_the_reference() {
    for provider in thread_providers() {
        for size in 1..=5 {
            all_collectives(size, provider, &[0, 1, 7, 100, 5003]);
        }
    }
}

#[test]
fn edge_cases() {
    for provider in thread_providers() {
        suite::edge_cases(|size| world(size, provider));
    }
}

#[test]
fn messages_around_the_eager_and_chunk_limits_match_the_reference() {
    for provider in thread_providers() {
        // Around the eager limit and the chunk size, and many chunks.
        let counts = [1000, 2030, 4096, 65_535, 65_537, 600_001];
        suite::on_all_ranks(world(3, provider), |comm| {
            for count in counts {
                for kind in [CallKind::AllReduce, CallKind::AllGather] {
                    let in_place = kind == CallKind::AllReduce;
                    suite::Case { in_place, ..suite::Case::sum(kind, count) }.check_on_rank(comm);
                }
            }
        });
    }
}

#[test]
fn messages_with_other_tags_overtake_large_ones() {
    for provider in thread_providers() {
        suite::messages_with_other_tags_overtake_large_ones(world(2, provider));
    }
}

#[test]
fn a_sender_beyond_its_window_waits_for_credits() {
    for provider in thread_providers() {
        suite::on_all_ranks(world(2, provider), |comm| {
            for i in 0..5000i32 {
                match comm.rank() {
                    0 => comm.send(&[i], 1, 0).unwrap(),
                    _ => {
                        if i == 0 {
                            std::thread::sleep(Duration::from_millis(300));
                        }
                        let mut received = [0i32];
                        comm.receive(&mut received, 0, 0).unwrap();
                        assert_eq!(received, [i]);
                    }
                }
            }
        });
    }
}

#[test]
fn communicators_of_one_rank_run_concurrently() {
    for provider in thread_providers() {
        suite::communicators_of_one_rank_run_concurrently(world(4, provider), 50, |i| {
            1 + i * 997 % 50_000
        });
    }
}

#[test]
fn a_call_mismatch_is_reported_by_all_ranks() {
    for provider in thread_providers() {
        let mut all = configs(3, provider);
        all.iter_mut().for_each(|s| s.desync_after = Duration::from_millis(500));
        let start = Instant::now();
        let errors = suite::on_all_ranks(suite::in_parallel(all, |s| join(s).unwrap()), |comm| {
            comm.barrier().unwrap();
            // Several chunks, so user memory is in use when the call fails.
            let count = if comm.rank() == 1 { 900_000 } else { 1_000_000 };
            let error = comm.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum).unwrap_err();
            std::thread::sleep(Duration::from_millis(100));
            error
        });
        for error in &errors {
            assert!(matches!(error, CommError::CallMismatch { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("900000 f32") && text.contains("1000000 f32"), "{text}");
        }
        assert!(start.elapsed() < Duration::from_secs(15), "{errors:?}");
    }
}

#[test]
fn an_aborted_communicator_does_not_affect_others() {
    for provider in thread_providers() {
        suite::on_all_ranks(world(3, provider), |comm| {
            let split = comm.split(Some(0), 0).unwrap().unwrap();
            comm.barrier().unwrap();
            if comm.rank() == 2 {
                split.abort("test abort");
            }
            let error = (0..100)
                .find_map(|_| split.all_reduce(&mut vec![1.0f32; 1_000_000], ReduceOp::Sum).err());
            assert!(matches!(error, Some(CommError::Aborted { .. })), "{error:?}");
            drop(split);
            let mut sum = vec![1.0f32; 300_000];
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert!(sum.iter().all(|v| *v == 3.0));
        });
    }
}

#[test]
fn hierarchical_communicators_use_libfabric_between_nodes() {
    if !is_available("tcp") {
        return;
    }
    let on_nodes = |size| {
        let mut all = configs(size, "tcp");
        all.iter_mut().for_each(|s| s.node = format!("node{}", s.rank / 2));
        suite::in_parallel(all, |config| hierarchical::join(config).unwrap())
    };
    let cases = suite::cases(4, &[0, 1, 7, 20_000]);
    suite::on_all_ranks(on_nodes(4), |comm| cases.iter().for_each(|case| case.check_on_rank(comm)));
}

#[test]
fn unavailable_providers_are_reported_by_all_ranks() {
    let errors = |all| suite::in_parallel(all, |config| join(config).err().unwrap().to_string());
    for error in errors(configs(2, "nonexistent")) {
        let expected = "rank 0 on node0 cannot use the selected libfabric provider: ";
        assert!(error.contains(expected) && error.contains("REGATTA_FABRIC"), "{error}");
    }
    let mut all = configs(3, "tcp");
    all[2].fabric = ProviderChoice::Tcp;
    for error in errors(all) {
        let expected = "rank 0 on node0 and rank 2 on node2 select different networks";
        assert!(error.contains(expected), "{error}");
    }
    if is_available("shm") {
        let mut all = configs(2, "shm");
        all[1].node = "another".to_owned();
        for error in errors(all) {
            assert!(error.contains("shm cannot reach ranks on other nodes"), "{error}");
        }
        for error in errors(configs(2, "shm")) {
            let named = error.contains("rank 1 on node1");
            assert!(named && error.contains("of the same process"), "{error}");
        }
    }
}

/// Starts rank processes that run a test of this program, configured by `configure`.
fn start(
    ranks: u32,
    provider: &str,
    configure: impl Fn(&mut Command, &[(String, String)]),
) -> (Vec<Child>, SecretFile) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let secret = secret_file(&std::env::temp_dir(), &format!("fabric-{number}"));
    let rank = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut environment = environment(rank, ranks, "127.0.0.1", &secret.0);
        environment.push(("REGATTA_FABRIC".to_owned(), provider.to_owned()));
        configure(&mut command, &environment);
        command.spawn().unwrap()
    };
    ((0..ranks).map(rank).collect(), secret)
}

#[test]
fn rank_processes_pass_the_suite() {
    for provider in providers() {
        for ranks in 1..=5 {
            let (children, _secret) = start(ranks, provider, |command, environment| {
                command.args(["--exact", "suite_rank_main", "--nocapture"]);
                command.env(RANK_PROCESS, "suite").envs(environment.iter().cloned());
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            });
            for (rank, child) in children.into_iter().enumerate() {
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
    if std::env::var_os(RANK_PROCESS).is_none() {
        return;
    }
    let comm = join(own_config()).unwrap();
    let (rank, size) = (comm.rank(), comm.size());
    for case in suite::cases(size, &[0, 1, 7, 100, 5003]) {
        case.check_on_rank(&comm);
    }
    let split = comm.split(Some(rank % 2), -i64::from(rank)).unwrap().unwrap();
    let mut sum = vec![rank as i64; 50_000];
    split.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    let expected: u32 = (0..size).filter(|other| other % 2 == rank % 2).sum();
    assert!(sum.iter().all(|value| *value == i64::from(expected)));
    // Rank 0 runs ahead of rank 1.
    for i in 0..3000i32 {
        let mut received = [0];
        match rank {
            0 if size > 1 => comm.send(&[i], 1, 0).unwrap(),
            1 => {
                comm.receive(&mut received, 0, 0).unwrap();
                assert_eq!(received, [i]);
            }
            _ => {}
        }
    }
    comm.barrier().unwrap();
}

#[test]
fn a_killed_rank_is_named() {
    // Not with shm: a rank killed while it holds a lock in shm's memory blocks all others.
    for provider in thread_providers() {
        for (kind, count, victim) in [
            (CallKind::AllReduce, 1_000_000, 2),
            (CallKind::Broadcast, 300_000, 0),
            (CallKind::AllGather, 1000, 1),
            (CallKind::Barrier, 0, 2),
        ] {
            let script = RankScript::all_reduce(count);
            let script = RankScript { kind, victim, call: 7, after_us: 500, ..script };
            let start_at = Instant::now();
            let (children, _secret) = start(3, provider, |command, environment| {
                command.args(ARGUMENTS);
                as_rank(command, script, environment);
            });
            let killed = children[victim as usize].id();
            assert_victim_lost(children, script, provider);
            assert!(start_at.elapsed() < Duration::from_secs(20), "{provider}: {script:?}");
            let segments = std::fs::read_dir("/dev/shm").unwrap().flatten();
            let mut segments = segments.map(|file| file.file_name().to_string_lossy().into_owned());
            let left = segments.find(|name| name.starts_with(&format!("{killed}:")));
            assert_eq!(left, None, "leaked segment");
        }
    }
}
