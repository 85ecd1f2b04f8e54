//! `regatta submit` and `regatta jobs`: golden scripts of sites, and submission to stand-ins for the
//! schedulers' commands.
//!
//! `REGATTA_BLESS=1 cargo test -p regatta --test commands submit` updates the golden files.

use std::path::Path;
use std::process::Command;

use regatta_testbed::{assert_contains, write_with_mode};
use serde_json::Value;

use crate::support::{self, CommandOutput, TempDir, command, golden, run_line};

/// Golden files and the commands that print them.
const SCRIPTS: [(&str, &str); 16] = [
    (
        "submit-lumi-g",
        "--system lumi-g -N 4 -t 2h -A project_465000001 --module PyTorch/2.3 -- python train.py --lr 3e-4",
    ),
    (
        "submit-lumi-g-container",
        "--system lumi-g -N 2 -t 30m -A project_465000001 --container torch.sif -- python train.py",
    ),
    (
        "submit-frontier",
        "--system frontier -N 8 -t 2h -A abc123 --requeue -- regatta train gpt2 data.source=books",
    ),
    ("submit-perlmutter", "--system perlmutter -N 2 -t 1h -A m1234_g -- python train.py"),
    (
        "submit-alps",
        "--system alps -N 2 -t 1h -A g123 --after 100 --after 101 --after-any 99 -- ./train",
    ),
    (
        "submit-perlmutter-container",
        "--system perlmutter -N 2 -t 1h -A m1234_g --container nersc/pytorch:25.06.01 -- python train.py",
    ),
    (
        "submit-alps-container",
        "--system alps -N 2 -t 1h -A g123 --container nvcr.io#nvidia/pytorch:25.11-py3 -- python train.py",
    ),
    (
        "submit-alps-edf",
        "--system alps -N 2 -t 1h -A g123 --container my-env.toml -- python train.py",
    ),
    (
        "submit-slurm-array",
        "--scheduler slurm --system infiniband -t 1h --array 0-9%2 --requeue --gpus-per-node 8 -- regatta train tiny",
    ),
    (
        "submit-pbs-array",
        "--scheduler pbs --system infiniband -t 1h --array 10 --gpus-per-node 4 -- python train.py",
    ),
    (
        "submit-slurm",
        "--scheduler slurm --system infiniband -N 2 --gpus-per-node 8 -p gpu -- regatta launch --spares 1 ./train",
    ),
    ("submit-polaris", "--system polaris -N 10 -t 1h -A Catalyst -q prod -- python train.py"),
    (
        "submit-aurora",
        "--system aurora -N 2 -t 1h -A Catalyst -q debug --ranks-per-node 12 --after 123.aurora-pbs -- python train.py",
    ),
    (
        "submit-pbs",
        "--scheduler pbs --system infiniband -N 2 -t 1-00:00:00 --gpus-per-node 4 --requeue --signal-before 300 -- regatta bench all-reduce -b 8 -e 1G",
    ),
    (
        "submit-el-capitan",
        "--system el-capitan -N 4 -t 8h --bank guests -q pbatch --after ƒM7Zq9AKHno -- python train.py",
    ),
    (
        "submit-flux",
        "--scheduler flux --system ethernet --signal-before 0 --name my-job --job-dir out -- regatta map --check",
    ),
];

/// `regatta submit --dry-run` with these words.
fn dry_run(folder: &TempDir, words: &str) -> CommandOutput {
    let mut command = command();
    command.current_dir(folder).args(["submit", "--dry-run"]).args(words.split_whitespace());
    command.output().unwrap().into()
}

#[test]
fn scripts_of_sites() {
    let folder = TempDir::new();
    for (name, words) in SCRIPTS {
        let script = dry_run(&folder, words).ok();
        golden(&format!("{name}.sh"), &script);
        let file = folder.write("job.sh", &script);
        for shell in ["sh", "bash"] {
            assert!(Command::new(shell).args(["-n", &file]).status().unwrap().success(), "{name}");
        }
        std::fs::remove_file(file).unwrap();
    }
    assert!(folder.names().is_empty(), "a dry run writes nothing");
}

