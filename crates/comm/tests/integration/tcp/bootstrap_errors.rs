//! Errors of the bootstrap.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, join};
use regatta_comm::{Collectives, Comm, CommError};
use regatta_testbed::assert_within;
use regatta_wire::secret::Secret;
use rustix::process::{Resource, getrlimit};

use super::configs;
use crate::suite;

/// The error of each rank.
fn errors(all: Vec<BootstrapConfig>) -> Vec<Option<CommError>> {
    suite::in_parallel(all, |config| join(config).err())
}

#[test]
fn inconsistent_missing_and_unreachable_ranks_are_reported_by_all() {
    type Change = fn(&mut Vec<BootstrapConfig>);
    let cases: [(u32, Change, &str); 4] = [
        (3, |all| all[2].world_size = 5, "rank 2 on node2 has WORLD_SIZE 5, rank 0 has 3"),
        (4, |all| all[3].rank = 2, "duplicate rank 2, on node"),
        (4, |all| drop(all.remove(2)), "timed out after 1 s: 1 of 4 ranks missing: rank 2"),
        (2, |all| drop(all.remove(0)), "check that rank 0 is running"),
    ];
    for (size, change, expected) in cases {
        let mut all = suite::configs(size, |config| config.join_timeout = Duration::from_secs(1));
        change(&mut all);
        for error in errors(all) {
            let error = error.unwrap().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}

#[test]
fn an_absurd_world_size_is_rejected_before_memory_is_allocated() {
    for size in [100_000_000, u32::MAX] {
        let config = BootstrapConfig::new(0, size, "127.0.0.1", 0, Secret::generate().unwrap());
        let error = join(config).map(|_| ()).unwrap_err().to_string();
        let expected = format!("WORLD_SIZE is {size}, over the limit of 1048576 ranks; correct it");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn a_rank_with_another_secret_is_rejected_and_reported() {
    let mut all = configs(2);
    all[0].join_timeout = Duration::from_secs(1);
    all[1].secret = Secret::generate().unwrap();
    let errors = errors(all);
    let error = |rank: usize| errors[rank].as_ref().unwrap().to_string();
    assert!(error(1).contains("the peer does not have this job's secret"), "{}", error(1));
    assert!(error(0).contains("rank 1; rejected 1 connections from 127.0.0.1"), "{}", error(0));
}

/// Silent connections are closed after a handshake timeout of 10 s, after the ranks have given up.
#[test]
fn a_flood_of_silent_connections_does_not_keep_ranks_out() {
    let mut all = suite::configs(3, |config| config.join_timeout = Duration::from_secs(8));
    let mut root = all.remove(0);
    root.join_timeout = Duration::from_secs(30);
    let address = ("127.0.0.1", root.master_port);
    // More than rank 0 keeps.
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let flood = (files / 4).min(4096) + 20;
    std::thread::scope(|scope| {
        let root = scope.spawn(|| join(root).map(drop));
        let silent: Vec<_> = (0..flood).map_while(|_| TcpStream::connect(address).ok()).collect();
        assert_eq!(silent.len() as u64, flood);
        let joined = suite::in_parallel(all, |config| join(config).map(drop));
        assert_eq!((root.join().unwrap(), joined), (Ok(()), vec![Ok(()); 2]));
    });
}

/// All ranks but the first three receive the world table from other ranks than rank 0. They exit at
/// once, so that a parent may be gone before its children ask it.
#[test]
fn ranks_receive_the_world_table_along_a_tree() {
    for _ in 0..5 {
        let all = suite::configs(24, |config| config.table_fanout = 2);
        suite::in_parallel(all, |config| {
            let (rank, comm) = (config.rank, join(config).unwrap());
            assert_eq!((comm.rank(), comm.size()), (rank, 24));
            (0..24).for_each(|rank| assert_eq!(comm.peer(rank).host, format!("node{rank}")));
        });
    }
}

#[test]
fn unauthenticated_connections_are_ignored() {
    let all = configs(3);
    let port = all[0].master_port;
    let start = Instant::now();
    let connect = |data: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.write_all(data);
        let _ = stream.read(&mut [0; 100]);
        stream
    };
    let world = std::thread::scope(|scope| {
        scope.spawn(|| connect(b"GET / HTTP/1.1\r\n\r\n"));
        scope.spawn(|| connect(b"REGATTA\n\x00\x4d"));
        let idle: Vec<_> =
            (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let world = super::join_all(all);
        drop(idle);
        world
    });
    assert_within(start, Duration::from_secs(10));
    suite::on_all_ranks(world, |comm| {
        for _ in 0..10 {
            let _ = TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(b"REGATTA\n");
            comm.barrier().unwrap();
        }
    });
}

#[test]
fn a_rank_that_joins_the_next_job_early_waits_for_rank_0() {
    let all = configs(2);
    let port = all[0].master_port;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let secret = all[0].secret.clone();
    let next = |rank| {
        let mut config = BootstrapConfig::new(rank, 2, "127.0.0.1", port, secret.clone());
        config.join_timeout = Duration::from_secs(30);
        config
    };
    let [root, member] = <[_; 2]>::try_from(super::join_all(all)).unwrap_or_else(|_| panic!());
    drop(member);
    std::thread::scope(|scope| {
        let early = scope.spawn(|| join(next(1)).map(drop));
        // The first rank 0 stays for a while, then its port is free.
        std::thread::sleep(Duration::from_millis(300));
        drop(root);
        let listener = suite::listen_when_free(address);
        let mut config = next(0);
        config.listener = Some(listener);
        join(config).unwrap();
        early.join().unwrap().unwrap();
    });
}
