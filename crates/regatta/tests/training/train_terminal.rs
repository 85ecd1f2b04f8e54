//! The dashboard of `regatta train` on a pseudoterminal.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Child, Command};
use std::time::Duration;

use libc::{SIGCONT, SIGINT, SIGTSTP};
use regatta_testbed::{assert_contains, wait_until};
use regatta_train::metrics::StepMetrics;

use crate::support::TempDir;
use crate::support::process::{process_state, run_command, signal_if_alive, wrap};
use crate::support::pty::{self, PtyProcess, output};
use crate::support::train::{ENDLESS, STOPPED_EARLY, TINY, train_command};

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
fn ctrl_z_leaves_the_terminal_to_the_shell_and_the_stop_out_of_the_times() {
    let folder = TempDir::new();
    let words = format!("{TINY} {ENDLESS} -n 2 --run-dir run");
    let mut training = PtyProcess::new(pty::spawn_on_pty(train_command(&folder, &words), &[]));
    let pid = training.child.id();
    training.read_until("step", |shown| shown.contains("tok/s"));
    signal_if_alive(pid, SIGTSTP);
    wait_until("the stop", || process_state(pid) == 'T');
    let last = training.read_until_silent(Duration::from_millis(200));
    let after_frame = last.rsplit_once("\x1b[?25h").map_or(last.as_str(), |(_, rest)| rest);
    assert_eq!(after_frame, "\r\x1b[K", "the cursor is visible, on an empty line: {last:?}");
    assert_eq!(training.read_for(Duration::from_millis(1500)), "");
    signal_if_alive(pid, SIGCONT);
    let frame = training.read_until("frame", |shown| shown.contains("\x1b[?25h"));
    assert!(frame.starts_with("\x1b[?25l") && !frame.starts_with("\x1b[?25l\r\x1b["), "{frame:?}");

    signal_if_alive(pid, SIGINT);
    let end = training.read_until("end", |shown| shown.contains("--resume run -n 2"));
    assert_contains(&end, ["interrupted; checkpoint saved", " (stopped for "]);
    assert_eq!(training.child.wait().unwrap().code(), Some(STOPPED_EARLY));
    let lines = folder.read("run/metrics.jsonl");
    // Lines of validations are no steps.
    let steps = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
    let steps: Vec<StepMetrics> = steps.collect();
    assert!(steps.last().unwrap().stopped_seconds > 1.0);
    for pair in steps.windows(2) {
        let running = pair[1].seconds.step + pair[1].stopped_seconds - pair[0].stopped_seconds;
        assert!(running < pair[1].time - pair[0].time + 0.1, "{pair:?}");
    }
}

/// As in a container.
#[test]
fn training_runs_in_a_pid_namespace_without_the_leader_of_its_process_group() {
    let folder = TempDir::new();
    let unshare = ["-rpf", "--mount-proc"];
    if !Command::new("unshare").args(unshare).arg("true").status().unwrap().success() {
        return eprintln!("skipped: PID namespaces are not permitted");
    }
    let mut training = wrap(&train_command(&folder, ARGS), "unshare", &unshare);
    run_command(&mut training).assert_ok("step 3/3");
}

#[test]
fn long_step_shows_its_micro_batches() {
    let folder = TempDir::new();
    // A step of 128 micro-batches, each of which takes a fraction of a second.
    let long = "steps=1 num_layers=4 hidden_size=256 num_heads=2 seq_len=256 batch=1024 \
                micro_batch=8 eval_interval=0 train.threads=1 --ranks 1 --run-dir run";
    let mut training = PtyProcess::new(pty::spawn_on_pty(train_command(&folder, long), &[]));
    let counts = |shown: &str| -> BTreeSet<u32> {
        let counts = shown.split("step 1/1  micro-batch ").skip(1);
        counts.filter_map(|rest| rest.split_once("/128")?.0.parse().ok()).collect()
    };
    training.read_until("second micro-batch", |shown| counts(shown).len() >= 2);
}