/// podman-hpc passes the variables that are named, and no others.
#[test]
fn container_of_perlmutter_gets_all_variables_of_a_rank() {
    let words = SCRIPTS.iter().find(|(name, _)| *name == "submit-perlmutter-container").unwrap().1;
    let script = dry_run(&TempDir::new(), words).ok();
    let words = shlex::split(&script.replace("\\\n", " ")).unwrap();
    let passed = words.windows(2).filter(|pair| pair[0] == "-e").map(|pair| pair[1].clone());
    let passed: Vec<String> = passed.collect();
    let is_passed = |variable: &str| {
        passed.iter().any(|name| match name.strip_suffix('*') {
            Some(start) => variable.starts_with(start),
            None => variable == name,
        })
    };
    for framework in ["torch", "deepspeed", "accelerate", "horovod", "jax"] {
        let line = format!("launch --system perlmutter -N 2 --framework {framework}");
        let text = run_line(&format!("{line} --check-net --dry-run true")).ok();
        let variables = text.lines().filter_map(|line| line.trim().strip_prefix("env "));
        let names: Vec<&str> = variables.map(|v| v.trim().split('=').next().unwrap()).collect();
        assert!(names.len() > 100, "{text}");
        let missing: Vec<&&str> = names.iter().filter(|name| !is_passed(name)).collect();
        assert!(missing.is_empty(), "{framework}: {missing:?}");
    }
    assert!(!is_passed("PATH") && !is_passed("LD_LIBRARY_PATH") && !is_passed("CUDA_HOME"));
}

#[test]
fn errors_name_the_option() {
    let folder = TempDir::new();
    let error = |words: &str| dry_run(&folder, words).error_line();
    assert_contains(error("--system lumi-g -- ./a"), "LUMI-G requires --account NAME");
    assert_contains(error("--system polaris -A x -- ./a"), ["--time LIMIT", "--partition NAME"]);
    assert_contains(error("--system lumig -- ./a"), "did you mean lumi-g?");
    assert_contains(error("--system lumi-g -A a;b -- ./a"), "--account \"a;b\"");
    let array = "--array: every task would write to the run folder x";
    let named = "--system lumi-g -A a --array 3 -- regatta launch --run-dir x ./a";
    assert_contains(error(named), array);
    run_line("submit --array 1,3 -- ./a").assert_usage_error("expected a number of tasks as in 10");
    let ranks = "--system lumi-g -A a --ranks-per-node 2 -- regatta train";
    assert_contains(error(ranks), "--ranks-per-node is for programs");
    let net = "--system lumi-g -A a --check-net -- regatta train";
    assert_contains(error(net), "--check-net is for programs");
    let aurora = "--system aurora -A a -q debug -t 1h --require-net cxi -- ./a";
    assert_contains(error(aurora), "for oneCCL, which logs nothing that --check-net reads");
    let lumi = "--system lumi-g -A a --check-net --require-net cxi/GDRDMA -- ./a";
    let options = "launch --site lumi-g --check-net --require-net cxi/GDRDMA --run-dir";
    assert_contains(dry_run(&folder, lumi).ok(), options);
    let profile = dry_run(&folder, "--system lumi-g -A a --profile -- ./a").ok();
    assert_contains(profile, "launch --site lumi-g --profile=network --run-dir");
    let aurora = "--system aurora -A a -q debug -t 1h --profile=steps -- ./a";
    assert_contains(error(aurora), "for oneCCL, which loads no plug-in of NCCL; remove --profile");
    let profile = "--system lumi-g -A a --profile -- regatta train";
    assert_contains(error(profile), "--profile is for programs");
    let damaged = "--system lumi-g -A a --tuner damaged.txt -- ./a";
    std::fs::write(folder.join("damaged.txt"), "no table").unwrap();
    assert_contains(error(damaged), "--tuner damaged.txt: line 1: not a tuning table");
    std::fs::write(folder.join("tuning.txt"), "regatta-nccl-tuning 1\n").unwrap();
    let plugins = "--system lumi-g -A a --tuner tuning.txt --net-plugin lib.so -- ./a";
    let path = |name: &str| folder.join(name).display().to_string();
    let options = format!("--tuner {} --net-plugin {} ", path("tuning.txt"), path("lib.so"));
    assert_contains(dry_run(&folder, plugins).ok(), &*options);
    let built_in = dry_run(&folder, "--system lumi-g -A a --net-plugin regatta -- ./a").ok();
    assert_contains(built_in, "launch --site lumi-g --net-plugin regatta --run-dir");
    for option in ["--tuner tuning.txt", "--net-plugin regatta"] {
        let name = option.split(' ').next().unwrap();
        let train = format!("--system lumi-g -A a {option} -- regatta train");
        assert_contains(error(&train), &*format!("{name} is for programs"));
        let aurora = format!("--system aurora -A a -q debug -t 1h {option} -- ./a");
        assert_contains(error(&aurora), &*format!("no plug-in of NCCL; remove {name}"));
    }
    run_line("submit -t 30 -- ./a").assert_usage_error("invalid value '30' for '--time <LIMIT>'");
    let missing = run_line("submit --dry-run").assert_code(2);
    assert_contains(missing.err, "COMMAND");
}

