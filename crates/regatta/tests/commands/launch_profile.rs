//! `regatta launch --profile`: the plug-in, its variables, and the hang report.

use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use libc::SIGINT;
use regatta_events::status::EXTENSION;
use regatta_observe::read::comms::{files_of, read_status};
use regatta_testbed::{assert_contains, wait_until};
use rustix::fs::inotify;

use crate::support::process::{Process, rank_log, regatta_in, run_command, run_in, run_result};
use crate::support::{TempDir, fake_rank};

const LIBRARY: &str = "libnccl-profiler-regatta.so";
const JOB: &str = "launch --oversubscribe --no-gpus --profile --run-dir run";

#[test]
#[ignore = "a rank of the other tests"]
fn rank_of_a_job() {
    fake_rank::run();
}

/// The command line of a job of fake ranks.
fn fake_job(options: &str, stopped: Option<(u32, u64)>) -> String {
    let command = fake_rank::command("launch_profile::rank_of_a_job", stopped);
    format!("{JOB} {options} -- {}", shlex::try_join(command.iter().map(String::as_str)).unwrap())
}

#[test]
fn ranks_get_the_plugin_and_its_variables() {
    let folder = TempDir::new();
    let run = run_in(&folder, &format!("{JOB} -n 2 -- env")).assert_code(0);
    let comms = folder.join("run/comms");
    let (comms, library) = (comms.to_str().unwrap(), comms.join(LIBRARY));
    for rank in 0..2 {
        let environment = rank_log(&folder, "run", rank, "out");
        let plugin = format!("NCCL_PROFILER_PLUGIN={}\n", library.display());
        assert_contains(&environment, [&plugin, &*format!("REGATTA_PROFILE={comms}\n")]);
        assert_contains(&environment, "REGATTA_PROFILE_LEVEL=network\n");
    }
    let file = std::fs::metadata(&library).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o755);
    assert_eq!(&std::fs::read(&library).unwrap()[..4], b"\x7fELF");
    assert!(!run.err.contains("regatta comms"), "nothing was recorded: {run:?}");
    assert_contains(&run.err, "note: --profile recorded nothing: ");
    assert_contains(&run_result(&folder, "run").notes[0], "NCCL 2.26 or newer");
}

#[test]
fn dry_run_shows_the_variables_of_the_profile() {
    let folder = TempDir::new();
    let dry_run = "launch --dry-run --system lumi-g";
    let text = run_in(&folder, &format!("{dry_run} -N 2 --profile=steps -- true")).ok();
    for line in [
        &format!("NCCL_PROFILER_PLUGIN=RUN-FOLDER/comms/{LIBRARY}"),
        "REGATTA_PROFILE=RUN-FOLDER/comms",
        "REGATTA_PROFILE_LEVEL=steps",
    ] {
        assert_contains(&text, &*format!("  env      {line}  collectives are recorded"));
    }
    assert!(!run_in(&folder, &format!("{dry_run} -- true")).ok().contains("REGATTA_PROFILE"));
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn own_plugin_of_the_user_is_an_error_and_nothing_starts() {
    let folder = TempDir::new();
    let mut job = regatta_in(&folder, &format!("{JOB} -n 1 -- touch started"));
    let run = run_command(job.env("NCCL_PROFILER_PLUGIN", "/opt/own.so")).assert_code(1);
    assert_contains(&run.err, "NCCL_PROFILER_PLUGIN=/opt/own.so is set");
    assert_eq!(folder.names(), [""; 0], "the run folder is removed");
    run_in(&folder, &format!("{JOB} -n 1 -- no-such-program")).assert_code(127);
    assert!(!folder.exists("run"), "with the plug-in");
}

#[test]
fn plugin_is_installed_with_the_variables_that_load_it() {
    let folder = TempDir::new();
    let text = run_in(&folder, "plugin install lib").ok();
    let lib = folder.join("lib");
    let names = [LIBRARY, "libnccl-tuner-regatta.so", "libnccl-net-regatta.so"];
    let [profiler, tuner, net] = names.map(|name| lib.join(name));
    let exports: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        format!("export NCCL_PROFILER_PLUGIN={}", profiler.display()),
        "export REGATTA_PROFILE=\"$PWD/comms\"".to_owned(),
        format!("export NCCL_TUNER_PLUGIN={}", tuner.display()),
        "export REGATTA_TUNER=\"$PWD/tuning.txt\"".to_owned(),
        format!("export NCCL_NET_PLUGIN={}", net.display()),
    ];
    assert_eq!(exports, expected);
    assert_eq!(folder.names(), ["lib"]);
    for library in [profiler, tuner, net] {
        assert!(std::fs::read(library).unwrap().starts_with(b"\x7fELF"));
    }
    run_in(&folder, "plugin install /dev/null/lib").assert_error("cannot write /dev/null/lib");
}

