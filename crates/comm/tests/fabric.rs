//! Ranks whose messages go through libfabric do what every communicator must, and never hang.
//! Skipped in words where there is no libfabric.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

#[path = "tcp/meeting.rs"]
mod meeting;
#[allow(dead_code, reason = "it serves the tests of TCP too")]
#[path = "tcp/process.rs"]
mod process;
mod suite;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, engine, join, listen};
use regatta_comm::fabric::{ProviderChoice, available_providers};
use regatta_comm::worker::Communicator;
use regatta_comm::{CallKind, Collectives, Comm, CommError, DType, ReduceOp, host};
use regatta_wire::secret::Secret;

use process::{ARGUMENTS, Kept, Orders, as_rank, environment, own_settings, said, secret_file};

/// The providers that need nothing but a kernel. That of shared memory wants ranks to be processes.
const PROVIDERS: [&str; 2] = ["tcp", "shm"];

/// Set for a process that is a rank: what it is to do.
const SCENE: &str = "REGATTA_TEST_SCENE";

/// Whether a provider is here; if not, that is said.
fn is_here(provider: &str) -> bool {
    let available_providers = match available_providers() {
        Ok(available_providers) => available_providers,
        Err(why) => {
            println!("skipped: {why}");
            return false;
        }
    };
    let layered = [format!("{provider}/"), format!("{provider};")];
    let here =
        available_providers.iter().any(|name| layered.iter().any(|start| name.starts_with(start)));
    if !here {
        println!(
            "skipped: libfabric has no {provider} here, but {}",
            available_providers.join(", ")
        );
    }
    here
}

fn threads() -> impl Iterator<Item = &'static str> {
    here().filter(|provider| *provider != "shm")
}

fn here() -> impl Iterator<Item = &'static str> {
    PROVIDERS.into_iter().filter(|provider| is_here(provider))
}

/// BootstrapConfig for all ranks of a world on this machine.
fn settings(size: u32, provider: &str) -> Vec<BootstrapConfig> {
    let secret = Secret::generate().unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let rank = |rank| BootstrapConfig {
        host: format!("node{rank}"),
        join_within: Duration::from_secs(30),
        fabric: ProviderChoice::parse(provider),
        ..BootstrapConfig::new(rank, size, "127.0.0.1", port, secret.clone())
    };
    let mut all: Vec<BootstrapConfig> = (0..size).map(rank).collect();
    all[0].listener = Some(listener);
    all
}

/// What joining comes to, on each rank.
fn joined<R: Send>(
    all: Vec<BootstrapConfig>,
    join: impl Fn(BootstrapConfig) -> R + Sync,
) -> Vec<R> {
    let join = &join;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|s| scope.spawn(move || join(s))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn world(size: u32, provider: &str) -> Vec<Communicator> {
    joined(settings(size, provider), |settings| join(settings).unwrap())
}

/// One world for many cases: to open endpoints takes its time.
fn every_kind(size: u32, provider: &str, counts: &[usize]) {
    let cases = suite::cases(size, counts);
    suite::on_all_ranks(world(size, provider), |comm| {
        cases.iter().for_each(|case| case.check_on_rank(comm));
    });
}

#[test]
fn messages_really_go_through_libfabric() {
    for provider in threads() {
        let transport_name = joined(settings(2, provider), |settings| {
            engine(settings).unwrap().transport_name().to_owned()
        });
        let start = format!("libfabric: {provider}");
        assert!(
            transport_name.iter().all(|transport_name| transport_name.starts_with(&start)),
            "{transport_name:?}"
        );
    }
}

#[test]
fn every_collective_gives_what_the_reference_gives() {
    for provider in threads() {
        for size in 1..=5 {
            every_kind(size, provider, &[0, 1, 7, 100, 5003]);
        }
    }
}

#[test]
fn special_ones_too() {
    for provider in threads() {
        suite::edge_cases(|size| world(size, provider));
    }
}

#[test]
fn long_messages_of_all_lengths() {
    for provider in threads() {
        // Around the limits of short messages and of parts, and many parts.
        let counts = [1000, 2030, 4096, 65_535, 65_537, 600_001];
        suite::on_all_ranks(world(3, provider), |comm| {
            for count in counts {
                for kind in [CallKind::AllReduce, CallKind::AllGather] {
                    let (dtype, op) = (DType::F32, ReduceOp::Sum);
                    let (sizes, in_place) =
                        (suite::Sizes::Equal(count), kind == CallKind::AllReduce);
                    suite::Case { kind, dtype, op, root: 1, sizes, in_place, seed: 0 }
                        .check_on_rank(comm);
                }
            }
        });
    }
}

#[test]
fn messages_of_other_tags_may_overtake_large_ones() {
    for provider in threads() {
        let (large, small) = (vec![7u8; 3 << 20], [1u8]);
        suite::on_all_ranks(world(2, provider), |comm| match comm.rank() {
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
}

#[test]
fn a_rank_far_ahead_waits_and_nothing_is_lost() {
    for provider in threads() {
        suite::on_all_ranks(world(2, provider), |comm| {
            for i in 0..5000i32 {
                match comm.rank() {
                    0 => comm.send(&[i], 1, 0).unwrap(),
                    _ => {
                        if i == 0 {
                            std::thread::sleep(Duration::from_millis(300));
                        }
                        let mut came = [0i32];
                        comm.receive(&mut came, 0, 0).unwrap();
                        assert_eq!(came, [i]);
                    }
                }
            }
        });
    }
}

#[test]
fn communicators_of_one_rank_work_at_the_same_time() {
    for provider in threads() {
        suite::on_all_ranks(world(4, provider), |comm| {
            let pair = comm.split(Some(comm.rank() / 2), 0).unwrap().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for i in 0..50 {
                        let mut data = vec![i as f32; 1 + i * 997 % 50_000];
                        comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                        assert!(data.iter().all(|v| *v == 4.0 * i as f32));
                    }
                });
                for i in 0..80 {
                    let mut data = vec![i as i64; 1 + i * 31 % 3000];
                    pair.all_reduce(&mut data, ReduceOp::Max).unwrap();
                    assert!(data.iter().all(|v| *v == i as i64));
                }
            });
        });
    }
}

