//! Jobs on this machine: started, watched, ended.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use regatta_model::result::Ending;
use regatta_model::{CpuSet, document};
use support::job::{ended, job, lives, log, result, signal, until};
use support::{Folder, command};

#[test]
fn every_rank_has_its_place_and_the_same_meeting_point() {
    let folder = Folder::new();
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT; \
                  grep Cpus_allowed_list /proc/self/status";
    let run = ended(&mut job(&folder, &["-n", "3", "--run-dir", "run"], script));
    assert_eq!(run.code, Some(0), "{run:?}");
    let placement = std::fs::read_to_string(folder.path().join("run/placement.json")).unwrap();
    let placement: regatta_model::Placement = document::from_json(&placement).unwrap();
    let mut ports = HashSet::new();
    for rank in 0..3 {
        let text = log(&folder, "run", rank, "out");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[..5], [&rank.to_string(), "3", &rank.to_string(), "3", "127.0.0.1"]);
        ports.insert(words[5].to_owned());
        let planned = placement.find(rank).unwrap().2.cpus.to_string();
        assert_eq!(words[7], planned, "rank {rank} is bound as planned");
    }
    assert_eq!(ports.len(), 1);
    let result = result(&folder, "run");
    assert_eq!((result.code, result.ranks, result.endings.len()), (0, 3, 3));
    for file in ["machine.json", "environment.json", "events.jsonl"] {
        assert!(folder.path().join("run").join(file).exists(), "{file}");
    }
}

#[test]
fn the_command_is_run_as_it_stands() {
    let folder = Folder::new();
    let mut job = command();
    job.current_dir(folder.path()).args(["launch", "--run-dir", "run", "-n", "1", "--"]);
    let run = ended(job.args(["printf", "%s|", "a b", "$HOME", "*", "; reboot", "'"]));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(log(&folder, "run", 0, "out"), "a b|$HOME|*|; reboot|'|");
    assert!(run.out.contains("a b|$HOME|*|; reboot|'|"), "a last line without an end is shown");
}

#[test]
fn the_first_failure_is_the_one_reported() {
    let folder = Folder::new();
    let script = "if [ $RANK = 2 ]; then echo one; echo two >&2; exit 7; fi; exec sleep 600";
    let run = ended(&mut job(&folder, &["-n", "3", "--run-dir", "run"], script));
    assert_eq!(run.code, Some(7), "{run:?}");
    assert!(run.err.contains("rank 2 on") && run.err.contains("exit code 7"), "{}", run.err);
    assert!(run.err.contains("| two") && run.err.contains("run/log"), "{}", run.err);
    let result = result(&folder, "run");
    let failure = result.failure.unwrap();
    assert_eq!((failure.rank, failure.ending), (2, Ending::Exit(7)));
    assert_eq!(failure.others.len(), 2, "what the others did is told");
    assert_eq!(result.endings[&0], Ending::Signal(15));
}

#[test]
fn a_signal_of_a_rank_is_named() {
    let folder = Folder::new();
    let run = ended(&mut job(&folder, &["-n", "1"], "kill -SEGV $$"));
    assert_eq!(run.code, Some(128 + 11));
    assert!(run.err.contains("signal 11 (SEGV"), "{}", run.err);
}

#[test]
fn ranks_that_do_not_listen_are_killed_with_all_they_started() {
    let folder = Folder::new();
    // A grandchild in a session of its own, out of reach of the rank's process group.
    let script = "trap '' TERM; setsid sh -c 'echo $$ > pid; exec sleep 600' & \
                  until [ -s pid ]; do sleep 0.1; done; \
                  if [ $RANK = 0 ]; then exit 3; fi; while :; do sleep 1; done";
    let run = ended(&mut job(&folder, &["-n", "2", "--grace", "1"], script));
    assert_eq!(run.code, Some(3), "{run:?}");
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    until("the grandchild's end", || !lives(pid.trim()));
}

