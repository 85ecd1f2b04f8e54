//! Checks of the outcomes of all ranks.

use std::path::Path;
use std::time::Duration;

use regatta_wire::secret::Secret;

use super::case::{ChaosCase, Fault};
use super::outcome::RankOutcome;
use super::rank::timeouts;

/// Extra time on a busy machine.
const SLACK: Duration = Duration::from_secs(3);

/// Checks the outcomes of all ranks.
pub fn all(case: &ChaosCase, outcomes: &[Option<RankOutcome>]) -> Result<(), String> {
    let checked = outcomes.iter().enumerate().try_for_each(|(rank, outcome)| {
        let deadly = [Fault::Killed, Fault::KilledInBootstrap, Fault::Exited, Fault::Stopped];
        let dies = deadly.contains(&case.fault) && rank == case.victim;
        let result = match outcome {
            None if dies => Ok(()),
            None => Err("no outcome".to_owned()),
            Some(_) if dies => Err("survived".to_owned()),
            Some(outcome) => check_rank(case, rank, outcome),
        };
        result.map_err(|why| format!("rank {rank}: {why}"))
    });
    let agree = outcomes_agree(case, outcomes).then_some(());
    let checked =
        checked.and_then(|()| agree.ok_or_else(|| "the ranks report different errors".to_owned()));
    checked.map_err(|why| format!("{why}\n{outcomes:#?}"))
}

fn check_rank(case: &ChaosCase, rank: usize, outcome: &RankOutcome) -> Result<(), String> {
    let Some(kind) = outcome.kind.as_deref() else {
        return if case.may_succeed() { Ok(()) } else { Err("no error".to_owned()) };
    };
    if case.must_succeed() {
        return Err("an error after a pause".to_owned());
    }
    if outcome.took_ms > time_limit(case, rank).as_millis() as u64 {
        return Err(format!("it took {} ms", outcome.took_ms));
    }
    // Rank 0 stays until the slow ranks have disconnected.
    if outcome.leaks != "none" && !(case.fault == Fault::SlowNode && rank == 0) {
        return Err(format!("leaked: {}", outcome.leaks));
    }
    if case.survivors().contains(&rank) && outcome.rejoin != "ok" {
        return Err(format!("cannot join again: {}", outcome.rejoin));
    }
    if let Some((named, host)) = outcome.named.iter().find(|(r, host)| !case.is_on(*r, host)) {
        return Err(format!("rank {named} is not on {host}"));
    }
    if is_cut_off(case, rank) || is_reported_late(case, outcome) {
        return Ok(());
    }
    let named = names_cause(case, kind, outcome);
    named.then_some(()).ok_or_else(|| "the error does not name the cause".to_owned())
}

/// The time limit of a failing call: the timeout under test plus the time for rank 0 to diagnose it.
/// A victim that slept itself has none.
fn time_limit(case: &ChaosCase, rank: usize) -> Duration {
    let (lost_after, desync_after) = timeouts(case);
    let timeout = match case.fault {
        Fault::Late | Fault::Resumed if rank == case.victim => return Duration::MAX,
        Fault::Mismatch(_) | Fault::Late => desync_after,
        Fault::Stopped | Fault::Resumed | Fault::NodeCut | Fault::LinkCut { .. } => lost_after,
        Fault::SlowNode => lost_after + desync_after,
        _ => return SLACK,
    };
    timeout + Duration::from_secs(6) + SLACK
}

/// Whether a rank cannot know the cause, because it is the victim.
fn is_cut_off(case: &ChaosCase, rank: usize) -> bool {
    match case.fault {
        Fault::NodeCut | Fault::SlowNode => case.nodes[rank] == case.nodes[case.victim],
        Fault::Late | Fault::Resumed | Fault::Mismatch(_) => rank == case.victim,
        _ => false,
    }
}

