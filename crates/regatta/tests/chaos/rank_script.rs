//! What the ranks of a case do, as shell scripts in the folder of the case.
//!
//! A rank greets on both streams, does what is special about it, writes the file `at-RANK` to tell
//! that it is where a fault may hit it, and then waits for its end.

use std::path::Path;

use crate::case::{Case, Fault, Half, Trait};

/// What a rank writes first.
pub fn greeting(rank: u32) -> (String, String) {
    (format!("hello of {rank}\n"), format!("complaint of {rank}\n"))
}

/// What a rank writes that is told to end.
pub fn last_words(rank: u32) -> String {
    format!("last words of {rank}\n")
}

/// A line of those that writers write.
pub const LINE: &str = "what a rank writes that has very much to say, 64 bytes in a line";

/// The command of every rank; the folder is its argument.
pub const COMMAND: [&str; 3] = ["sh", "-c", ". \"$0/rank-$RANK.sh\""];

/// Two daemons: one has its own session, ignores what can be ignored and holds the rank's output
/// open; the other is an orphan besides.
const DAEMONS: &str = "\
setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 600; done' &
(setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 600; done' >/dev/null 2>&1 &)
";
/// Says its last words once, however often it is told to end.
const WAIT: &str = "\
trap 'trap \"\" TERM; echo last words of $RANK; exit 0' TERM
: > at-$RANK
sleep 600 & wait
";
/// Has no process below it: nobody could find that if both halves of its agent are killed.
const PLAIN: &str = ": > at-$RANK\nexec sleep 600\n";
const STUBBORN: &str =
    "trap ': > told-$RANK' TERM\n: > at-$RANK\nwhile :; do sleep 600 & wait; done\n";
const GO: &str = ": > at-$RANK\nuntil [ -e go ]; do sleep 0.1; done\n";

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
    for special in &case.traits {
        match *special {
            Trait::Daemons { rank: r } if r == rank => text += DAEMONS,
            Trait::Writes { mib } => {
                text += &write_much(mib);
            }
            _ => {}
        }
    }
    text + &rest(case, rank)
}

fn write_much(mib: u32) -> String {
    format!("yes '{LINE}' | head -n {}\n", lines(mib))
}

/// How many lines a writer writes.
pub fn lines(mib: u32) -> usize {
    ((mib as usize) << 20) / (LINE.len() + 1)
}

fn rest(case: &Case, rank: u32) -> String {
    let exits = |f: &Fault| match *f {
        Fault::Exits { rank: r, code } if r == rank => Some(code),
        _ => None,
    };
    if let Some(code) = case.faults.iter().find_map(exits) {
        return format!("{GO}exit {code}\n");
    }
    let halves = |f: &Fault| {
        matches!(f, Fault::Agent { half: Half::Both, .. } | Fault::Coordinator { half: Half::Both })
    };
    match () {
        () if case.has(|t| *t == Trait::Stubborn { rank }) => STUBBORN.to_owned(),
        () if case.ends_well() => {
            let pours = |t: &Trait| match *t {
                Trait::Pours { rank: r, mib } if r == rank => Some(write_much(mib)),
                _ => None,
            };
            let first = case.traits.iter().find_map(pours).unwrap_or_default();
            format!("{GO}{first}echo last words of $RANK\n")
        }
        () if case.faults.iter().any(halves) || is_signalled(case, rank) => PLAIN.to_owned(),
        () => WAIT.to_owned(),
    }
}

/// Whether a rank ends by the signal that is sent to the job.
fn is_signalled(case: &Case, rank: u32) -> bool {
    rank == 0 && case.faults == [Fault::Term]
}
