//! A rank is killed or stopped during a collective: all other ranks report it as lost.

use std::process::Child;
use std::time::{Duration, Instant};

use regatta_comm::CallKind;
use regatta_testbed::assert_within;
use rustix::process::{Pid, Signal, kill_process};

use crate::rank_process::{MAIN, Operation, RankScript, outcome, start_local};
use crate::seeded_rng::SeededRng;
use crate::suite::case_count;

#[test]
fn a_rank_killed_in_any_collective_is_reported_by_all_others() {
    for seed in 0..u64::from(case_count(12)) {
        let mut seeded = SeededRng(seed);
        let ranks = 2 + seeded.below(4) as u32;
        let script = RankScript {
            operation: Operation::Collective(CallKind::ALL[(seed % 9) as usize]),
            count: seeded.choose(&[0, 1, 1000, 300_000, 2_000_000]),
            victim: seeded.below(ranks.into()) as u32,
            call: 1 + seeded.below(20),
            after_us: seeded.below(3000),
            ..RankScript::all_reduce(0)
        };
        let start_at = Instant::now();
        start_local(ranks, MAIN, &script, &[]).assert_victim_lost(script, &format!("seed {seed}"));
        assert!(start_at.elapsed() < Duration::from_secs(60), "seed {seed}: {script:?}");
    }
}

/// Waits until a rank has completed some calls.
pub fn wait_until_working(child: &mut Child) {
    use std::io::Read;
    let output = child.stdout.as_mut().unwrap();
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"called: 101") {
        output.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
}

#[test]
fn a_stopped_rank_is_lost() {
    [0, 2].into_iter().for_each(stopped_rank_is_lost);
}

fn stopped_rank_is_lost(victim: u32) {
    let script = RankScript { lost_after_s: 4, desync_after_s: 60, ..RankScript::all_reduce(1000) };
    let mut ranks = start_local(3, MAIN, &script, &[]);
    wait_until_working(&mut ranks.children[0]);
    let mut stopped = ranks.children.remove(victim as usize);
    kill_process(Pid::from_child(&stopped), Signal::STOP).unwrap();
    let start_at = Instant::now();
    for child in ranks.children.drain(..) {
        let error = outcome(child).unwrap();
        assert!(error.contains(&format!("rank {victim} on ")), "{error}");
        assert!(error.contains("no heartbeat for"), "{error}");
        assert_within(start_at, Duration::from_secs(30));
    }
    stopped.kill().unwrap();
    stopped.wait().unwrap();
}
