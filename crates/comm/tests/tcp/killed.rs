//! A rank is killed, or stopped, in the middle of a collective: all others say so, and who it was.

use std::process::Child;
use std::time::{Duration, Instant};

use regatta_comm::CallKind;
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Orders, said, start};
use crate::seeded::{Seeded, cases};

#[test]
fn any_rank_in_any_collective() {
    for seed in 0..cases(12) {
        let mut seeded = Seeded(seed);
        let ranks = 2 + seeded.below(4) as u32;
        let orders = Orders {
            kind: CallKind::ALL[(seed % 9) as usize],
            count: seeded.one(&[0, 1, 1000, 300_000, 2_000_000]),
            victim: seeded.below(ranks.into()) as u32,
            call: 1 + seeded.below(20),
            after_us: seeded.below(3000),
            lost_after_s: 20,
            desync_after_s: 20,
        };
        let start_at = Instant::now();
        let (children, _secret) = start(ranks, orders, &format!("killed-{seed}"));
        let said: Vec<_> = children.into_iter().map(said).collect();
        for (rank, said) in said.iter().enumerate() {
            if rank as u32 == orders.victim {
                assert_eq!(*said, None, "seed {seed}: {orders:?}");
                continue;
            }
            let said = said.as_deref().unwrap_or("nothing");
            let named = format!("rank {} on ", orders.victim);
            assert!(
                said.contains(&named) && said.contains(" is gone "),
                "seed {seed}: {orders:?}: {said}"
            );
        }
        assert!(start_at.elapsed() < Duration::from_secs(15), "seed {seed}: {orders:?}");
    }
}

/// Waits until a rank has said that it is connected and works.
fn working(child: &mut Child) {
    use std::io::Read;
    let output = child.stdout.as_mut().unwrap();
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"called: 101") {
        output.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
}

fn stopped(victim: u32) {
    let orders = Orders {
        kind: CallKind::AllReduce,
        count: 1000,
        victim: u32::MAX,
        call: 0,
        after_us: 0,
        lost_after_s: 2,
        desync_after_s: 60,
    };
    let (mut children, _secret) = start(3, orders, &format!("stopped-{victim}"));
    working(&mut children[0]);
    let id = Pid::from_child(&children[victim as usize]);
    kill_process(id, Signal::STOP).unwrap();
    let start_at = Instant::now();
    let mut rest = Vec::new();
    for (rank, child) in children.into_iter().enumerate() {
        if rank as u32 == victim {
            rest.push(child);
            continue;
        }
        let said = said(child).unwrap();
        assert!(said.contains(&format!("rank {victim} on ")), "{said}");
        assert!(said.contains("nothing was heard for"), "{said}");
        assert!(start_at.elapsed() < Duration::from_secs(10), "{said}");
    }
    for mut child in rest {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_rank_that_is_stopped_is_lost() {
    stopped(2);
}

#[test]
fn rank_0_too() {
    stopped(0);
}
