//! What every rank must have been told.

use std::path::Path;
use std::time::Duration;

use regatta_wire::secret::Secret;

use crate::case::{By, Case, Fault};
use crate::rank::patience;
use crate::words::Said;

/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(3);

/// Whether what all ranks said is right.
pub fn all(case: &Case, said: &[Option<Said>]) -> Result<(), String> {
    let told = || {
        let line = |(rank, said): (usize, &Option<Said>)| match said {
            Some(said) => format!("  rank {rank}: {said:?}\n"),
            None => format!("  rank {rank} said nothing\n"),
        };
        said.iter().enumerate().map(line).collect::<String>()
    };
    let wrong = |why: String| Err(format!("{why}\n{}", told()));
    let silent = |rank: usize| {
        let dead = [Fault::Killed, Fault::KilledEarly, Fault::Exits, Fault::Stopped];
        dead.contains(&case.fault) && rank == case.victim
    };
    for (rank, one) in said.iter().enumerate() {
        match one {
            None if silent(rank) => {}
            None => return wrong(format!("rank {rank} said nothing")),
            Some(_) if silent(rank) => return wrong(format!("rank {rank} spoke")),
            Some(one) => {
                if let Err(why) = rank_is_right(case, rank, one) {
                    return wrong(format!("rank {rank}: {why}"));
                }
            }
        }
    }
    if !same_story(case, said) {
        return wrong("ranks tell different stories".to_owned());
    }
    Ok(())
}

/// Whether what a rank said is right, taken by itself.
fn rank_is_right(case: &Case, rank: usize, said: &Said) -> Result<(), String> {
    let Some(kind) = said.kind.as_deref() else {
        return if case.may_end_well() { Ok(()) } else { Err("all went well".to_owned()) };
    };
    if said.took_ms > time_for(case, rank).as_millis() as u64 {
        return Err(format!("it took {} ms", said.took_ms));
    }
    // Rank 0 stays until the slow ones have gone.
    if said.left != "nothing" && !(case.fault == Fault::Slow && rank == 0) {
        return Err(format!("left behind: {}", said.left));
    }
    if case.survivors().contains(&rank) && said.again != "well" {
        return Err(format!("joining again: {}", said.again));
    }
    if let Some((named, host)) =
        said.named.iter().find(|(r, host)| *r >= case.ranks() || case.host(*r) != *host)
    {
        return Err(format!("rank {named} is not on {host}"));
    }
    if is_cut_off(case, rank) || is_accused(case, said) {
        return Ok(());
    }
    match names_the_cause(case, kind, said) {
        true => Ok(()),
        false => Err("it does not name the cause".to_owned()),
    }
}

/// How long a call may take that ends with an error: what is set, and until rank 0 has found out, or
/// does not answer; of one that is gone, nothing. One that has slept itself could not return.
fn time_for(case: &Case, rank: usize) -> Duration {
    let (lost_after, desync_after) = patience(case);
    let set = match case.fault {
        Fault::Silent | Fault::Woken if rank == case.victim => return Duration::MAX,
        Fault::Calls(_) | Fault::Silent => desync_after,
        Fault::Stopped | Fault::Woken if case.by == By::Memory => desync_after,
        Fault::Stopped | Fault::Woken | Fault::Cut | Fault::CutBetween { .. } => lost_after,
        Fault::Slow => lost_after + desync_after,
        _ => return SLACK,
    };
    set + Duration::from_secs(6) + SLACK
}

/// Whether a rank cannot know what happened: it is the one to whom it did.
fn is_cut_off(case: &Case, rank: usize) -> bool {
    match case.fault {
        Fault::Cut | Fault::Slow => case.nodes[rank] == case.nodes[case.victim],
        Fault::Silent | Fault::Woken | Fault::Calls(_) => rank == case.victim,
        _ => false,
    }
}