/// A user's environment with stand-ins for the commands of a scheduler.
struct User {
    folder: TempDir,
}

impl User {
    /// The stand-ins are shell scripts by name.
    fn new(programs: &[(&str, &str)]) -> Self {
        let folder = TempDir::new();
        std::fs::create_dir(folder.join("bin")).unwrap();
        for (name, body) in programs {
            let text = format!("#!/bin/sh\necho \"{name} $*\" >>\"$CALLS\"\n{body}\n");
            write_with_mode(folder.join("bin").join(name), 0o755, text);
        }
        Self { folder }
    }

    fn run(&self, words: &str) -> CommandOutput {
        let mut command = command();
        let path = format!("{}:/usr/bin:/bin", self.folder.join("bin").display());
        command.current_dir(&self.folder).args(words.split_whitespace());
        command.env("PATH", path).env("XDG_STATE_HOME", self.folder.join("state"));
        command.env("CALLS", self.folder.join("calls"));
        command.output().unwrap().into()
    }

    fn jobs(&self) -> Value {
        self.run("jobs --json").json()
    }

    fn calls(&self, program: &str) -> usize {
        let calls = std::fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        calls.lines().filter(|line| line.split(' ').next() == Some(program)).count()
    }
}

#[test]
fn submitted_job_is_recorded_and_listed() {
    let user = User::new(&[
        ("sbatch", "echo '4711;here'"),
        ("scontrol", "echo 'ClusterName = lumi'"),
        ("squeue", "cat queue 2>/dev/null"),
        ("sacct", "cat accounting 2>/dev/null"),
    ]);
    user.run("submit -- ./train").assert_error("LUMI-G requires --account");
    assert!(!user.folder.exists("jobs"), "nothing is left of a job that was not submitted");
    let submitted = user.run("submit -N 2 -t 1h -A project_1 -- ./train --lr 1");
    let submitted = submitted.assert_stderr("submitted to Slurm; script and output: ");
    assert_eq!(submitted.ok(), "4711\n");
    let script = user.folder.read("jobs/train/job.sh");
    assert_contains(&script, ["#SBATCH --account=project_1\n", " launch --site lumi-g "]);
    assert_contains(&script, "-- ./train --lr 1\n");
    assert_eq!(user.folder.list("jobs/train"), ["job.json", "job.sh"]);
    assert_eq!(user.folder.list("state/regatta/jobs").len(), 1);

    std::fs::write(user.folder.join("queue"), "4711|PENDING|0:00|1:00:00|Priority|train\n")
        .unwrap();
    let job = user.jobs()["jobs"][0].clone();
    assert_eq!(job["id"], "4711");
    assert_eq!((&job["state"], &job["reason"]), (&"pending".into(), &"Priority".into()));
    assert_eq!((&job["limit"], &job["nodes"]), (&3600.into(), &2.into()));
    assert_eq!(job["run_folder"], Value::Null);

    std::fs::write(user.folder.join("queue"), "4711|RUNNING|1:00|1:00:00|None|train\n").unwrap();
    let run = user.folder.join("jobs/train/run-0");
    std::fs::create_dir(&run).unwrap();
    let metrics = "{\"step\":1,\"steps\":9,\"loss\":2.5}\n{\"step\":2,\"steps\":9,\"loss\":2.25}\n";
    std::fs::write(run.join("metrics.jsonl"), metrics).unwrap();
    let table = user.run("jobs").ok();
    assert_contains(&table, ["4711", "running", "0:01:00", "step 2/9, loss 2.2500"]);
    assert_contains(&table, "jobs/train/run-0");

    // Only the accounting database still has the job; once its end is recorded, no scheduler command runs.
    std::fs::write(user.folder.join("queue"), "").unwrap();
    std::fs::write(user.folder.join("accounting"), "4711|FAILED|90|60|75:0|train\n").unwrap();
    let job = user.jobs()["jobs"][0].clone();
    assert_eq!((&job["state"], &job["exit_code"]), (&"failed".into(), &75.into()));
    let calls = user.calls("sacct");
    assert_contains(user.run("jobs train").ok(), ["failed", "exit code 75"]);
    assert_eq!(user.calls("sacct"), calls);
    user.run("jobs 4712").assert_error("no submitted job is \"4712\"");
}

