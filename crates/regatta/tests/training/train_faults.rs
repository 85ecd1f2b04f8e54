//! `regatta train` under faults: killed ranks, full disks, corrupt files. No checkpoint is lost, and a
//! resumed run is bitwise identical to an uninterrupted one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use libc::{SIGABRT, SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTSTP, SIGUSR1};
use regatta_model::result::RankExit;
use regatta_testbed::{assert_contains, wait_until, write_with_mode};
use regatta_train::data::prepare::{PrepareOptions, TokenizerSource, prepare};

use crate::support::disk::{SmallDisk, fill};
use crate::support::metrics::{assert_common_steps_identical, assert_identical, read_metrics};
use crate::support::process::{
    Process, assert_full_output_is_an_error, kill, launch_regatta, pid_of_rank, process_state,
    processes, rank_log, regatta_in, run_command, run_job, run_result, shell_job, signal_if_alive,
    wrap,
};
use crate::support::train::{
    ENDLESS, STOPPED_EARLY, TINY, checkpoints, copy, corrupt, last_step, long_step, metrics, run,
    run_state, spawn, tiny_run, train_command, wait_for_more_steps, wait_for_step,
};
use crate::support::{REGATTA, TempDir};

#[test]
fn restarted_ranks_resume_from_the_last_checkpoint() {
    let folder = TempDir::new();
    // resume=never applies to the first launch only. Many steps: the run must not end before the second
    // kill, however busy the machine is.
    let words = "train.steps=700 resume=never -n 3 --launch=--max-restarts=3 --run-dir run";
    let training = spawn(&folder, &format!("{TINY} {words}"));
    for (restarts, victim, step) in [(1, 0, 10), (2, 2, 60)] {
        wait_for_step(&folder, "run", step);
        let pid = || pid_of_rank(&folder, victim);
        wait_until("the rank", || pid().is_some());
        signal_if_alive(pid().unwrap(), SIGKILL);
        wait_until("the restart", || {
            training.stdout().matches("resumed after step").count() >= restarts
        });
    }
    training.wait().assert_code(0);
    assert_eq!(run_result(&folder, "run").restarts, 2);
    let full = tiny_run(&folder, "full", "train.steps=700 -n 3");
    assert_identical(&metrics(&folder, "run"), &full, 700);
}

/// Ctrl-Z stops the ranks; a suspended job, all processes. In both cases the silence of a peer is not
/// a failure.
#[test]
fn training_continues_after_a_stop_longer_than_every_timeout() {
    const STEPS: u64 = 400;
    // Long enough that a busy machine does not count as lost.
    const TIMEOUT_S: &str = "5";
    const STOP: Duration = Duration::from_secs(6);
    let stop_and_continue = |signal| {
        let folder = TempDir::new();
        let words = format!("{TINY} checkpoint.interval=0 train.steps={STEPS} -n 2 --run-dir run");
        let mut command = train_command(&folder, &words);
        command.envs([("REGATTA_LOST_AFTER", TIMEOUT_S), ("REGATTA_DESYNC_AFTER", TIMEOUT_S)]);
        let training = Process::spawn(&folder, &mut command);
        wait_for_step(&folder, "run", 1);
        let stopped: Vec<u32> = match signal {
            SIGTSTP => vec![training.pid()],
            _ => processes(&folder).into_iter().map(|(pid, _)| pid).collect(),
        };
        let rank = pid_of_rank(&folder, 0).unwrap();
        stopped.iter().for_each(|pid| signal_if_alive(*pid, signal));
        wait_until("rank 0 to stop", || process_state(rank) == 'T');
        std::thread::sleep(STOP);
        assert!(last_step(&folder, "run") < STEPS, "it ended before it was stopped");
        stopped.iter().for_each(|pid| signal_if_alive(*pid, SIGCONT));
        training.wait().assert_code(0);
        assert_eq!(last_step(&folder, "run"), STEPS);
    };
    // Both at once, since they wait most of the time.
    std::thread::scope(|scope| {
        scope.spawn(|| stop_and_continue(SIGTSTP));
        stop_and_continue(SIGSTOP);
    });
}

