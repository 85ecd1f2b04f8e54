//! The dashboard of `regatta train` on a pseudoterminal.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::process::Child;

use regatta_testbed::assert_contains;
use support::TempDir;
use support::pty::{self, output};
use support::train::train_command;

/// Three steps of a small model.
const ARGS: &str = "steps=3 model.num_layers=1 model.hidden_size=16 model.num_heads=2 \
                    seq_len=16 batch=2 eval_interval=0 train.threads=1 --ranks 1 --run-dir run";

/// Starts the training on a pseudoterminal, with these environment variables.
fn spawn_on_pty(folder: &TempDir, variables: &[(&str, &str)]) -> (File, Child) {
    pty::spawn_on_pty(train_command(folder, ARGS), variables)
}

#[test]
fn dashboard_is_drawn_in_place_and_the_cursor_restored() {
    let folder = TempDir::new();
    let (shown, status) = output(spawn_on_pty(&folder, &[]));
    assert!(status.success(), "{status}: {shown}");
    assert!(!shown.contains("panicked"), "{shown}");
    assert_contains(&shown, ["step 3/3", ": 3 steps in"]);
    let [hidden, restored] = ["\x1b[?25l", "\x1b[?25h"].map(|code| shown.matches(code).count());
    assert!(hidden > 0 && hidden == restored, "{hidden} {restored}");
}

/// Counts of colour sequences and of other escape sequences.
fn count_sequences(shown: &str) -> [usize; 2] {
    let is_colour = |rest: &&str| {
        rest.trim_start_matches(|c: char| c.is_ascii_digit() || ";?".contains(c)).starts_with('m')
    };
    let sequences = shown.split("\x1b[").skip(1);
    let (colours, others): (Vec<&str>, Vec<&str>) = sequences.partition(is_colour);
    [colours.len(), others.len()]
}

#[test]
fn colours_and_dashboard_depend_on_no_color_term_and_locale() {
    for (variables, has_colours, has_dashboard) in [
        (&[][..], true, true),
        (&[("NO_COLOR", "1")], false, true),
        (&[("TERM", "dumb")], false, false),
        (&[("LC_ALL", "C")], false, false),
    ] {
        let folder = TempDir::new();
        let (shown, status) = output(spawn_on_pty(&folder, variables));
        assert!(status.success() && shown.contains("step 3/3"), "{variables:?} {status}: {shown}");
        let found = count_sequences(&shown).map(|count| count > 0);
        assert_eq!(found, [has_colours, has_dashboard], "{variables:?}: {shown}");
    }
}

#[test]
fn long_step_shows_its_micro_batches() {
    let folder = TempDir::new();
    // A step of 128 micro-batches, each of which takes a fraction of a second.
    let long = "steps=2 num_layers=4 hidden_size=256 num_heads=2 seq_len=256 batch=1024 \
                micro_batch=8 eval_interval=0 train.threads=1 --ranks 1 --run-dir run";
    let (mut terminal, mut training) = pty::spawn_on_pty(train_command(&folder, long), &[]);
    let mut shown = String::new();
    let done = |shown: &str| -> BTreeSet<u32> {
        let counts = shown.split("micro-batch ").skip(1).filter_map(|rest| rest.split_once("/128"));
        counts.filter_map(|(done, _)| done.parse().ok()).collect()
    };
    while done(&shown).len() < 2 {
        let mut bytes = [0; 4096];
        let count = terminal.read(&mut bytes).unwrap_or_else(|e| panic!("{e}: {shown}"));
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    training.kill().unwrap();
    assert!(done(&shown).iter().all(|done| (1..128).contains(done)), "{shown}");
    assert_contains(&shown, "step 1/2  micro-batch ");
    output((terminal, training));
}