#[test]
fn ranks_that_disagree_are_told_and_those_that_leave_too() {
    for provider in threads() {
        let mut all = settings(3, provider);
        all.iter_mut().for_each(|s| s.desync_after = Duration::from_millis(500));
        let start = Instant::now();
        let errors = suite::on_all_ranks(joined(all, |s| join(s).unwrap()), |comm| {
            comm.barrier().unwrap();
            // Of several parts, so that memory is lent when it goes wrong.
            let count = if comm.rank() == 1 { 900_000 } else { 1_000_000 };
            let error = comm.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum).unwrap_err();
            std::thread::sleep(Duration::from_millis(100));
            error
        });
        for error in &errors {
            assert!(matches!(error, CommError::CallMismatch { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains("900000 f32") && said.contains("1000000 f32"), "{said}");
        }
        assert!(start.elapsed() < Duration::from_secs(15), "{errors:?}");
    }
}

#[test]
fn a_communicator_that_is_given_up_does_not_harm_the_others() {
    for provider in threads() {
        suite::on_all_ranks(world(3, provider), |comm| {
            let part = comm.split(Some(0), 0).unwrap().unwrap();
            comm.barrier().unwrap();
            if comm.rank() == 2 {
                part.abort("it has had enough");
            }
            let error = (0..100)
                .find_map(|_| part.all_reduce(&mut vec![1.0f32; 1_000_000], ReduceOp::Sum).err());
            assert!(matches!(error, Some(CommError::Aborted { .. })), "{error:?}");
            drop(part);
            let mut sum = vec![1.0f32; 300_000];
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert!(sum.iter().all(|v| *v == 3.0));
        });
    }
}

#[test]
fn across_nodes_it_carries_what_shared_memory_does_not() {
    if !is_here("tcp") {
        return;
    }
    let on_nodes = |size| {
        let mut all = settings(size, "tcp");
        all.iter_mut().for_each(|s| s.node = format!("node{}", s.rank / 2));
        joined(all, |settings| host::join(settings).unwrap())
    };
    let cases = suite::cases(4, &[0, 1, 7, 20_000]);
    suite::on_all_ranks(on_nodes(4), |comm| cases.iter().for_each(|case| case.check_on_rank(comm)));
}

#[test]
fn what_cannot_be_is_told_to_all() {
    let errors = |all| joined(all, |settings| join(settings).err().unwrap().to_string());
    for error in errors(settings(2, "carrier-pigeons")) {
        let said = "rank 0 on node0 cannot use libfabric as asked: ";
        assert!(error.contains(said) && error.contains("REGATTA_FABRIC"), "{error}");
    }
    let mut all = settings(3, "tcp");
    all[2].fabric = ProviderChoice::Tcp;
    for error in errors(all) {
        let said = "rank 0 on node0 and rank 2 on node2 want different networks";
        assert!(error.contains(said), "{error}");
    }
    if is_here("shm") {
        let mut all = settings(2, "shm");
        all[1].node = "another".to_owned();
        for error in errors(all) {
            assert!(error.contains("shm does not reach ranks of other nodes"), "{error}");
        }
        for error in errors(settings(2, "shm")) {
            assert!(
                error.contains("rank 1 on node1") && error.contains("of one process"),
                "{error}"
            );
        }
    }
}

/// Ranks that are processes: a function of this program, and what it is to know.
fn start(
    ranks: u32,
    provider: &str,
    rank_is: impl Fn(&mut Command, &[(String, String)]),
) -> (Vec<Child>, Kept) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let secret = secret_file(&std::env::temp_dir(), &format!("fabric-{number}"));
    let rank = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut environment = environment(rank, ranks, "127.0.0.1", &secret.0);
        environment.push(("REGATTA_FABRIC".to_owned(), provider.to_owned()));
        rank_is(&mut command, &environment);
        command.spawn().unwrap()
    };
    ((0..ranks).map(rank).collect(), secret)
}

