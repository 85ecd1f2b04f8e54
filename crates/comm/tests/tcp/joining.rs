//! Ranks that cannot be connected are told why.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, join};
use regatta_comm::{Collectives, CommError};
use regatta_wire::secret::Secret;

use crate::{settings, suite};

/// What each rank is told.
fn errors(all: Vec<BootstrapConfig>) -> Vec<Option<CommError>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|s| scope.spawn(|| join(s).err())).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn all_say(all: Vec<BootstrapConfig>, says: &str) {
    for error in errors(all) {
        let error = error.unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn worlds_of_different_sizes() {
    let mut all = settings(3);
    all[2].ranks = 5;
    all_say(all, "rank 2 on node2 is one of 5 ranks, rank 0 one of 3");
}

#[test]
fn two_of_one_rank() {
    let mut all = settings(4);
    all[3].rank = 2;
    for error in errors(all) {
        let error = error.unwrap().to_string();
        assert!(error.contains("two of rank 2, on node"), "{error}");
    }
}

#[test]
fn a_rank_that_is_missing_is_named() {
    let mut all = settings(4);
    all.remove(2);
    all.iter_mut().for_each(|s| s.join_within = Duration::from_secs(1));
    all_say(all, "after 1 s still missing of 4: rank 2");
}

#[test]
fn a_rank_of_another_job_is_refused_and_the_others_hear_of_it() {
    let mut all = settings(2);
    all[0].join_within = Duration::from_secs(1);
    all[1].secret = Secret::generate().unwrap();
    let errors = errors(all);
    let said = |rank: usize| errors[rank].as_ref().unwrap().to_string();
    assert!(said(1).contains("has not the secret of this job"), "{}", said(1));
    assert!(said(0).contains("rank 1; refused 1 times from 127.0.0.1"), "{}", said(0));
}

#[test]
fn nobody_at_the_address() {
    let mut all = settings(2);
    all.remove(0);
    all[0].join_within = Duration::from_millis(300);
    all_say(all, "see whether rank 0 runs");
}

#[test]
fn strangers_do_no_harm() {
    let all = settings(3);
    let port = all[0].port;
    let start = Instant::now();
    let says = |what: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.write_all(what);
        let _ = stream.read(&mut [0; 100]);
        stream
    };
    let world = std::thread::scope(|scope| {
        scope.spawn(|| says(b"GET / HTTP/1.1\r\n\r\n"));
        scope.spawn(|| says(b"REGATTA\n\x00\x4d"));
        let silent: Vec<_> =
            (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let world = crate::joined(all);
        drop(silent);
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
