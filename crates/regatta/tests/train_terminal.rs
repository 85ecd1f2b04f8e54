//! `regatta train` as a person sees it: the display on a terminal.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, ExitStatus};

use support::TempDir;
use support::train::regatta;

/// Both ends of a terminal of 80 by 24: what a person has, and what a program has.
fn terminal() -> (File, OwnedFd) {
    let (mut person, mut program) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let name = std::ptr::null_mut();
    // SAFETY: it writes to the two numbers and reads the size; no name or modes are asked for.
    let made = unsafe { libc::openpty(&mut person, &mut program, name, std::ptr::null(), &size) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both were opened just now, and nobody else has them.
    unsafe { (File::from_raw_fd(person), OwnedFd::from_raw_fd(program)) }
}

/// Three steps of a small model.
const WORDS: &str = "train steps=3 model.layers=1 model.width=16 model.heads=2 context=16 batch=2 \
                     eval_every=0 train.threads=1 --ranks 1 --run-dir run";

/// Starts them on a terminal, with these variables.
fn start(folder: &TempDir, variables: &[(&str, &str)]) -> (File, Child) {
    let (person, program) = terminal();
    let end = || program.try_clone().unwrap();
    let mut command = regatta(folder, WORDS);
    // Colours are for those who did not say otherwise.
    command.env_remove("NO_COLOR").env("LC_ALL", "C.UTF-8").env("TERM", "xterm-256color");
    command.envs(variables.iter().copied()).stdin(end()).stdout(end()).stderr(end());
    let child = command.spawn().unwrap();
    (person, child)
}

/// All that is shown until the last program has closed the terminal, and how it ended.
fn watch((mut person, mut child): (File, Child)) -> (String, ExitStatus) {
    let mut shown = Vec::new();
    // A terminal that no program has any more is an error to read from.
    let _ = person.read_to_end(&mut shown);
    (String::from_utf8_lossy(&shown).into_owned(), child.wait().unwrap())
}

#[test]
fn a_training_is_drawn_in_place_and_ends_well() {
    let folder = TempDir::new();
    let (shown, ended) = watch(start(&folder, &[]));
    assert!(ended.success(), "{ended}: {shown}");
    assert!(!shown.contains("panicked"), "{shown}");
    assert!(shown.contains("step 3/3") && shown.contains(": 3 steps in"), "{shown}");
    // Each time the cursor goes away it comes back, so that it is there at the end.
    let (away, back) = (shown.matches("\x1b[?25l").count(), shown.matches("\x1b[?25h").count());
    assert!(away > 0 && away == back, "{away} {back}");
}

/// How many sequences there are that set a colour, and how many others.
fn sequences(shown: &str) -> [usize; 2] {
    let ends = shown.split("\x1b[").skip(1).map(|rest| {
        rest.trim_start_matches(|c: char| c.is_ascii_digit() || ";?".contains(c)).starts_with('m')
    });
    ends.fold([0, 0], |[colours, others], colour| match colour {
        true => [colours + 1, others],
        false => [colours, others + 1],
    })
}

#[test]
fn what_a_terminal_cannot_show_or_nobody_wants_is_left_out() {
    for (variables, colours, drawn) in [
        (&[][..], true, true),
        (&[("NO_COLOR", "1")], false, true),
        (&[("TERM", "dumb")], false, false),
        (&[("LC_ALL", "C")], false, false),
    ] {
        let folder = TempDir::new();
        let (shown, ended) = watch(start(&folder, variables));
        assert!(ended.success() && shown.contains("step 3/3"), "{variables:?} {ended}: {shown}");
        let found = sequences(&shown).map(|count| count > 0);
        assert_eq!(found, [colours, drawn], "{variables:?}: {shown}");
    }
}
