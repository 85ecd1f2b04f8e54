//! `regatta train` as a person sees it: the display on a terminal.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, ExitStatus};

use support::Folder;
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

fn start(folder: &Folder, words: &str) -> (File, Child) {
    let (person, program) = terminal();
    let end = || program.try_clone().unwrap();
    let mut command = regatta(folder, words);
    command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
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
    let folder = Folder::new();
    let words = "train steps=3 model.layers=1 model.width=16 model.heads=2 context=16 batch=2 \
                 eval_every=0 train.threads=1 --ranks 1 --run-dir run";
    let (shown, ended) = watch(start(&folder, words));
    assert!(ended.success(), "{ended}: {shown}");
    assert!(!shown.contains("panicked"), "{shown}");
    assert!(shown.contains("step 3/3") && shown.contains(": 3 steps in"), "{shown}");
    // Each time the cursor goes away it comes back, so that it is there at the end.
    let (away, back) = (shown.matches("\x1b[?25l").count(), shown.matches("\x1b[?25h").count());
    assert!(away > 0 && away == back, "{away} {back}");
}