/// The notes about failed checkpoints so far.
fn checkpoint_notes(training: &Process) -> Vec<String> {
    let out = training.stdout();
    let lines = out.lines().filter(|line| line.starts_with("note: checkpoint after step "));
    lines.filter(|line| line.contains(" failed: ")).map(str::to_owned).collect()
}

#[test]
fn training_continues_on_a_full_disk_and_fails_only_at_the_final_checkpoint() {
    let folder = TempDir::new();
    let Some(disk) = SmallDisk::or_skip(&folder) else { return };
    let ballast = disk.path("ballast");
    // Without TensorBoard and evaluations, so that metrics do not fill the disk.
    let words = "checkpoint.interval=20 eval_interval=0 metrics.tensorboard=false -n 2";
    let training = disk.spawn_train(&format!("{TINY} {words} {ENDLESS} --run-dir small/run"));
    wait_until("a checkpoint", || training.stdout().contains("saved checkpoint at step 20 "));
    fill(&ballast);
    let notes = || checkpoint_notes(&training).len();
    wait_until("the note", || notes() > 0);
    let before = notes();
    wait_until("the next note", || notes() > before);
    std::fs::remove_file(&ballast).unwrap();
    let saved = || training.stdout().matches("\nsaved checkpoint at step ").count();
    let before = saved();
    wait_until("the next checkpoint", || saved() > before);

    fill(&ballast);
    let ended = training.interrupt();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    let fix = "free space or set another checkpoint.dir";
    assert_contains(&ended.err, ["error: the checkpoint after step ", fix]);
    assert!(!ended.out.contains("interrupted; checkpoint saved"), "{ended:?}");

    std::fs::remove_file(&ballast).unwrap();
    let last = ended.out.rsplit_once("saved checkpoint at step ").unwrap().1;
    let last: u64 = last.split_whitespace().next().unwrap().parse().unwrap();
    let steps = last + 10;
    let resumed = disk.spawn_train(&format!("--resume small/run -n 2 train.steps={steps}")).wait();
    resumed.assert_ok(&format!("resumed after step {last} from "));
    let found = read_metrics(&disk.path("run/metrics.jsonl"));
    assert!((last + 1..=steps).all(|step| found.steps.contains_key(&step)), "{found:?}");
    let full = tiny_run(&folder, "full", &format!("{words} train.steps={steps}"));
    assert_common_steps_identical(&found, &full);
}

#[test]
fn the_rank_that_fails_first_is_named_whatever_its_peers_report() {
    // Exits with code 3 only after its child, the rank: the peers exit first.
    let exits = "#!/bin/sh
        trap : TERM; \"$@\" & until [ -e go ]; do sleep 0.02; done; kill -9 $!; wait; exit 3\n";
    let cases = [(2, None, RankExit::Exit(3)), (3, Some(SIGABRT), RankExit::Signal(SIGABRT))];
    for (victim, signal, exit) in cases {
        let folder = TempDir::new();
        write_with_mode(folder.join("exits"), 0o755, exits);
        let launch = if signal.is_none() { "--launch='--wrap ./exits --wrap-ranks 2'" } else { "" };
        let training = spawn(&folder, &format!("{TINY} {ENDLESS} -n 4 --run-dir run {launch}"));
        wait_for_step(&folder, "run", 5);
        match signal {
            Some(signal) => signal_if_alive(pid_of_rank(&folder, victim).unwrap(), signal),
            None => drop(folder.write("go", "")),
        }
        let ended = training.wait();
        let failure = run_result(&folder, "run").failure.unwrap();
        assert_eq!((failure.rank, failure.exit), (victim, exit), "{ended:?}");
        assert_eq!(ended.code, Some(i32::from(exit.exit_code())));
        assert_contains(&ended.err, &format!("rank {victim} on "));
    }
}

#[test]
fn failure_report_has_the_command_that_resumes_from_the_last_checkpoint() {
    let folder = TempDir::new();
    let training =
        spawn(&folder, &format!("{TINY} {ENDLESS} checkpoint.interval=2 -n 1 --run-dir run"));
    wait_for_step(&folder, "run", 8);
    signal_if_alive(pid_of_rank(&folder, 0).unwrap(), SIGKILL);
    let ended = training.wait();
    assert_contains(
        &ended.err,
        ["the last checkpoint is at step ", "; resume: regatta train --resume run"],
    );
}