#[test]
fn ranks_end_when_the_launcher_is_killed() {
    let folder = Folder::new();
    let mut child = job(&folder, &["-n", "1"], "echo $$ > pid; exec sleep 600")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = folder.path().join("pid");
    let read = || std::fs::read_to_string(&pid).unwrap_or_default();
    until("the rank", || read().ends_with('\n'));
    signal(&child, 9);
    child.wait().unwrap();
    until("the rank's end", || !lives(read().trim()));
}

#[test]
fn signals_reach_the_ranks_and_a_good_end_is_a_good_end() {
    let folder = Folder::new();
    let script = "trap 'echo saved; exit 0' TERM; trap 'echo noted' USR1; echo > ready$RANK; \
                  while :; do sleep 0.05; done";
    let mut child = job(&folder, &["-n", "2", "--run-dir", "run"], script)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ready = |rank: u32| folder.path().join(format!("ready{rank}")).exists();
    until("the ranks", || ready(0) && ready(1));
    signal(&child, 10);
    until("the first signal", || log(&folder, "run", 0, "out").contains("noted"));
    signal(&child, 15);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for rank in 0..2 {
        assert!(log(&folder, "run", rank, "out").ends_with("saved\n"), "rank {rank}");
    }
    assert_eq!(result(&folder, "run").reason, "ended by signal 15 (TERM)");
}

#[test]
fn a_signal_ends_the_job_also_after_a_failure() {
    let folder = Folder::new();
    // Rank 1 fails when rank 0 does not listen to TERM any more.
    let script = "trap '' TERM; if [ $RANK = 1 ]; then until [ -e up ]; do sleep 0.02; done; \
                  exit 3; fi; echo > up; while :; do sleep 0.1; done";
    let options = ["-n", "2", "--run-dir", "run", "--max-restarts", "2", "--grace", "60"];
    let mut child = job(&folder, &options, script).stderr(Stdio::null()).spawn().unwrap();
    let events = folder.path().join("run/events.jsonl");
    let told = || std::fs::read_to_string(&events).unwrap_or_default().contains("\"told\"");
    until("the failure", || told() && folder.path().join("up").exists());
    signal(&child, 15);
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert_eq!(result(&folder, "run").restarts, 0, "nothing is started anew");
}

#[test]
fn a_signal_that_is_to_be_ignored_stays_ignored() {
    let folder = Folder::new();
    // As nohup does; the shell hands it on to what it becomes.
    let mut shell = Command::new("sh");
    support::clean(&mut shell).current_dir(folder.path());
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    let script = "echo > up; until [ -e go ]; do sleep 0.05; done";
    let launch = job(&folder, &["-n", "1", "--run-dir", "run"], script);
    shell.arg(launch.get_program()).args(launch.get_args());
    let mut child = shell.spawn().unwrap();
    until("the rank", || folder.path().join("up").exists());
    signal(&child, 1);
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(result(&folder, "run").reason, "all ranks ended well");
}

#[test]
fn a_stopped_rank_hears_of_its_end() {
    let folder = Folder::new();
    let script = "if [ $RANK = 0 ]; then kill -STOP $$; sleep 60; fi; sleep 0.5; exit 3";
    let start = Instant::now();
    let run = ended(&mut job(&folder, &["-n", "2", "--grace", "20"], script));
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[test]
fn orphans_that_are_over_do_not_pile_up() {
    let folder = Folder::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do (true &); done; sleep 1; \
                  ps --ppid $PPID -o stat= | grep -c Z";
    let run = ended(&mut job(&folder, &["-n", "1", "--run-dir", "run"], script));
    assert_eq!(log(&folder, "run", 0, "out"), "0\n", "{run:?}");
}

#[test]
fn much_output_is_carried_whole() {
    let folder = Folder::new();
    let script = "seq 40000; seq 40000 >&2; printf end";
    let run = ended(&mut job(&folder, &["-n", "2", "--run-dir", "run", "--tee", "shown"], script));
    assert_eq!(run.code, Some(0));
    let numbers: String = (1..=40000).map(|n| format!("{n}\n")).collect();
    for rank in 0..2 {
        assert_eq!(log(&folder, "run", rank, "out"), format!("{numbers}end"));
        assert_eq!(log(&folder, "run", rank, "err"), numbers);
    }
    let shown = std::fs::read_to_string(folder.path().join("shown")).unwrap();
    let last = |text: &str| text.lines().filter(|l| l.ends_with(" end")).count();
    assert!((1..=2).contains(&last(&shown)), "folded or not, it is there");
}

#[test]
fn the_same_line_of_several_ranks_is_shown_once() {
    let folder = Folder::new();
    let run = ended(&mut job(&folder, &["-n", "4"], "echo hello; sleep 0.3; echo rank $RANK"));
    // How many fall into one moment is the machine's affair; each rank is there once.
    let who = run.out.lines().filter_map(|l| l.strip_suffix("] hello")?.split_whitespace().last());
    let mut ranks: Vec<u32> = who
        .flat_map(|w| match run.out.contains(" all 4] hello") {
            true => vec![0, 1, 2, 3],
            false => w.parse::<CpuSet>().unwrap().iter().map(|r| r as u32).collect(),
        })
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2, 3], "{}", run.out);
    let run = ended(&mut job(&folder, &["-n", "4", "--rank", "2"], "echo rank $RANK"));
    assert!(run.out.contains("rank 2") && run.out.lines().count() == 1, "{}", run.out);
}