#[test]
fn ranks_that_are_processes() {
    for provider in here() {
        for ranks in 1..=5 {
            let (children, _secret) = start(ranks, provider, |command, environment| {
                command.args(["--exact", "a_rank_of_the_suite", "--nocapture"]);
                command.env(SCENE, "suite").envs(environment.iter().cloned());
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            });
            for (rank, child) in children.into_iter().enumerate() {
                let ended = child.wait_with_output().unwrap();
                let said = String::from_utf8_lossy(&ended.stderr);
                assert!(ended.status.success(), "{provider}, rank {rank} of {ranks}: {said}");
            }
        }
    }
}

/// The rank itself.
#[test]
fn a_rank_of_the_suite() {
    if std::env::var_os(SCENE).is_none() {
        return;
    }
    let comm = join(own_settings()).unwrap();
    let (rank, size) = (comm.rank(), comm.size());
    for case in suite::cases(size, &[0, 1, 7, 100, 5003]) {
        case.check_on_rank(&comm);
    }
    let part = comm.split(Some(rank % 2), -i64::from(rank)).unwrap().unwrap();
    let mut sum = vec![rank as i64; 50_000];
    part.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    let right: u32 = (0..size).filter(|other| other % 2 == rank % 2).sum();
    assert!(sum.iter().all(|value| *value == i64::from(right)));
    // One is far ahead of the other.
    for i in 0..3000i32 {
        let mut came = [0];
        match rank {
            0 if size > 1 => comm.send(&[i], 1, 0).unwrap(),
            1 => {
                comm.receive(&mut came, 0, 0).unwrap();
                assert_eq!(came, [i]);
            }
            _ => {}
        }
    }
    comm.barrier().unwrap();
}

#[test]
fn a_rank_that_is_killed_is_named() {
    // Whoever is killed while it holds a lock of shm's memory holds up all others: not so here.
    for provider in threads() {
        for (kind, count, victim) in [
            (CallKind::AllReduce, 1_000_000, 2),
            (CallKind::Broadcast, 300_000, 0),
            (CallKind::AllGather, 1000, 1),
            (CallKind::Barrier, 0, 2),
        ] {
            let orders = Orders {
                kind,
                count,
                victim,
                call: 7,
                after_us: 500,
                lost_after_s: 20,
                desync_after_s: 20,
            };
            let start_at = Instant::now();
            let (children, _secret) = start(3, provider, |command, environment| {
                command.args(ARGUMENTS);
                as_rank(command, orders, environment);
            });
            let killed = children[victim as usize].id();
            let said: Vec<_> = children.into_iter().map(said).collect();
            for (rank, said) in said.iter().enumerate() {
                if rank as u32 == victim {
                    assert_eq!(*said, None, "{provider}: {orders:?}");
                    continue;
                }
                let said = said.as_deref().unwrap_or("nothing");
                let named = said.contains(&format!("rank {victim} on "));
                assert!(named && said.contains(" is gone "), "{provider}: {orders:?}: {said}");
            }
            assert!(start_at.elapsed() < Duration::from_secs(20), "{provider}: {orders:?}");
            let memory = std::fs::read_dir("/dev/shm").unwrap().flatten();
            let mut memory = memory.map(|file| file.file_name().to_string_lossy().into_owned());
            let left = memory.find(|name| name.starts_with(&format!("{killed}:")));
            assert_eq!(left, None, "left behind");
        }
    }
}
