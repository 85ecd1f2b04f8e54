//! Ranks that are killed or stopped in the middle of their traffic.

use std::time::Duration;

use regatta_fabric::library::library;
use regatta_fabric::shm_lock::SegmentLock;
use regatta_testbed::{assert_contains, wait_until};

use crate::child::{Scenario, Task};
use crate::process::{Folder, Rank, command, providers, segments};
use crate::with_providers;

/// Longer than the timeout of the ranks.
const STOPPED: Duration = Duration::from_millis(3500);
const TIMEOUT_S: &str = "3";

fn start(task: &Task, provider: &str) -> Rank {
    let mut command = command(task);
    command.env("REGATTA_FABRIC", provider).env("REGATTA_NET_TIMEOUT", TIMEOUT_S);
    Rank::start(task, command)
}

/// Kills a rank in the middle of its traffic, after a last step with the processes of survivor and victim. The
/// survivor gets errors, and continues with another rank.
fn kill(provider: &str, before: impl FnOnce(u32, u32)) {
    let folder = Folder::new();
    let survivor = super::task(Scenario::Survivor, 11, 21, &folder);
    let victim = Task { scenario: Scenario::Victim, rank: 1, ..survivor.clone() };
    let mut survived = start(&survivor, provider);
    let mut killed = start(&victim, provider);
    survived.wait_for(&survivor.busy_path());
    killed.wait_for(&victim.busy_path());
    let process = killed.id();
    before(survived.id(), process);
    killed.signal(libc::SIGKILL);
    assert!(!killed.finish().0.success());
    let replacement = Task { scenario: Scenario::Replacement, ..victim };
    let replacement = start(&replacement, provider);
    let text = survived.succeed();
    replacement.succeed();
    assert_contains(&text, [&*format!("(process {process}): ")]);
    assert_eq!(segments(process), Vec::<String>::new(), "{provider}");
}

#[test]
fn a_killed_peer_is_an_error_and_can_be_replaced() {
    with_providers(|provider| kill(provider, |_, _| {}));
}

/// Holds the locks of a process's segments, as a peer that is killed may do.
fn hold_locks(process: u32) {
    let version = library().unwrap().version();
    let names = segments(process);
    assert!(!names.is_empty());
    for name in names {
        match SegmentLock::map(format!("fi_shm://{name}").as_bytes(), version) {
            Some(lock) => lock.acquire(),
            None => eprintln!("skipped: segments of libfabric {version:?} have no such lock"),
        }
    }
}

#[test]
fn a_peer_killed_with_a_lock_of_the_provider_is_an_error() {
    if !providers().any(|provider| provider == "shm") {
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| kill("shm", |_, victim| hold_locks(victim)));
        scope.spawn(|| kill("shm", |survivor, _| hold_locks(survivor)));
    });
}

#[test]
fn a_stopped_peer_is_no_error() {
    with_providers(|provider| {
        let folder = Folder::new();
        let task = super::task(Scenario::Stop, 9, 31, &folder);
        let task = Task { bytes: 16 << 20, ..task };
        let [one, other] = [0, 1].map(|rank| start(&Task { rank, ..task.clone() }, provider));
        let stat = format!("/proc/{}/stat", other.id());
        let is_stopped = || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
        };
        wait_until("rank 1 to stop", is_stopped);
        std::thread::sleep(STOPPED);
        other.signal(libc::SIGCONT);
        let texts = [one, other].map(Rank::succeed);
        assert!(texts.iter().all(|text| !text.contains("2: NET/Regatta")), "{texts:?}");
    });
}
