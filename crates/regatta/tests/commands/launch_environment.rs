//! What a launch needs from its node, and what it leaves there: secret files and code caches that
//! no other user can read or prepare, and nodes without a usable TMPDIR or /sys.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use regatta_testbed::{assert_contains, wait_until};

use crate::support::TempDir;
use crate::support::process::{
    Process, kill, process_state, processes, regatta_in, run_command, run_in, run_job, shell_job,
    wrap,
};

/// The secret files in a folder.
fn secret_files(folder: &TempDir) -> Vec<String> {
    folder.names().into_iter().filter(|name| name.ends_with(".secret")).collect()
}

#[test]
fn no_secret_file_is_left_when_the_launcher_is_killed() {
    let folder = TempDir::new();
    let start = |run: &str| {
        let script = format!("test -s \"$REGATTA_SECRET_FILE\" && echo > {run}; exec sleep 600");
        let mut job = shell_job(&folder, &format!("-n 1 --run-dir of-{run}"), &script);
        let job = Process::spawn(&folder, &mut job);
        wait_until("the rank to read the secret", || folder.exists(run));
        job
    };
    let kill_processes = |job: Process, chosen: &dyn Fn(usize) -> bool| {
        // The original process, the reaper and the worker.
        let ranks = processes(&folder).into_iter();
        let mut pids: Vec<u32> =
            ranks.filter_map(|(pid, rank)| rank.is_none().then_some(pid)).collect();
        pids.sort();
        assert_eq!(pids.len(), 3);
        let chosen = pids.iter().enumerate().filter(|(i, _)| chosen(*i));
        let pids: Vec<String> = chosen.map(|(_, pid)| pid.to_string()).collect();
        // Stopped first: none of them runs between the deaths of the others.
        kill(&format!("-STOP {}", pids.join(" ")));
        let is_stopped = |pid: &String| process_state(pid) == 'T';
        wait_until("the processes to stop", || pids.iter().all(is_stopped));
        kill(&format!("-9 {}", pids.join(" ")));
        job.wait();
        wait_until("all processes to exit", || processes(&folder).is_empty());
    };
    for (victim, run) in ["a", "b", "c"].into_iter().enumerate() {
        kill_processes(start(run), &|process| process == victim);
        assert_eq!(secret_files(&folder), [""; 0], "removed by another process than {victim}");
    }
    kill_processes(start("all"), &|_| true);
    assert_eq!(secret_files(&folder).len(), 1, "nothing is left to remove it");
    let _running = start("d");
    let file = secret_files(&folder);
    assert_eq!(file.len(), 1, "the next launch removed what was left");
    drop(start("e"));
    assert_eq!(folder.read(&file[0]).len(), 64, "the secret of a running job is kept");
}

#[test]
fn unusable_tmpdir_is_reported_and_the_secret_of_an_outer_job_is_not_inherited() {
    let folder = TempDir::new();
    let file = folder.write("file", "");
    let mut job = shell_job(&folder, "-n 1", "echo secret=$REGATTA_SECRET_FILE=");
    let job = job.env("TMPDIR", &file).env("REGATTA_SECRET_FILE", folder.join("outer"));
    let run = run_command(job);
    let note = format!("note: cannot write the secret of the ranks to {file}/regatta-ranks-");
    assert_contains(&run.err, [&*note, "set TMPDIR to a directory"]);
    run.assert_ok("secret==");
    for words in ["train -n 2 train.steps=1", "bench all-reduce -n 2"] {
        let run = run_command(regatta_in(&folder, words).env("TMPDIR", &file));
        let error = run.assert_code(1).err;
        assert_contains(&error, ["error: cannot write the secret", "set TMPDIR to a directory"]);
    }
}

#[test]
fn code_caches_that_another_user_prepared_are_not_used() {
    let folder = TempDir::new();
    let env = || run_in(&folder, "env");
    let prepared = folder.join("regatta-ada-local");
    assert_contains(env().ok(), &format!("TRITON_CACHE_DIR={}/triton;", prepared.display()));
    let mode = std::fs::symlink_metadata(&prepared).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::remove_dir(&prepared).unwrap();
    std::os::unix::fs::symlink("/etc", &prepared).unwrap();
    let note = format!("note: cache directory {} is not used", prepared.display());
    let random = format!("{}-", prepared.display());
    let run = env();
    assert_contains(&run.err, [&*note, &*random, "user ID"]);
    run.assert_ok(&format!("TRITON_CACHE_DIR={random}"));
    // All ranks of a launch use the same directory.
    let run = run_job(&folder, "-n 2", "test -w ${TRITON_CACHE_DIR%/*} && echo $TRITON_CACHE_DIR");
    assert_contains(&run.err, &*note);
    run.assert_ok(["all 2] ", &*random]);
    // A plan for another machine creates nothing.
    let before = folder.names();
    run_in(&folder, "env --system lumi-g").ok();
    run_in(&folder, "launch --system lumi-g --dry-run -- true").ok();
    assert_eq!(folder.names(), before);
}

#[test]
fn without_sysfs_ranks_run_on_the_cores_of_the_affinity() {
    let folder = TempDir::new();
    let user = if rustix::process::geteuid().is_root() { "" } else { "-r" };
    let hidden = "mount -t tmpfs tmpfs /sys && exec \"$@\"";
    let args = ["-m", user, "sh", "-c", hidden, "sh"].into_iter().filter(|word| !word.is_empty());
    let args: Vec<&str> = args.collect();
    let probe = Command::new("unshare").args(&args).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: cannot mount over /sys");
    }
    let job = shell_job(&folder, "-n 2 --run-dir run", "echo rank");
    let run = run_command(&mut wrap(&job, "unshare", &args));
    assert_contains(&run.err, "/sys is not mounted");
    run.assert_ok("all 2] rank");
    let map = run_command(&mut wrap(&regatta_in(&folder, "map"), "unshare", &args));
    assert_contains(&map.err, "/sys is not mounted");
    map.assert_ok("no NUMA node");
}

#[test]
fn jax_gets_an_environment_that_it_detects() {
    let folder = TempDir::new();
    let plan = run_command(&mut shell_job(&folder, "-n 2 --framework jax --dry-run", "true")).ok();
    assert_contains(
        &plan,
        ["OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1", "OMPI_MCA_orte_hnp_uri="],
    );
}
