//! Training under seeded random faults: the metrics of every step are bitwise identical to those of an
//! undisturbed run, with any parallel layout. If the layout changes on resume, the summation order
//! changes too, and the metrics are identical up to rounding.
//!
//! `REGATTA_CHAOS_CASES` is the number of runs and `REGATTA_CHAOS_SEED` the first seed; `cargo xtask
//! accept train-chaos` sets them.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use libc::{SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM, SIGTSTP};
use regatta_model::result::STOPPED_EARLY;
use regatta_testbed::{Random, wait_until};

use crate::support::metrics::{RunMetrics, assert_close, assert_identical};
use crate::support::process::{Process, processes, signal_if_alive};
use crate::support::train::{
    TINY, checkpoints, corrupt, last_step, metrics, tiny_run, train_command,
};
use crate::support::{CommandOutput, TempDir};

/// Default number of runs.
const DEFAULT_CASES: u64 = 3;

/// Timeouts of the ranks in seconds, in runs in which they matter.
const RANK_TIMEOUT: u64 = 4;
/// Longer than the timeouts of the ranks.
const LONG_PAUSE: Duration = Duration::from_secs(RANK_TIMEOUT + 1);
/// Shorter than any timeout.
const SHORT_PAUSE: Duration = Duration::from_secs(1);

/// Ranks and parallel layouts. All keys are set, because a run may resume with any other layout.
const LAYOUTS: [RunLayout; 14] = [
    (1, "tp=1 cp=1 pp=1 zero=0"),
    (2, "tp=1 cp=1 pp=1 zero=0"),
    (3, "tp=1 cp=1 pp=1 zero=0"),
    (6, "tp=1 cp=1 pp=1 zero=0"),
    (2, "tp=2 cp=1 pp=1 zero=0"),
    (2, "tp=1 cp=2 pp=1 zero=0"),
    (2, "tp=1 cp=1 pp=2 zero=0"),
    (2, "tp=1 cp=1 pp=1 zero=1"),
    (3, "tp=1 cp=1 pp=1 zero=2"),
    (4, "tp=1 cp=1 pp=1 zero=3"),
    (4, "tp=2 cp=1 pp=2 zero=0"),
    (4, "tp=2 cp=2 pp=1 zero=0"),
    (4, "tp=1 cp=2 pp=1 zero=3"),
    (8, "tp=2 cp=1 pp=2 zero=1"),
];

/// Number of ranks, and configuration keys.
type RunLayout = (u32, &'static str);

/// Steps of a run: it takes about as long as the longest delay before a fault.
const STEPS: u64 = 300;

/// Two layers for two stages. At twice the learning rate, 300 steps amplify rounding differences of
/// 1e-9 to 1e-5.
const MODEL: &str = "num_layers=2 optimizer.lr=5e-4";

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrainFault {
    /// Kill any process: the parent, the launcher or a rank.
    Kill,
    /// Kill two processes.
    KillTwo,
    /// Send a signal to the parent.
    Signal(i32),
    /// Send a signal to the parent, and at once to its process group, as `timeout` does.
    SignalTwice(i32),
    /// Ctrl-Z, and `fg` after more than the timeouts of the ranks.
    Suspend,
    /// Stop all processes for more than the timeouts of the ranks.
    StopAll,
    /// Stop a rank for less than the timeout of the others.
    StopRank,
    /// Stop a rank permanently.
    HangRank,
}

const FAULTS: [TrainFault; 11] = [
    TrainFault::Kill,
    TrainFault::Kill,
    TrainFault::KillTwo,
    TrainFault::Signal(SIGINT),
    TrainFault::Signal(SIGTERM),
    TrainFault::SignalTwice(SIGINT),
    TrainFault::SignalTwice(SIGTERM),
    TrainFault::Suspend,
    TrainFault::StopAll,
    TrainFault::StopRank,
    TrainFault::HangRank,
];

impl TrainFault {
    /// Whether the run must reach its last step.
    fn is_pause(self) -> bool {
        matches!(self, Self::Suspend | Self::StopAll | Self::StopRank)
    }
}

#[test]
fn metrics_under_faults_are_identical_to_an_undisturbed_run() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = variable("REGATTA_CHAOS_SEED").unwrap_or(1);
    let cases = variable("REGATTA_CHAOS_CASES").unwrap_or(DEFAULT_CASES);
    let folder = TempDir::new();
    let mut references = BTreeMap::new();
    for seed in first..first + cases {
        println!("reproduce: cargo xtask accept train-chaos --cases 1 --seed {seed}");
        let mut random = Random::new(seed);
        let layout = random.pick(&LAYOUTS);
        let reference = references.entry(layout).or_insert_with(|| reference(&folder, layout));
        // A third of the runs change the layout on each resume.
        let changes_layout = random.within(0, 2) == 0;
        run_with_faults(&folder, &mut random, |random| {
            if changes_layout { random.pick(&LAYOUTS) } else { layout }
        });
        let found = metrics(&folder, "run");
        if changes_layout {
            assert_close(&found, &reference.with_validations_of(&found));
        } else {
            assert_identical(&found, reference, STEPS);
        }
        std::fs::remove_dir_all(folder.join("run")).unwrap();
    }
}

