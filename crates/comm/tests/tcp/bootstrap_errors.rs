//! Errors of the bootstrap.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, join};
use regatta_comm::{Collectives, CommError};
use regatta_wire::secret::Secret;

use crate::{configs, suite};

/// The error of each rank.
fn errors(all: Vec<BootstrapConfig>) -> Vec<Option<CommError>> {
    suite::in_parallel(all, |config| join(config).err())
}

fn assert_all_report(all: Vec<BootstrapConfig>, expected: &str) {
    for error in errors(all) {
        let error = error.unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn different_world_sizes_are_rejected() {
    let mut all = configs(3);
    all[2].world_size = 5;
    assert_all_report(all, "rank 2 on node2 has WORLD_SIZE 5, rank 0 has 3");
}

#[test]
fn duplicate_ranks_are_rejected() {
    let mut all = configs(4);
    all[3].rank = 2;
    assert_all_report(all, "duplicate rank 2, on node");
}

#[test]
fn a_missing_rank_is_named() {
    let mut all = configs(4);
    all.remove(2);
    all.iter_mut().for_each(|s| s.join_timeout = Duration::from_secs(1));
    assert_all_report(all, "timed out after 1 s: 1 of 4 ranks missing: rank 2");
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

#[test]
fn an_unreachable_rank_0_is_reported() {
    let mut all = configs(2);
    all.remove(0);
    all[0].join_timeout = Duration::from_millis(300);
    assert_all_report(all, "check that rank 0 is running");
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
        let world = crate::join_all(all);
        drop(idle);
        world
    });
    assert!(start.elapsed() < Duration::from_secs(10));
    suite::on_all_ranks(world, |comm| {
        for _ in 0..10 {
            let _ = TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(b"REGATTA\n");
            comm.barrier().unwrap();
        }
    });
}