#[test]
fn jobs_side_by_side_do_not_meet() {
    let folder = Folder::new();
    // The first one's rank 0 listens, as a framework's would; bash is no server, so python is asked
    // only where it is.
    let server = "import os, socket, time; s = socket.socket(); s.bind(('', int(os.environ['MASTER_PORT']))); \
                  s.listen(); open('up', 'w').write(os.environ['MASTER_PORT']); time.sleep(600)";
    let mut first = command();
    first.current_dir(folder.path()).args(["launch", "-n", "1", "--", "python3", "-c", server]);
    let Ok(mut first) = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else { return };
    let up = folder.path().join("up");
    until("the first job", || up.exists() || first.try_wait().unwrap().is_some());
    if !up.exists() {
        eprintln!("skipped: no python3 to listen on a port");
        return;
    }
    until("its port", || !std::fs::read_to_string(&up).unwrap().is_empty());
    let taken = std::fs::read_to_string(&up).unwrap();
    let second = ended(&mut job(&folder, &["-n", "1"], "echo port $MASTER_PORT"));
    assert!(second.out.contains("port ") && !second.out.contains(&taken), "{second:?} {taken}");
    signal(&first, 15);
    first.wait().unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_does_not_hide_the_failure() {
    let folder = Folder::new();
    let run = ended(&mut job(&folder, &["-n", "1", "--run-dir", "run"], "rm -r run; exit 7"));
    assert_eq!(run.code, Some(7), "{run:?}");
    assert!(run.err.contains("exit code 7") && run.err.contains("result.json"), "{}", run.err);
}

#[test]
fn what_cannot_be_started_is_said() {
    let folder = Folder::new();
    let mut missing = command();
    missing.current_dir(folder.path()).args(["launch", "--", "no-such-program"]);
    let sentence = ended(&mut missing).err;
    assert!(sentence.contains("rank 0: no-such-program"), "{sentence}");
    assert!(sentence.contains("PATH"), "{sentence}");

    std::fs::create_dir_all(folder.path().join("run")).unwrap();
    ended(&mut job(&folder, &["-n", "1", "--run-dir", "run"], "true"));
    let again = ended(&mut job(&folder, &["-n", "1", "--run-dir", "run"], "true")).sentence();
    assert!(again.contains("--run-dir"), "a run is not overwritten: {again}");

    let mut elsewhere = command();
    elsewhere.current_dir(folder.path()).args(["launch", "--system", "lumi-g", "--", "true"]);
    assert!(ended(&mut elsewhere).sentence().contains("--dry-run"));
    let mut nothing = command();
    assert_ne!(ended(nothing.arg("launch")).code, Some(0));
}

#[test]
fn a_failed_job_is_started_anew() {
    let folder = Folder::new();
    let script = "echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; \
                  [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5";
    let options = ["-n", "2", "--run-dir", "run", "--max-restarts", "3"];
    let run = ended(&mut job(&folder, &options, script));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.err.contains("starting all ranks anew, 2 of 3"), "{}", run.err);
    assert_eq!(result(&folder, "run").restarts, 2);
    let last = folder.path().join("run/log/restart-2/rank-1.out");
    assert_eq!(std::fs::read_to_string(last).unwrap(), "try 2 of 3\n");

    let options = ["-n", "1", "--max-restarts", "1"];
    let run = ended(&mut job(&folder, &options, "exit 4"));
    assert_eq!(run.code, Some(4), "the last failure counts");
}