/// Whether a rank was told that others waited for it, and for the victim: it is told who did so.
fn is_accused(case: &Case, said: &Said) -> bool {
    let late =
        matches!(case.fault, Fault::Silent | Fault::Stopped | Fault::Woken | Fault::Calls(_));
    let victim = format!("rank {} on ", case.victim);
    let waited = said.text.split_once("nothing came from ");
    late && said.kind.as_deref() == Some("Aborted")
        && waited.is_some_and(|(_, who)| who.contains(&victim))
}

fn names_the_cause(case: &Case, kind: &str, said: &Said) -> bool {
    let victim = said.ranks().contains(&case.victim);
    let node = |rank: usize| case.nodes[rank];
    let parts = case.script.iter().any(|step| step.in_part);
    let on_victims_node = said.ranks().iter().any(|r| node(*r) == node(case.victim));
    match case.fault {
        Fault::Killed | Fault::Exits => kind == "Lost" && victim,
        // Before they are connected some only know that it does not come.
        Fault::KilledEarly => {
            let told = victim || said.text.contains(&format!("rank {}", case.victim));
            // An error of a split may name ranks as the part would number them.
            matches!(kind, "Lost" | "Join" | "Aborted") && (told || case.colours > 1)
        }
        Fault::Stopped | Fault::Woken if case.by == By::Memory => kind == "Late" && victim,
        Fault::Stopped | Fault::Woken => kind == "Lost" && victim,
        Fault::Aborts => kind == "Aborted" && victim,
        // And nobody else.
        Fault::Silent => kind == "Late" && said.ranks() == [case.victim],
        // In another communicator it is only seen who does not come.
        Fault::Calls(_) => (kind == "Disagree" || (kind == "Late" && parts)) && victim,
        Fault::Cut => kind == "Lost" && on_victims_node,
        Fault::CutBetween { other } => {
            let on_other = said.ranks().iter().any(|r| node(*r) == other);
            kind == "Path" && on_victims_node && on_other
        }
        // To rank 0, if it is slow itself, all others are.
        Fault::Slow => {
            let right = on_victims_node || node(0) == node(case.victim);
            matches!(kind, "Lost" | "Path" | "Late") && right
        }
        Fault::Paused => false,
    }
}

/// Whether all ranks that can know are told the same kind of thing.
fn same_story(case: &Case, said: &[Option<Said>]) -> bool {
    let late_in_parts = case.script.iter().any(|step| step.in_part);
    let may_differ = matches!(case.fault, Fault::Slow | Fault::KilledEarly)
        || (late_in_parts && matches!(case.fault, Fault::Calls(_) | Fault::Silent));
    let known = said.iter().enumerate().filter(|(rank, _)| !is_cut_off(case, *rank));
    let said = known.filter_map(|(_, said)| said.as_ref()).filter(|said| !is_accused(case, said));
    let mut kinds: Vec<Option<&str>> = said.map(|said| said.kind.as_deref()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.len() <= 1 || may_differ
}

/// Whether no memory and no socket of a case has a name any more.
pub fn nothing_left(folder: &Path) -> Result<(), String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut names = vec![folder.display().to_string()];
    for name in ["first-secret", "again-secret"] {
        let secret = std::fs::read_to_string(folder.join(name)).unwrap();
        names.push(Secret::from_hex(&secret).unwrap().derive("shared memory").to_hex());
    }
    if let Some(name) = names.iter().find(|name| sockets.contains(*name)) {
        return Err(format!("a socket of {name} is left"));
    }
    let memory = std::fs::read_dir("/dev/shm").map_err(|error| error.to_string())?;
    // Other tests have their folders there while they run.
    let ours = |name: &str| name.contains("regatta") && !name.starts_with("regatta-test-");
    match memory.flatten().find(|entry| ours(&entry.file_name().to_string_lossy())) {
        Some(entry) => Err(format!("{:?} is left in /dev/shm", entry.file_name())),
        None => Ok(()),
    }
}
