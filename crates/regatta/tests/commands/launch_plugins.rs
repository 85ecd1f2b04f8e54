//! `regatta launch --tuner` and `--net-plugin`: the plug-ins, and the variables of all ranks.

use regatta_testbed::assert_contains;

use crate::support::TempDir;
use crate::support::process::{rank_log, regatta_in, run_command, run_in};

const TUNER: &str = "libnccl-tuner-regatta.so";
const NET: &str = "libnccl-net-regatta.so";
const JOB: &str = "launch --oversubscribe --no-gpus --run-dir run";

/// A table with rows for two ranks on one node.
const TABLE: &str = "regatta-nccl-tuning 1
# ranks=2 nodes=1 all-reduce: measured by hand
all-reduce ranks=2 nodes=1 bytes=1..4096 tree ll
";

/// A folder with a table.
fn folder_with_table() -> TempDir {
    let folder = TempDir::new();
    std::fs::write(folder.join("tuning.txt"), TABLE).unwrap();
    folder
}

/// Lines of a rank's environment that begin with one of these names.
fn environment(folder: &TempDir, rank: u32, names: &[&str]) -> Vec<String> {
    let log = rank_log(folder, "run", rank, "out");
    let is_named = |line: &&str| names.contains(&line.split('=').next().unwrap_or_default());
    let mut lines: Vec<String> = log.lines().filter(is_named).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn all_ranks_get_the_tuner_and_a_copy_of_the_table() {
    let folder = folder_with_table();
    let run = run_in(&folder, &format!("{JOB} -n 2 --tuner tuning.txt -- env")).assert_code(0);
    assert!(!run.err.contains("no rows"), "{run:?}");
    let plugins = folder.join("run/plugins");
    let expected = [
        format!("NCCL_TUNER_PLUGIN={}", plugins.join(TUNER).display()),
        format!("REGATTA_TUNER={}", plugins.join("tuning.txt").display()),
    ];
    for rank in 0..2 {
        let names = ["NCCL_TUNER_PLUGIN", "REGATTA_TUNER", "NCCL_NET_PLUGIN"];
        assert_eq!(environment(&folder, rank, &names), expected);
    }
    assert_eq!(std::fs::read_to_string(plugins.join("tuning.txt")).unwrap(), TABLE);
    assert!(std::fs::read(plugins.join(TUNER)).unwrap().starts_with(b"\x7fELF"));
    assert!(!plugins.join(NET).exists());
}

#[test]
fn profiler_tuner_and_network_plugin_work_together() {
    let folder = folder_with_table();
    let options = "--profile --tuner tuning.txt --net-plugin regatta";
    run_in(&folder, &format!("{JOB} -n 2 {options} -- env")).assert_code(0);
    let run = folder.join("run");
    let expected = [
        format!("NCCL_NET_PLUGIN={}", run.join("plugins").join(NET).display()),
        format!("NCCL_PROFILER_PLUGIN={}/comms/libnccl-profiler-regatta.so", run.display()),
        format!("NCCL_TUNER_PLUGIN={}", run.join("plugins").join(TUNER).display()),
    ];
    let names = ["NCCL_NET_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_TUNER_PLUGIN"];
    for rank in 0..2 {
        let lines = environment(&folder, rank, &names);
        assert_eq!(lines, expected);
        for line in &lines {
            let library = line.split_once('=').unwrap().1;
            assert!(std::fs::read(library).unwrap().starts_with(b"\x7fELF"), "{library}");
        }
    }
}

#[test]
fn restarted_ranks_use_the_table_of_the_first_attempt() {
    let folder = folder_with_table();
    let script =
        "cat $REGATTA_TUNER; echo damaged > tuning.txt; exit $((1 - $TORCHELASTIC_RESTART_COUNT))";
    let words = shlex::try_quote(script).unwrap();
    let job = format!("{JOB} -n 1 --max-restarts 1 --tuner tuning.txt -- sh -c {words}");
    let run = run_in(&folder, &job).assert_code(0);
    assert_eq!(std::fs::read_to_string(folder.join("tuning.txt")).unwrap(), "damaged\n");
    let restarted = std::fs::read_to_string(folder.join("run/log/restart-1/rank-0.out")).unwrap();
    assert_eq!(restarted, TABLE, "{run:?}");
    assert_eq!(run.err.matches("has no rows for ranks=1 nodes=1").count(), 1, "{run:?}");
}

#[test]
fn table_is_checked_before_anything_starts() {
    let folder = folder_with_table();
    let job = |options: &str| format!("{JOB} -n 1 {options} -- touch started");
    run_in(&folder, &job("--tuner missing.txt")).assert_error("--tuner missing.txt: No such file");
    run_in(&folder, &job("--tuner ."))
        .assert_error("--tuner .: it is a directory, not a regular file");
    let damaged = format!("{TABLE}all-reduce ranks=2 nodes=1 bytes=1..8 star ll\n");
    std::fs::write(folder.join("damaged.txt"), damaged).unwrap();
    run_in(&folder, &job("--tuner damaged.txt")).assert_error("--tuner damaged.txt: line 4: ");
    run_in(&folder, &job("--net-plugin lib.so")).assert_error("/lib.so: no such file");
    assert_eq!(folder.names(), ["damaged.txt", "tuning.txt"], "nothing has started");
    let note = "note: --tuner tuning.txt: the table has no rows for ranks=1 nodes=1, the size of this \
                job, but rows for ranks=2 nodes=1: ";
    let run = run_in(&folder, &job("--tuner tuning.txt")).assert_code(0);
    assert_contains(&run.err, note);
}

#[test]
fn own_plugin_of_the_user_is_an_error_that_names_both() {
    let folder = folder_with_table();
    let cases = [
        ("NCCL_TUNER_PLUGIN", "/opt/own.so", "--tuner tuning.txt", TUNER),
        ("REGATTA_TUNER", "/opt/other.txt", "--tuner tuning.txt", "tuning.txt"),
        ("NCCL_NET_PLUGIN", "ofi", "--net-plugin regatta", NET),
    ];
    for (variable, value, options, ours) in cases {
        let mut job = regatta_in(&folder, &format!("{JOB} -n 1 {options} -- touch started"));
        let run = run_command(job.env(variable, value)).assert_code(1);
        let option = options.split(' ').next().unwrap();
        let path = folder.join("run/plugins").join(ours);
        let message =
            format!("{variable}={value} is set, and {option} sets it to {}", path.display());
        assert_contains(&run.err, &*message);
        assert_eq!(folder.names(), ["tuning.txt"], "the run folder is removed");
    }
    let mut job = regatta_in(&folder, &format!("{JOB} -n 1 --net-plugin regatta -- true"));
    let run = run_command(job.env("NCCL_NET", "Socket")).assert_code(1);
    assert_contains(&run.err, "NCCL_NET=Socket is set, but the network of --net-plugin regatta");
    let options = "--tuner tuning.txt --net-plugin regatta";
    run_in(&folder, &format!("{JOB} -n 1 {options} -- no-such-program")).assert_code(127);
    assert!(!folder.exists("run"), "with the plug-ins");
}

#[test]
fn path_of_a_library_is_absolute_for_the_ranks() {
    let folder = TempDir::new();
    std::fs::write(folder.join("lib.so"), "").unwrap();
    let mut job = regatta_in(&folder, &format!("{JOB} -n 1 --net-plugin ./lib.so -- env"));
    run_command(job.env("NCCL_NET", "AWS Libfabric")).assert_code(0);
    let expected = [
        "NCCL_NET=AWS Libfabric".to_owned(),
        format!("NCCL_NET_PLUGIN={}", folder.join("lib.so").display()),
    ];
    assert_eq!(environment(&folder, 0, &["NCCL_NET", "NCCL_NET_PLUGIN"]), expected);
    assert!(!folder.exists("run/plugins"));
}

#[test]
fn dry_run_shows_the_variables_in_place_of_the_sites() {
    let folder = folder_with_table();
    let dry_run = "launch --dry-run --system lumi-g -N 2";
    let options = "--tuner tuning.txt --net-plugin regatta";
    let run = run_in(&folder, &format!("{dry_run} {options} -- true")).assert_code(0);
    for line in [
        format!("NCCL_TUNER_PLUGIN=RUN-FOLDER/plugins/{TUNER}  all ranks load the same (--tuner)"),
        "REGATTA_TUNER=RUN-FOLDER/plugins/tuning.txt  all ranks load the same (--tuner)".to_owned(),
        format!("NCCL_NET_PLUGIN=RUN-FOLDER/plugins/{NET}  all ranks load the same (--net-plugin)"),
        "REGATTA_NET=require  in place of the site's NCCL_NET=AWS Libfabric".to_owned(),
    ] {
        assert_contains(&run.out, &*format!("  env      {line}"));
    }
    assert!(!run.out.contains("  env      NCCL_NET="), "{}", run.out);
    assert_contains(&run.err, "no rows for ranks=16 nodes=2");
    let library = run_in(&folder, &format!("{dry_run} --net-plugin /opt/lib.so -- true")).ok();
    assert_contains(&library, "NCCL_NET_PLUGIN=/opt/lib.so  all ranks load");
    assert_contains(&library, "NCCL_NET='AWS Libfabric'");
    assert_eq!(folder.names(), ["tuning.txt"]);
}

#[test]
fn commands_that_launch_their_own_ranks_pass_the_options_on() {
    let folder = folder_with_table();
    let bench = "bench all-reduce -n 1 -b 8 -e 8 --ranks 2 --run-dir run --launch";
    run_in(&folder, &format!("{bench} '--tuner tuning.txt --net-plugin regatta'")).assert_code(0);
    assert!(folder.exists(format!("run/plugins/{NET}")));
    let both = format!("{bench} '--tuner tuning.txt' --tuner tuning.txt");
    run_in(&folder, &both).assert_error("--launch: --tuner is already set by this command");
    let tune = "bench all-reduce --backend nccl --tune new.txt --tuner tuning.txt";
    run_in(&folder, tune)
        .assert_usage_error("'--tune <FILE>' cannot be used with '--tuner <TABLE>'");
    std::fs::write(folder.join("damaged.txt"), "").unwrap();
    for command in ["train --ranks 2 --tuner damaged.txt", "bench all-reduce --tuner damaged.txt"] {
        run_in(&folder, command).assert_error("--tuner damaged.txt: line 1: not a tuning table");
    }
    run_in(&folder, "train --ranks 2 --net-plugin gone.so").assert_error("/gone.so: no such file");
}

#[test]
fn rank_of_another_launcher_gets_no_plugin() {
    let folder = folder_with_table();
    for option in ["--tuner tuning.txt", "--net-plugin regatta"] {
        let mut rank = regatta_in(&folder, &format!("launch {option} -- true"));
        rank.envs([("SLURM_JOB_ID", "1"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]);
        rank.envs([("SLURM_STEP_ID", "0"), ("SLURM_LOCALID", "0"), ("SLURM_NODEID", "0")]);
        let host = regatta_comm::bootstrap::host_name();
        rank.envs([("SLURM_JOB_NODELIST", &*host), ("SLURM_STEP_NODELIST", &*host)]);
        rank.envs([("SLURM_NNODES", "1"), ("SLURM_STEP_NUM_NODES", "1")]);
        rank.envs([("SLURM_STEP_TASKS_PER_NODE", "1"), ("SLURM_STEP_NUM_TASKS", "1")]);
        let name = option.split(' ').next().unwrap();
        let message = format!("{name} needs one `regatta launch` for the whole job");
        assert_contains(&run_command(&mut rank).assert_code(1).err, &*message);
    }
}