#[test]
fn nothing_of_the_last_start_is_left_at_the_next() {
    let folder = Folder::new();
    let script = "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then \
                  for p in $(cat pids); do [ ! -e /proc/$p ] || exit 9; done; exit 0; fi; \
                  for i in 1 2 3 4 5 6 7 8; do setsid sleep 600 >/dev/null 2>&1 & \
                  echo $! >> pids; done; exit 5";
    let run = ended(&mut job(&folder, &["-n", "1", "--max-restarts", "1"], script));
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn what_a_shell_pipes_its_output_through_may_finish() {
    let folder = Folder::new();
    let script = "{ sleep 0.3; echo last words; } & exit 4";
    let run = ended(&mut job(&folder, &["-n", "1", "--run-dir", "run"], script));
    assert_eq!((run.code, log(&folder, "run", 0, "out").as_str()), (Some(4), "last words\n"));
    let start = Instant::now();
    ended(&mut job(&folder, &["-n", "1"], "sleep 600 & exit 0"));
    assert!(start.elapsed() < Duration::from_secs(5), "but not for ever");
    let mut flood = job(&folder, &["-n", "1"], "yes & exit 0");
    ended(flood.stdout(Stdio::null()));
    assert!(start.elapsed() < Duration::from_secs(20), "nor if it never stops writing");
}

#[test]
fn a_hang_is_reported_with_where_ranks_wait() {
    let folder = Folder::new();
    let options = ["-n", "2", "--run-dir", "run", "--hang-after", "2", "--max-restarts", "1"];
    let script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 600";
    let run = ended(&mut job(&folder, &options, script));
    assert_eq!(run.code, Some(0), "started anew, it does not hang: {run:?}");
    assert!(run.err.contains("used a processor for 2 s"), "{}", run.err);
    assert!(run.err.contains("rank 0-1 was waiting"), "{}", run.err);

    let options = ["-n", "1", "--run-dir", "alone", "--hang-after", "1"];
    let run = ended(&mut job(&folder, &options, "exec sleep 600"));
    assert_eq!(run.code, Some(124));
    assert_eq!(result(&folder, "alone").hang.unwrap().len(), 1);
}

#[test]
fn a_terminal_that_takes_nothing_does_not_make_it_deaf() {
    let folder = Folder::new();
    // Nobody reads this pipe.
    let mut child = job(&folder, &["-n", "1", "--run-dir", "run"], "exec yes")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let log = folder.path().join("run/log/rank-0.out");
    until("much output", || std::fs::metadata(&log).is_ok_and(|m| m.len() > 200_000));
    signal(&child, 15);
    until("its end", || child.try_wait().unwrap().is_some());
    assert_eq!(result(&folder, "run").reason, "ended by signal 15 (TERM)");
}

#[test]
fn ranks_of_a_batch_script_are_not_all_task_0() {
    let folder = Folder::new();
    let mut job =
        job(&folder, &["-n", "2", "--run-dir", "run"], "echo $SLURM_PROCID $SLURM_NTASKS");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    job.env("SLURM_JOB_ID", "5").env("SLURM_JOB_NODELIST", host.trim());
    let run = ended(job.env("SLURM_PROCID", "0").env("SLURM_NTASKS", "1"));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(log(&folder, "run", 1, "out"), "1 2\n");
}

#[test]
fn a_tool_is_put_around_chosen_ranks() {
    let folder = Folder::new();
    let wrap = "env TOOL='for {rank}'";
    let options = ["-n", "2", "--run-dir", "run", "--wrap", wrap, "--wrap-ranks", "1"];
    let run = ended(&mut job(&folder, &options, "echo ${TOOL:-none}"));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(log(&folder, "run", 0, "out"), "none\n");
    assert_eq!(log(&folder, "run", 1, "out"), "for 1\n");
}

#[test]
fn a_dry_run_starts_nothing() {
    let folder = Folder::new();
    let mut dry = command();
    dry.current_dir(folder.path());
    dry.args(["launch", "--dry-run", "--system", "lumi-g", "-N", "2", "--master-addr", "n1"]);
    let run = ended(dry.args(["--", "touch", "a file"]));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.out.contains("rank 15 on node2") && run.out.contains("touch 'a file'"));
    assert!(run.out.contains("cpus     41-47"), "{}", run.out);
    assert!(!Path::new(&folder.file("a file")).exists() && folder.names().is_empty());
}