#[test]
fn profiled_job_names_the_command_that_reads_the_events() {
    let folder = TempDir::new();
    let run = run_in(&folder, &fake_job("-n 3 --hang-timeout 60", None)).assert_code(0);
    assert_contains(&run.err, "collectives: regatta comms run\n");
    let result = run_result(&folder, "run");
    assert!(result.notes.is_empty() && result.collectives.is_empty(), "{result:?}");
}

#[test]
fn stopped_rank_is_named_with_the_collective() {
    let folder = TempDir::new();
    let job = fake_job("-n 4 --hang-timeout 2", Some((2, 5)));
    let run = run_in(&folder, &job).assert_code(124);
    let host = regatta_comm::bootstrap::host_name();
    let named = format!(
        "\nrank 2 on {host} did not arrive at all-reduce 5 (4 MiB of bf16, communicator default_pg, 4 \
         ranks), which ranks 0-1,3 entered "
    );
    let why = "\nhang detected: a collective or message made no progress for 2 s\n";
    assert_contains(&run.err, [&named, why]);
    assert!(run.err.find(&named) < run.err.find(why), "{}", run.err);
    let result = run_result(&folder, "run");
    assert_eq!(result.collectives.len(), 1, "{result:?}");
    assert_eq!(result.collectives[0].ranks, [2]);
    assert!(result.collectives[0].seconds >= 2.0, "{result:?}");
}

/// Whether a status file is of a rank whose oldest collective in flight is this one.
fn is_in_collective(file: &Path, rank: u32, index: u64) -> bool {
    read_status(file).is_some_and(|status| {
        let mut current = status.communicators.iter().filter_map(|one| one.current);
        status.process.rank == Some(rank) && current.any(|current| current.index == index)
    })
}

/// Waits until a file was opened this many times. Of three reads of a status, the launcher has taken the first:
/// the thread that reads is at most one ahead of it.
fn wait_for_reads(file: &Path, count: usize) {
    let inotify = inotify::init(inotify::CreateFlags::empty()).unwrap();
    inotify::add_watch(&inotify, file, inotify::WatchFlags::OPEN).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 512];
    let mut events = inotify::Reader::new(inotify, &mut buffer);
    for _ in 0..count {
        events.next().unwrap();
    }
}

#[test]
fn interrupted_hang_names_the_rank_without_a_timeout() {
    let folder = TempDir::new();
    // Collectives that were enqueued longer ago than those that are ordinary.
    let mut job = regatta_in(&folder, &fake_job("-n 2", Some((1, 3))));
    let process = Process::spawn(&folder, job.env(fake_rank::AGE, "10"));
    let mut file = None;
    wait_until("the status of rank 0 in collective 3", || {
        let files = files_of(&folder.join("run/comms"), EXTENSION).unwrap_or_default();
        file = files.into_iter().find(|file| is_in_collective(file, 0, 3));
        file.is_some()
    });
    wait_for_reads(&file.unwrap(), 3);
    process.signal(SIGINT);
    let run = process.wait();
    assert_contains(&run.err, ["rank 1 on ", " did not arrive at all-reduce 3 "]);
}