#[test]
fn array_is_listed_by_its_tasks() {
    let user = User::new(&[
        ("sbatch", "echo 77"),
        ("squeue", "cat queue 2>/dev/null"),
        ("sacct", "cat accounting 2>/dev/null"),
    ]);
    assert_eq!(user.run("submit -t 1h --array 0-3%2 -- ./train").ok(), "77\n");
    let write = |name: &str, text: &str| std::fs::write(user.folder.join(name), text).unwrap();
    write(
        "queue",
        "77_1|RUNNING|1:00|1:00:00|None|train\n77_2|PENDING|0:00|1:00:00|JobArrayTaskLimit|train\n\
         77_3|PENDING|0:00|1:00:00|JobArrayTaskLimit|train\n",
    );
    // The accounting database is behind.
    write("accounting", "77_0|FAILED|90|60|3:0|train\n77_1|PENDING|0|60|0:0|train\n");
    std::fs::create_dir_all(user.folder.join("jobs/train/task-1/run-0")).unwrap();
    let job = user.jobs()["jobs"][0].clone();
    assert_eq!((&job["state"], &job["array"]), (&"running".into(), &"0-3%2".into()));
    assert_eq!(job["reason"], "1 failed, 1 running, 2 pending");
    assert_eq!(
        (&job["tasks"][0]["id"], &job["tasks"][0]["exit_code"]),
        (&"77_0".into(), &3.into())
    );
    let run = job["tasks"][1]["run_folder"].as_str().unwrap();
    assert!(run.ends_with("jobs/train/task-1/run-0"), "{run}");
    let table = user.run("jobs").ok();
    assert_eq!(table.lines().count(), 2, "one line per array:\n{table}");
    let table = user.run("jobs 77").ok();
    assert_contains(&table, ["77_0", "exit code 3", "77_3", "JobArrayTaskLimit"]);

    // Both forget task 0, whose end is in the record.
    write("queue", "");
    let rest = [1, 2, 3].map(|task| format!("77_{task}|COMPLETED|90|60|0:0|train\n"));
    write("accounting", &rest.concat());
    let job = user.jobs()["jobs"][0].clone();
    assert_eq!(
        (&job["state"], &job["reason"]),
        (&"failed".into(), &"1 failed, 3 completed".into())
    );
    let calls = user.calls("squeue");
    user.run("jobs").ok();
    assert_eq!(user.calls("squeue"), calls, "the end of the array is in the record");
}

#[test]
fn pbs_array_is_listed_by_its_tasks() {
    let qstat = r#"case $* in *-t*) ;; *) exit 1;; esac
cat <<EOF
{"Jobs": {"7[].server": {"Job_Name": "train", "job_state": "B"},
 "7[0].server": {"Job_Name": "train", "job_state": "X", "Exit_status": 0},
 "7[1].server": {"Job_Name": "train", "job_state": "R"}}}
EOF"#;
    let user = User::new(&[("qsub", "echo '7[].server'"), ("qstat", qstat)]);
    assert_eq!(user.run("submit --scheduler pbs -t 1h --array 2 -- ./train").ok(), "7[].server\n");
    let script = user.folder.read("jobs/train/job.sh");
    assert_contains(&script, ["#PBS -J 0-1\n", "#PBS -r y\n", "/task-$task/run-$run"]);
    let job = user.run("jobs --json 7").json::<Value>()["jobs"][0].clone();
    assert_eq!(
        (&job["state"], &job["reason"]),
        (&"running".into(), &"1 running, 1 completed".into())
    );
    assert_eq!(job["tasks"][1]["id"], "7[1].server");
}