#[test]
fn a_folder_in_which_nothing_ran_can_be_used_again() {
    let folder = Folder::new();
    let mut job = command();
    job.current_dir(folder.path()).args(["launch", "-n", "1", "--run-dir", "run", "--"]);
    let run = ended(job.arg("no-such-program"));
    assert_eq!(run.code, Some(127), "as a shell has it: {run:?}");
    assert!(!folder.path().join("run").exists());
    let run = ended(&mut support::job::job(&folder, &["-n", "1", "--run-dir", "run"], "true"));
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn ranks_and_nodes_that_are_not_there_are_named() {
    let folder = Folder::new();
    let said = |options: &[&str]| {
        let mut job = command();
        job.current_dir(folder.path()).args(["launch", "-n", "2", "--oversubscribe"]);
        let run = ended(job.args(options).args(["--", "./nothing"]));
        (run.code, run.err)
    };
    for (options, what) in [
        (&["--rank", "7"][..], "--rank 7, but the job has ranks 0 to 1"),
        (&["--wrap", "env", "--wrap-ranks", "2"], "--wrap-ranks 2"),
        (&["--spares", "4294967295", "--min-nodes", "1"], "--spares 4294967295 leaves no node"),
        (&["--min-nodes", "4"], "--min-nodes 4"),
    ] {
        let (code, stderr) = said(options);
        assert!(code == Some(1) && stderr.contains(what), "{code:?} {stderr}");
    }
    let (code, stderr) = said(&[]);
    assert!(code == Some(127) && stderr.contains("no such file on this node"), "{stderr}");
}

#[test]
fn a_dry_run_keeps_spares_free() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("hosts"), "a\nb\nc\n").unwrap();
    let mut job = command();
    job.current_dir(folder.path()).args(["launch", "--dry-run", "--hostfile", "hosts"]);
    job.args(["--master-addr", "a", "--ranks-per-node", "1", "--spares", "1", "--", "true"]);
    let run = ended(&mut job);
    assert!(run.out.contains("WORLD_SIZE=2") && !run.out.contains("on c"), "{run:?}");
}

#[test]
fn a_rank_has_no_terminal_to_wait_for() {
    let folder = Folder::new();
    let line = format!(
        "{} launch -n 1 --run-dir run -- sh -c 'read x < /dev/tty || echo none'",
        env!("CARGO_BIN_EXE_regatta")
    );
    let mut script = Command::new("script");
    script.current_dir(folder.path()).args(["-qec", &line, "typed"]).stdin(Stdio::null());
    let Ok(out) = script.output() else { return eprintln!("skipped: no `script`") };
    assert!(out.status.success(), "{out:?}");
    assert_eq!(log(&folder, "run", 0, "out"), "none\n");
}

#[test]
fn ranks_know_the_run_folder() {
    let folder = Folder::new();
    let script =
        "test \"$REGATTA_RUN_DIR\" = \"$PWD/some/run\" && touch \"$REGATTA_RUN_DIR/own-$RANK\"";
    ended(&mut job(&folder, &["-n", "2", "--run-dir", "some/run"], script)).ok();
    for rank in 0..2 {
        assert!(folder.path().join(format!("some/run/own-{rank}")).exists());
    }
    let environment = std::fs::read_to_string(folder.path().join("some/run/environment.json"));
    assert!(environment.unwrap().contains("REGATTA_RUN_DIR"));
}