/// Whether a rank was aborted because others timed out waiting for it and for the victim.
fn is_reported_late(case: &ChaosCase, outcome: &RankOutcome) -> bool {
    let late =
        matches!(case.fault, Fault::Late | Fault::Stopped | Fault::Resumed | Fault::Mismatch(_));
    let victim = format!("rank {} on ", case.victim);
    let waited = outcome.text.split_once("waiting for ");
    late && outcome.kind.as_deref() == Some("Aborted")
        && waited.is_some_and(|(_, late)| late.contains(&victim))
}

fn names_cause(case: &ChaosCase, kind: &str, outcome: &RankOutcome) -> bool {
    let victim = outcome.ranks().contains(&case.victim);
    let node = |rank: usize| case.nodes[rank];
    let splits = case.script.iter().any(|step| step.in_split);
    let on_victims_node = outcome.ranks().iter().any(|r| node(*r) == node(case.victim));
    match case.fault {
        Fault::Killed | Fault::Exited | Fault::Stopped | Fault::Resumed => {
            kind == "RankLost" && victim
        }
        // During the bootstrap some ranks only see that the victim does not register.
        Fault::KilledInBootstrap => {
            let named = victim || outcome.text.contains(&format!("rank {}", case.victim));
            // An error of `split` may name ranks of the new communicator.
            matches!(kind, "RankLost" | "Bootstrap" | "Aborted") && (named || case.colours > 1)
        }
        Fault::Aborted => kind == "Aborted" && victim,
        // And no other rank.
        Fault::Late => kind == "Timeout" && outcome.ranks() == [case.victim],
        // In another communicator, only the late rank is visible.
        Fault::Mismatch(_) => (kind == "CallMismatch" || (kind == "Timeout" && splits)) && victim,
        Fault::NodeCut => kind == "RankLost" && on_victims_node,
        Fault::LinkCut { other } => {
            let on_other = outcome.ranks().iter().any(|r| node(*r) == other);
            kind == "LinkBroken" && on_victims_node && on_other
        }
        // To a slow rank 0, all other ranks seem slow.
        Fault::SlowNode => {
            let named = on_victims_node || node(0) == node(case.victim);
            matches!(kind, "RankLost" | "LinkBroken" | "Timeout") && named
        }
        Fault::Paused | Fault::AllPaused => false,
    }
}

/// Whether all ranks that can know the cause report the same error variant.
fn outcomes_agree(case: &ChaosCase, outcomes: &[Option<RankOutcome>]) -> bool {
    let splits = case.script.iter().any(|step| step.in_split);
    let may_differ = matches!(case.fault, Fault::SlowNode | Fault::KilledInBootstrap)
        || (splits && matches!(case.fault, Fault::Mismatch(_) | Fault::Late));
    let informed = outcomes.iter().enumerate().filter(|(rank, _)| !is_cut_off(case, *rank));
    let informed = informed.filter_map(|(_, outcome)| outcome.as_ref());
    let informed = informed.filter(|outcome| !is_reported_late(case, outcome));
    let mut kinds: Vec<Option<&str>> = informed.map(|outcome| outcome.kind.as_deref()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.len() <= 1 || may_differ
}

/// Checks that no shared memory or socket name of a case is left.
pub fn no_leaks(dir: &Path) -> Result<(), String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut names = vec![dir.display().to_string()];
    for name in ["first-secret", "rejoin-secret"] {
        let secret = std::fs::read_to_string(dir.join(name)).unwrap();
        names.push(Secret::from_hex(&secret).unwrap().derive("shared memory").to_hex());
    }
    if let Some(name) = names.iter().find(|name| sockets.contains(*name)) {
        return Err(format!("leaked socket {name}"));
    }
    let memory = std::fs::read_dir("/dev/shm").map_err(|error| error.to_string())?;
    // Directories there belong to other tests.
    let is_ours = |entry: &std::fs::DirEntry| {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        is_file && entry.file_name().to_string_lossy().contains("regatta")
    };
    match memory.flatten().find(is_ours) {
        Some(entry) => Err(format!("{:?} leaked in /dev/shm", entry.file_name())),
        None => Ok(()),
    }
}