/// Truncates a file to half its length.
fn truncate(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

#[test]
fn resume_skips_corrupt_checkpoints_and_names_the_file() {
    let folder = TempDir::new();
    tiny_run(&folder, "run", "train.steps=20 -n 2");
    let full = tiny_run(&folder, "full", "train.steps=22 -n 2");
    assert_eq!(checkpoints(&folder, "run"), ["step-00000015", "step-00000020"]);
    type Damage = fn(&Path);
    let remove: Damage = |path| std::fs::remove_file(path).unwrap();
    let cases: [(&str, Damage); 6] = [
        ("rank-00001.safetensors", truncate),
        ("rank-00000.safetensors", corrupt),
        ("rank-00001.safetensors", remove),
        ("checkpoint.json", truncate),
        ("checkpoint.json", corrupt),
        ("checkpoint.json", remove),
    ];
    for (number, (file, damage)) in cases.into_iter().enumerate() {
        let damaged = format!("damaged-{number}");
        copy(&folder, "run", &damaged);
        let path = format!("{damaged}/checkpoints/step-00000020/{file}");
        damage(&folder.join(&path));
        let resumed = run(&folder, &format!("--resume {damaged} -n 2 train.steps=22"));
        let out = resumed.assert_ok("resumed after step 15 from ");
        let note =
            format!("note: skipped damaged checkpoint {damaged}/checkpoints/step-00000020: ");
        let note = out.lines().find(|line| line.starts_with(&note));
        assert_contains(note.unwrap_or_else(|| panic!("{out}")), file);
        assert_identical(&metrics(&folder, &damaged), &full, 22);
    }
    // Corrupt checkpoints do not count: a valid one is removed only when there are two newer ones.
    corrupt(&folder.join("run/checkpoints/step-00000020/rank-00000.safetensors"));
    run(&folder, "--resume run -n 2 train.steps=22 checkpoint.interval=22").ok();
    corrupt(&folder.join("run/checkpoints/step-00000022/rank-00000.safetensors"));
    run(&folder, "--resume run -n 2 train.steps=22").assert_ok("resumed after step 15 from ");
    assert_identical(&metrics(&folder, "run"), &full, 22);
}

#[test]
fn resume_fails_without_a_valid_checkpoint_and_keeps_the_metrics() {
    let folder = TempDir::new();
    tiny_run(&folder, "run", "train.steps=20 -n 2");
    let before = folder.read("run/metrics.jsonl");
    for name in checkpoints(&folder, "run") {
        corrupt(&folder.join(format!("run/checkpoints/{name}/rank-00000.safetensors")));
    }
    let refused = run(&folder, "--resume run -n 2").assert_code(1);
    let error = "error: no valid checkpoint in run/checkpoints: ";
    let line = refused.err.lines().find(|line| line.contains(error)).unwrap();
    let parts = ["step-00000015: rank-", "step-00000020: rank-", "set checkpoint.resume=never"];
    assert_contains(line, parts);
    assert_eq!(folder.read("run/metrics.jsonl"), before);
    run(&folder, "--resume run -n 2 checkpoint.resume=never").ok();
    let full = tiny_run(&folder, "full", "train.steps=20 -n 2");
    assert_identical(&metrics(&folder, "run"), &full, 20);
}

#[test]
fn checkpoints_of_an_earlier_run_in_the_folder_are_set_aside() {
    let folder = TempDir::new();
    let full = tiny_run(&folder, "run", "train.steps=20 -n 2");
    let restarted = run(&folder, "--resume run -n 2 checkpoint.resume=never train.steps=7");
    restarted.assert_ok("step-00000020.aside-1 belongs to the previous run");
    run(&folder, "--resume run -n 2 train.steps=20").assert_ok("resumed after step 7 from ");
    assert_identical(&metrics(&folder, "run"), &full, 20);
    // An explicit checkpoint of the earlier run.
    let from = "run/checkpoints/step-00000015.aside-1";
    let resumed = run(&folder, &format!("--resume run -n 2 checkpoint.resume={from}"));
    resumed.assert_ok(&format!("resumed after step 15 from {from}"));
    assert_identical(&metrics(&folder, "run"), &full, 20);
}

#[test]
fn resume_with_an_incompatible_configuration_leaves_the_run_unchanged() {
    let folder = TempDir::new();
    tiny_run(&folder, "run", "train.steps=10 -n 2");
    let full = tiny_run(&folder, "full", "train.steps=12 -n 2");
    folder.write("other.txt", "Water, water, every where.\n".repeat(200));
    let heads = "model.num_heads is 2 in the checkpoint and 1 in the configuration";
    let cases = [
        ("num_heads=1", &*format!("has a different model: {heads}")),
        ("source=other.txt", " has a different "),
        ("train.batch=25", "train.batch 25 is not divisible by 2 ranks"),
    ];
    let contents = || {
        let files = ["config.toml", "metrics.jsonl", "result.json"];
        (files.map(|name| folder.read(format!("run/{name}"))), run_state(&folder, "run"))
    };
    let before = contents();
    assert_eq!(before.1, "finished");
    for (words, expected) in cases {
        let refused = run(&folder, &format!("--resume run -n 2 train.steps=12 {words}"));
        let error = refused.assert_code(1).err;
        assert_eq!(error.matches(expected).count(), 1, "{words}: {error}");
        assert_eq!(contents(), before, "{words}");
    }
    run(&folder, "--resume run -n 2 train.steps=12").ok();
    assert_identical(&metrics(&folder, "run"), &full, 12);
}

#[test]
fn error_of_all_ranks_is_reported_once_and_logged() {
    let folder = TempDir::new();
    let words = "train.steps=2 checkpoint.dir=/proc/none -n 2 --run-dir run";
    let failed = run(&folder, &format!("{TINY} {words}")).assert_code(1).err;
    let error = "error: cannot write /proc/none: ";
    assert_eq!(failed.matches(error).count(), 1, "{failed}");
    assert_contains(&failed, "; set checkpoint.dir to a writable directory\n");
    let rank = run_result(&folder, "run").failure.unwrap().rank;
    assert_contains(rank_log(&folder, "run", rank, "err"), error);
}

#[test]
fn full_standard_output_is_an_error_of_a_complete_training() {
    let folder = TempDir::new();
    for (run, words) in [("run", ""), ("json", "--json")] {
        let words = format!("{TINY} train.steps=5 -n 1 --run-dir {run} {words}");
        assert_full_output_is_an_error(&mut train_command(&folder, &words));
        assert_eq!(checkpoints(&folder, run), ["step-00000005"]);
    }
    let others = ["eval run", "generate run -n 1", "checkpoint show run", "runs show run", "runs"];
    std::os::unix::fs::symlink(".", folder.join("runs")).unwrap();
    for words in others {
        assert_full_output_is_an_error(&mut regatta_in(&folder, words));
    }
    // A rank of another launcher prints itself.
    let script = format!("{REGATTA} train {TINY} train.steps=5 --run-dir rank > /dev/full");
    let ended = run_job(&folder, "-n 1 --run-dir launch", &script).assert_code(1);
    assert_contains(&ended.err, "error: standard output: No space left on device");
    assert_eq!(checkpoints(&folder, "rank"), ["step-00000005"]);
}

#[test]
fn training_continues_while_its_output_is_not_read() {
    let folder = TempDir::new();
    // More events than fit into the pipes between rank 0, the launcher and the reader.
    let words = "checkpoint.interval=1000000 eval_interval=1000000 --json -n 1 --run-dir run";
    let mut command = train_command(&folder, &format!("{TINY} {ENDLESS} {words}"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_for_step(&folder, "run", 2000);
    kill(&format!("-INT {}", child.id()));
    wait_until("the training to exit", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(STOPPED_EARLY));
}

#[test]
fn resume_of_a_running_run_is_rejected() {
    let folder = TempDir::new();
    let training = spawn(&folder, &format!("{TINY} {ENDLESS} -n 2 --run-dir run"));
    wait_for_step(&folder, "run", 20);
    for words in ["", "checkpoint.resume=never", "num_heads=1"] {
        let refused = run(&folder, &format!("--resume run -n 2 {words}"));
        refused.assert_error("run is in use by another job (process ");
        assert_eq!(run_state(&folder, "run"), "running", "{words}");
    }
    wait_for_more_steps(&folder, "run", 1);
    training.interrupt().assert_code(STOPPED_EARLY);
    assert_eq!(run_state(&folder, "run"), "stopped");
    let found = metrics(&folder, "run");
    let steps = found.steps.len() as u64;
    assert_identical(&found, &found, steps);
    run(&folder, &format!("--resume run -n 2 train.steps={}", steps + 1)).ok();
}

#[test]
fn ctrl_c_during_a_long_step_says_so_at_once_and_saves_after_the_step() {
    let folder = TempDir::new();
    let launch = format!("--launch '{}'", long_step(folder.path()));
    let words = format!("{TINY} {ENDLESS} checkpoint.interval=1000000 -n 2 --run-dir run {launch}");
    let training = spawn(&folder, &words);
    wait_for_step(&folder, "run", 3);
    training.signal(SIGINT);
    // While the ranks are stopped, so it is the launcher that says so.
    let end = ", then saving a checkpoint; Ctrl-C again to kill\n";
    wait_until("the note", || training.stdout().contains(end));
    let out = training.stdout();
    let (_, noted) = out.split_once("SIGINT: finishing step ").unwrap();
    let noted: u64 = noted.split_once(end).unwrap().0.parse().unwrap();
    folder.write("go", "");
    training.wait().assert_code(STOPPED_EARLY);
    let saved = last_step(&folder, "run");
    // A step may have ended between the signal and the stop of the ranks.
    assert!(saved >= noted, "{saved} {noted}");
    assert_eq!(checkpoints(&folder, "run"), [format!("step-{saved:08}")]);
    let resumed = run(&folder, &format!("--resume run -n 2 train.steps={}", saved + 1));
    resumed.assert_ok(&format!("resumed after step {saved} from "));
    assert_eq!(last_step(&folder, "run"), saved + 1);
}

#[test]
fn an_explicit_grace_period_limits_the_time_to_save() {
    let folder = TempDir::new();
    // A step of many seconds.
    let long = "num_layers=4 hidden_size=256 seq_len=256 batch=1024 micro_batch=8 eval_interval=0";
    let words = format!("{TINY} {long} -n 2 --run-dir run --launch '--grace 0'");
    let training = spawn(&folder, &words);
    wait_until("the first step", || training.stdout().contains(" parameters "));
    training.interrupt().assert_code(128 + SIGINT);
    assert_eq!(run_result(&folder, "run").reason, "terminated by signal 2 (INT)");
    assert_contains(folder.read("run/events.jsonl"), "\"killed\"");
}

#[test]
fn training_under_launch_stops_early_without_a_failure() {
    let folder = TempDir::new();
    let words = format!("train {TINY} {ENDLESS}");
    let mut launch = launch_regatta(&folder, "-n 2 --max-restarts 1", &words);
    let training = Process::spawn(&folder, &mut launch);
    wait_for_step(&folder, "run", 3);
    training.signal(SIGUSR1);
    training.wait().assert_code(STOPPED_EARLY);
    let result = run_result(&folder, "run");
    assert_eq!((result.restarts, result.failure), (0, None));
    assert_eq!(result.reason, "stopped early by signal 10 (USR1); can be resumed");
}

#[test]
fn a_failed_checkpoint_write_names_rank_host_and_file() {
    let folder = TempDir::new();
    let words = format!("{TINY} {ENDLESS} checkpoint.interval=100 -n 3 --run-dir run");
    let training = spawn(&folder, &words);
    wait_for_step(&folder, "run", 1);
    // A folder in place of the shard makes the write fail.
    for step in (100..10_000).step_by(100) {
        let name = format!("run/checkpoints/step-{step:08}.partial/rank-00001.safetensors");
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    wait_until("the note", || !checkpoint_notes(&training).is_empty());
    let notes = checkpoint_notes(&training);
    assert_contains(&notes[0], [" failed: rank 1 on ", "/rank-00001.safetensors"]);
    let run = training.interrupt();
    assert_eq!(run.code, Some(STOPPED_EARLY), "the final checkpoint is saved: {run:?}");
}

#[test]
fn a_file_size_limit_is_handled_like_a_full_disk() {
    let folder = TempDir::new();
    // Large enough for metrics and logs, too small for a checkpoint.
    let limited = |command: &Command| wrap(command, "prlimit", &["--fsize=49152"]);
    let words = format!("{TINY} hidden_size=64 train.steps=6 -n 1 --run-dir run");
    let ended = run_command(&mut limited(&train_command(&folder, &words))).assert_code(1);
    let limit = "exceeds the file size limit; existing checkpoints are intact: raise the limit with \
                 `ulimit -f unlimited`";
    assert_contains(&ended.out, ["note: checkpoint after step 5 failed: rank ", limit]);
    assert_contains(&ended.err, ["error: the checkpoint after step 6 could not be saved", limit]);
    assert_eq!(metrics(&folder, "run").steps.len(), 6);
    // Programs that are not regatta have the default action.
    let ignored = shell_job(&folder, "-n 1 --run-dir other", "grep SigIgn /proc/self/status");
    let status = run_command(&mut limited(&ignored)).ok();
    let mask = status.trim().rsplit(char::is_whitespace).next().unwrap();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    assert_eq!(mask >> (libc::SIGXFSZ - 1) & 1, 0, "{status}");
    // A log that exceeds the limit does not end its rank.
    let long = "i=0; while [ $i -lt 80 ]; do printf '%01000d\\n' 0; i=$((i+1)); done; echo end";
    let logged = run_command(&mut limited(&shell_job(&folder, "-n 1 --run-dir long", long)));
    let note = "log rank-0.out is incomplete: File too large (os error 27); raise the limit with";
    assert_contains(logged.assert_stderr(note).ok(), "end\n");
    // Result files of any command.
    let dump = wrap(&regatta_in(&folder, "map --dump machine.json"), "prlimit", &["--fsize=512"]);
    let fix = "cannot write machine.json: File too large (os error 27); raise the limit with";
    run_command(&mut { dump }).assert_error(fix);
}

/// Tokenizes a text.
fn tokenize(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let input = folder.write(&format!("{name}.txt"), text);
    let dataset = folder.join(name);
    let options = PrepareOptions {
        inputs: vec![input.into()],
        tokenizer: TokenizerSource::Characters,
        validation: 0.1,
        folder: dataset.clone(),
        replace: false,
    };
    prepare(&options, &mut |_| Ok(())).unwrap();
    dataset
}

#[test]
fn corrupt_datasets_are_rejected() {
    let folder = TempDir::new();
    let verse = "It is an ancient Mariner, and he stoppeth one of three.\n".repeat(50);
    let other = "Water, water, every where, nor any drop to drink.\n".repeat(50);
    let good = tokenize(&folder, "good", &verse);
    let train = |name: &str| {
        run(&folder, &format!("{TINY} train.steps=3 source={name} -n 2 --run-dir of-{name}"))
    };
    train("good").ok();
    tokenize(&folder, "corrupt", &verse);
    corrupt(&folder.join("corrupt/train.tokens"));
    tokenize(&folder, "truncated", &verse);
    truncate(&folder.join("truncated/validation.tokens"));
    let mismatched = tokenize(&folder, "mismatched", &other);
    std::fs::copy(good.join("tokenizer.json"), mismatched.join("tokenizer.json")).unwrap();
    let cases = [
        ("corrupt", "error: the tokens of corrupt/train.tokens are damaged: SHA-256 is "),
        ("truncated", "it was truncated or modified; prepare it again"),
        ("mismatched", "mismatched/train.tokens was prepared with tokenizer "),
    ];
    for (name, expected) in cases {
        train(name).assert_code(1).assert_stderr(expected);
    }
}