/// The metrics of an undisturbed run.
fn reference(folder: &TempDir, (ranks, layout): RunLayout) -> RunMetrics {
    let run = format!("reference-{ranks}-{}", layout.replace([' ', '='], "-"));
    tiny_run(folder, &run, &format!("{MODEL} train.steps={STEPS} {layout} -n {ranks}"))
}

/// Runs the training with one to four faults, then to its end.
fn run_with_faults(
    folder: &TempDir,
    random: &mut Random,
    next_layout: impl Fn(&mut Random) -> RunLayout,
) {
    for _ in 0..random.within(1, 4) {
        let (ranks, layout) = next_layout(random);
        let delay = random.within(0, 800);
        let mut fault = random.pick(&FAULTS);
        if fault == TrainFault::HangRank && ranks == 1 {
            // No peer would notice.
            fault = TrainFault::Kill;
        }
        let previous = last_step(folder, "run");
        let training = start_or_resume(folder, (ranks, layout), Some(fault));
        std::thread::sleep(Duration::from_millis(delay.into()));
        let step = last_step(folder, "run");
        println!("  {ranks} ranks, {layout}, {fault:?} after {delay} ms and {step} steps");
        inject(folder, random, fault, training.pid());
        let output = training.wait();
        wait_until("the exit of all processes", || processes(folder).is_empty());
        check_exit(folder, fault, step > previous, output);
        maybe_corrupt_checkpoint(folder, random);
    }
    start_or_resume(folder, next_layout(random), None).wait().assert_code(0);
}

/// Injects a fault into the training whose parent process is the leader of its process group.
fn inject(folder: &TempDir, random: &mut Random, fault: TrainFault, parent: u32) {
    match fault {
        TrainFault::Kill => signal_any(folder, random, SIGKILL),
        TrainFault::KillTwo => (0..2).for_each(|_| signal_any(folder, random, SIGKILL)),
        TrainFault::Signal(signal) => signal_if_alive(parent, signal),
        TrainFault::SignalTwice(signal) => {
            // Without the milliseconds that the program `kill` takes to start.
            send(parent.cast_signed(), signal);
            send(-parent.cast_signed(), signal);
        }
        TrainFault::Suspend => {
            send(-parent.cast_signed(), SIGTSTP);
            std::thread::sleep(LONG_PAUSE);
            send(-parent.cast_signed(), SIGCONT);
        }
        TrainFault::StopAll => {
            let all = processes(folder);
            all.iter().for_each(|(pid, _)| signal_if_alive(*pid, SIGSTOP));
            std::thread::sleep(LONG_PAUSE);
            // And those started before their parent was stopped.
            processes(folder).iter().for_each(|(pid, _)| signal_if_alive(*pid, SIGCONT));
        }
        TrainFault::StopRank => {
            if let Some(rank) = any_rank(folder, random) {
                signal_if_alive(rank, SIGSTOP);
                std::thread::sleep(SHORT_PAUSE);
                signal_if_alive(rank, SIGCONT);
            }
        }
        TrainFault::HangRank => match any_rank(folder, random) {
            Some(rank) => signal_if_alive(rank, SIGSTOP),
            None => signal_any(folder, random, SIGKILL),
        },
    }
}