#[test]
fn job_of_another_cluster_is_unknown() {
    let user = User::new(&[
        ("sbatch", "echo 5"),
        ("squeue", "echo '5|RUNNING|1:00|1:00:00|None|other'"),
        ("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1"),
    ]);
    assert_eq!(user.run("submit -- ./train").ok(), "5\n");
    let job = user.jobs()["jobs"][0].clone();
    assert_eq!(job["state"], Value::Null);
    assert_contains(user.run("jobs").ok(), ["unknown"]);
}

#[test]
fn refused_job_leaves_nothing() {
    let refuses =
        "echo 'sbatch: error: Batch job submission failed: Invalid partition' >&2; exit 1";
    let user = User::new(&[("sbatch", refuses)]);
    let error = user.run("submit -p nowhere -- ./train").error_line();
    assert_contains(error, ["sbatch --parsable jobs/train/job.sh", "Invalid partition"]);
    assert!(!user.folder.exists("jobs/train"));
    assert!(user.folder.list("state/regatta/jobs").is_empty());
    let user = User::new(&[("sbatch", "echo nothing")]);
    user.run("submit -- ./train").assert_error("printed no job ID: \"nothing\\n\"");
}

#[test]
fn folders_of_jobs_with_the_same_name_are_numbered() {
    let user = User::new(&[("sbatch", "echo 5")]);
    for folder in ["jobs/train", "jobs/train-2", "jobs/train-3"] {
        user.run("submit -- ./train").ok();
        assert_contains(
            user.folder.read(format!("{folder}/job.sh")),
            &*format!("{folder}/job.out"),
        );
    }
    user.run("submit --job-dir jobs/train -- ./a").assert_error("already has a job");
    let json: Value = user.run("submit --json --job-dir mine -- ./a").json();
    assert_eq!((&json["format"], &json["id"]), (&"regatta-job/1".into(), &"5".into()));
    assert!(Path::new(json["script"].as_str().unwrap()).is_absolute());
}

#[test]
fn pbs_and_flux_jobs_are_submitted_and_listed() {
    let qstat = "case $* in *json*) echo qstat: illegal option >&2; exit 2;; esac
printf 'Job Id: 7.server\\n    Job_Name = train\\n    job_state = Q\\n    comment = Not Running: no nodes\\n'
exit 153";
    let user = User::new(&[("qsub", "echo 7.server"), ("qstat", qstat)]);
    assert_eq!(user.run("submit --scheduler pbs -t 1h -- ./train").ok(), "7.server\n");
    assert_contains(user.folder.read("jobs/train/job.sh"), "#PBS -l walltime=01:00:00\n");
    let job = user.jobs()["jobs"][0].clone();
    assert_eq!((&job["state"], &job["scheduler"]), (&"pending".into(), &"pbs".into()));
    assert_eq!(job["reason"], "Not Running: no nodes");

    let flux = "case $1 in batch) echo ƒKs;; jobs) echo '{\"id\": 99, \"name\": \"train\", \
                \"state\": \"RUN\", \"runtime\": 61.5}';; esac";
    let user = User::new(&[("flux", flux)]);
    assert_eq!(user.run("submit --scheduler flux -- ./train").ok(), "ƒKs\n");
    let job = user.jobs()["jobs"][0].clone();
    assert_eq!((&job["state"], &job["elapsed"]), (&"running".into(), &61.into()));
}

#[test]
fn without_a_scheduler_the_error_says_what_to_do() {
    let user = User::new(&[]);
    std::fs::remove_dir_all(user.folder.join("bin")).unwrap();
    let mut command = command();
    command.current_dir(&user.folder).env("PATH", user.folder.path());
    let output: CommandOutput = command.args(["submit", "--", "./a"]).output().unwrap().into();
    output.assert_error(["no scheduler found", "--dry-run"]);
    let mut command = support::command();
    command.current_dir(&user.folder).env("PATH", user.folder.path());
    command.args(["submit", "--system", "lumi-g", "-A", "a", "--", "./a"]);
    let output: CommandOutput = command.output().unwrap().into();
    output.assert_error(["sbatch of Slurm is not installed here", "--dry-run"]);
    user.run("jobs").assert_stderr("no jobs").ok();
}
