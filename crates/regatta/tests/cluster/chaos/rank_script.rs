//! The shell scripts of the ranks.
//!
//! A rank writes to both streams, applies its conditions, creates the file `at-RANK` to signal that
//! faults may be injected, and waits.

use std::path::Path;

use crate::chaos::case::{Case, Condition, JobFault};

/// The first lines of a rank on standard output and standard error.
pub fn greeting(rank: u32) -> (String, String) {
    (format!("hello of {rank}\n"), format!("complaint of {rank}\n"))
}

/// The message that a rank writes on exit.
pub fn exit_message(rank: u32) -> String {
    format!("exit of {rank}\n")
}

/// A line of large outputs.
pub const LINE: &str = "one of the very many lines that this rank writes to its output..";

/// The command of every rank, with the folder as argument.
pub const COMMAND: [&str; 3] = ["sh", "-c", ". \"$0/rank-$RANK.sh\""];

/// Two daemons that ignore signals in their own sessions: one keeps the rank's output open, the other
/// is an orphan.
const DAEMONS: &str = "\
setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 600; done' &
(setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 600; done' >/dev/null 2>&1 &)
";
/// Dies from TERM.
const NO_TRAP: &str = ": > at-$RANK\nexec sleep 600\n";
const IGNORES_TERM: &str =
    "trap ': > term-$RANK' TERM\n: > at-$RANK\nwhile :; do sleep 600 & wait; done\n";
/// Held by a rank and its descendants; must not be held by two attempts at once.
const LOCK: &str = "exec 9> lock-$RANK\nflock --nonblock 9 || echo $RANK $(hostname) >> overlaps\n";
/// Ends after a restart.
const FIRST_ATTEMPT_WAITS: &str =
    "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || { echo exit of $RANK; exit 0; }\n";
const WAIT_FOR_GO: &str = ": > at-$RANK\nuntil [ -e go ]; do sleep 0.1; done\n";

/// Writes the scripts of all ranks.
pub fn write(case: &Case, folder: &Path) {
    for rank in 0..case.ranks() {
        let path = folder.join(format!("rank-{rank}.sh"));
        std::fs::write(path, script(case, rank, folder)).unwrap();
    }
}

fn script(case: &Case, rank: u32, folder: &Path) -> String {
    let mut text = format!("cd {}\necho $$ > pid-$RANK\n", folder.display());
    text += "echo hello of $RANK\necho complaint of $RANK >&2\n";
    if case.spares > 0 {
        text += &(LOCK.to_owned() + FIRST_ATTEMPT_WAITS);
    }
    for condition in &case.conditions {
        match *condition {
            Condition::Daemons { rank: r } if r == rank => text += DAEMONS,
            Condition::Writes { mib } => text += &write_lines(mib),
            _ => {}
        }
    }
    text + &main_part(case, rank)
}

fn write_lines(mib: u32) -> String {
    format!("yes '{LINE}' | head -n {}\n", line_count(mib))
}

/// Number of lines in an output of this size.
pub fn line_count(mib: u32) -> usize {
    ((mib as usize) << 20) / (LINE.len() + 1)
}

fn main_part(case: &Case, rank: u32) -> String {
    let exits = |f: &JobFault| match *f {
        JobFault::Exits { rank: r, code } if r == rank => Some(code),
        _ => None,
    };
    if let Some(code) = case.faults.iter().find_map(exits) {
        return format!("{WAIT_FOR_GO}exit {code}\n");
    }
    match () {
        () if case.has(|t| *t == Condition::IgnoresTerm { rank }) => IGNORES_TERM.to_owned(),
        () if case.succeeds() && lines(case) > 0 => {
            let lines = format!("seq --format 'line %g of {rank}' {}", lines(case));
            format!(": > at-$RANK\n{lines}\necho exit of $RANK\n")
        }
        () if case.succeeds() => {
            let output = |t: &Condition| match *t {
                Condition::WritesAtExit { rank: r, mib } if r == rank => Some(write_lines(mib)),
                _ => None,
            };
            let first = case.conditions.iter().find_map(output).unwrap_or_default();
            format!("{WAIT_FOR_GO}{first}echo exit of $RANK\n")
        }
        () if is_signalled(case, rank) => NO_TRAP.to_owned(),
        () => wait_for_term(case),
    }
}

/// Waits for TERM, also if it ends `sleep` first. Writes the exit message once, even after several
/// TERMs.
fn wait_for_term(case: &Case) -> String {
    let save = |t: &Condition| match *t {
        Condition::Saves { ms } => Some(format!("sleep {}.{:03};", ms / 1000, ms % 1000)),
        _ => None,
    };
    let save = case.conditions.iter().find_map(save).unwrap_or_default();
    let trap = format!("trap 'trap \"\" TERM; {save} echo exit of $RANK; exit 0' TERM");
    format!("{trap}\n: > at-$RANK\nwhile :; do sleep 600 & wait; done\n")
}

/// Number of lines that each rank writes before it exits.
pub fn lines(case: &Case) -> u32 {
    let count = |t: &Condition| match *t {
        Condition::Lines { count } => Some(count),
        _ => None,
    };
    case.conditions.iter().find_map(count).unwrap_or(0)
}

/// Whether a rank dies from the signal sent to the job.
fn is_signalled(case: &Case, rank: u32) -> bool {
    rank == 0 && case.faults == [JobFault::Term]
}