/// Sends a signal to a process, or to a process group if the number is negative.
fn send(target: i32, signal: i32) {
    // SAFETY: a plain system call. The leader is our child and not yet reaped, so its number is not
    // reused.
    unsafe { libc::kill(target, signal) };
}

/// A pause ends nothing, and a signal, even a duplicate one, ends a run that has trained with a
/// checkpoint of its last step.
fn check_exit(folder: &TempDir, fault: TrainFault, has_trained: bool, output: CommandOutput) {
    match fault {
        _ if fault.is_pause() => {
            assert!(!output.out.contains("SIGTSTP"), "nothing is saved: {output:?}");
            output.assert_code(0);
        }
        TrainFault::Signal(_) | TrainFault::SignalTwice(_) if has_trained => {
            let step = last_step(folder, "run");
            let code = if step == STEPS { 0 } else { STOPPED_EARLY.into() };
            assert_eq!(output.code, Some(code), "{output:?}");
            let saved = checkpoints(folder, "run").pop();
            let number = saved.as_ref().and_then(|name| name.strip_prefix("step-")?.parse().ok());
            assert_eq!(number, Some(step), "{saved:?}: {output:?}");
        }
        _ => {}
    }
}

/// Resumes the run, or starts it if it has no checkpoint yet, with timeouts for a fault.
fn start_or_resume(
    folder: &TempDir,
    (ranks, layout): RunLayout,
    fault: Option<TrainFault>,
) -> Process {
    let run = folder.join("run");
    let mut words = if !complete_checkpoints(folder).is_empty() {
        "--resume run".to_owned()
    } else {
        let _ = std::fs::remove_dir_all(run);
        format!("{TINY} {MODEL} train.steps={STEPS} --run-dir run")
    };
    words += &format!(" {layout} -n {ranks}");
    if fault == Some(TrainFault::HangRank) {
        words += " --launch '--grace 2'";
    }
    let mut command = train_command(folder, &words);
    use TrainFault::{HangRank, StopAll, Suspend};
    if matches!(fault, Some(HangRank | StopAll | Suspend)) {
        for name in ["REGATTA_LOST_AFTER", "REGATTA_DESYNC_AFTER"] {
            command.env(name, RANK_TIMEOUT.to_string());
        }
    }
    Process::spawn(folder, command.process_group(0))
}

fn signal_any(folder: &TempDir, random: &mut Random, signal: i32) {
    let all = processes(folder);
    if !all.is_empty() {
        signal_if_alive(random.pick(&all).0, signal);
    }
}

fn any_rank(folder: &TempDir, random: &mut Random) -> Option<u32> {
    let all = processes(folder);
    let ranks: Vec<u32> =
        all.iter().filter(|(_, rank)| rank.is_some()).map(|(pid, _)| *pid).collect();
    (!ranks.is_empty()).then(|| random.pick(&ranks))
}

/// The names of the complete checkpoints of the run.
fn complete_checkpoints(folder: &TempDir) -> Vec<String> {
    let mut names = checkpoints(folder, "run");
    names.retain(|name| !name.contains('.'));
    names
}

/// With a probability of 1/3, corrupts the newest checkpoint if there is an older one.
fn maybe_corrupt_checkpoint(folder: &TempDir, random: &mut Random) {
    let complete = complete_checkpoints(folder);
    if complete.len() < 2 || random.within(0, 2) > 0 {
        return;
    }
    let file = folder.join("run/checkpoints").join(&complete[complete.len() - 1]);
    println!("  corrupting {}", file.display());
    corrupt(&file.join("rank-00000.safetensors"));
}
