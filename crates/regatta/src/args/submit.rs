//! The options of `regatta submit`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, value_parser};
use regatta_observe::net_log::Requirement;
use regatta_place::batch::{BatchScheduler, ContainerRuntime, JobArray, TimeLimit};

use crate::options::{MAX_NODES, NamedValue, NcclPluginArgs, one_of, positive};

/// `regatta submit`.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// Number of nodes
    #[arg(short = 'N', long, value_name = "COUNT", default_value_t = 1, value_parser = value_parser!(u32).range(1..=MAX_NODES), help_heading = "Job")]
    pub nodes: u32,
    /// Time limit: 90m, 2h, 1h30m, 1d, 01:30:00 or 1-12:00:00 [default: the queue's]
    #[arg(short = 't', long, value_name = "LIMIT", help_heading = "Job")]
    pub time: Option<TimeLimit>,
    /// Project, account or bank that is charged [default with Slurm: SBATCH_ACCOUNT]
    #[arg(short = 'A', long, value_name = "NAME", visible_alias = "bank", help_heading = "Job")]
    pub account: Option<String>,
    /// Partition, queue or, where it selects the queue, QOS [default: the site's]
    #[arg(
        short = 'p',
        long,
        value_name = "NAME",
        visible_alias = "queue",
        short_alias = 'q',
        help_heading = "Job"
    )]
    pub partition: Option<String>,
    /// Name of the job [default: from the command]
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    pub name: Option<String>,
    /// GPUs to request on each node; 0: none [default: all of a known site's nodes]
    #[arg(long, value_name = "COUNT", help_heading = "Job")]
    pub gpus_per_node: Option<u32>,
    /// Start after this job has succeeded (repeatable)
    #[arg(long, value_name = "JOBID", help_heading = "Job")]
    pub after: Vec<String>,
    /// Start after this job has ended, successfully or not (repeatable)
    #[arg(long, value_name = "JOBID", help_heading = "Job")]
    pub after_any: Vec<String>,
    /// Seconds before the time limit at which the ranks get TERM, to save a checkpoint; 0: no signal
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = value_parser!(u32).range(..=65_535), help_heading = "Job")]
    pub signal_before: u32,
    /// Put the job back into the queue after a node failure or preemption and, with Slurm, when the
    /// ranks exit with code 75 because of the time limit, as `regatta train` does
    #[arg(long, help_heading = "Job")]
    pub requeue: bool,
    /// Submit a job array: a number of tasks, or their indices as in 0-9 or 0-9:3; %2 at the end limits
    /// how many run at a time. The program reads its index from SLURM_ARRAY_TASK_ID or
    /// PBS_ARRAY_INDEX
    #[arg(long, value_name = "TASKS", help_heading = "Job")]
    pub array: Option<JobArray>,
    /// A further directive for the script, as in --directive=--qos=debug (repeatable); it replaces
    /// the one for the same option
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, help_heading = "Job")]
    pub directive: Vec<String>,

    /// Environment module to load first (repeatable)
    #[arg(long, value_name = "NAME", help_heading = "Program")]
    pub module: Vec<String>,
    /// Container image to run the program in; on Alps also a .toml file (EDF)
    #[arg(long, value_name = "IMAGE", help_heading = "Program")]
    pub container: Option<String>,
    /// Program that runs the container [default: the site's, else apptainer]
    #[arg(long, value_name = "NAME", value_parser = one_of(&RUNTIMES), requires = "container", help_heading = "Program")]
    pub container_runtime: Option<ContainerRuntime>,
    /// Ranks per node [default: one per GPU, else one per NUMA node]
    #[arg(long, value_name = "COUNT", value_parser = positive(), visible_alias = "nproc-per-node", help_heading = "Program")]
    pub ranks_per_node: Option<u32>,
    /// Do not set this variable of the site (repeatable), for example NCCL_NET_GDR_LEVEL; also omits
    /// the directive that it needs
    #[arg(long, value_name = "VARIABLE", help_heading = "Program")]
    pub without: Vec<String>,
    /// Report which network NCCL or RCCL uses, in the job's output
    #[arg(long, help_heading = "Program")]
    pub check_net: bool,
    /// Like --check-net, and end the job if a rank uses another network: ib, ofi, cxi, efa, socket, or a
    /// plug-in by its name; NAME/GDRDMA also requires GPUDirect RDMA
    #[arg(long, value_name = "NAME", value_parser = network, help_heading = "Program")]
    pub require_net: Option<String>,
    #[command(flatten)]
    pub plugins: NcclPluginArgs,

    /// Site profile: lumi-g, frontier, perlmutter, polaris, aurora, alps, jupiter, marenostrum5-acc,
    /// el-capitan, or one of --site-file [default: detected]
    #[arg(long, value_name = "NAME", visible_alias = "site", help_heading = "Site")]
    pub system: Option<String>,
    /// Read additional site profiles from a TOML file (repeatable)
    #[arg(long, value_name = "FILE", help_heading = "Site")]
    pub site_file: Vec<PathBuf>,
    /// Scheduler to write the script for [default: the site's, else the one that is installed]
    #[arg(long, value_name = "NAME", value_parser = one_of(&SCHEDULERS), help_heading = "Site")]
    pub scheduler: Option<BatchScheduler>,

    /// Print the script; write and submit nothing
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub dry_run: bool,
    /// Folder for the script and the job's output [default: a new one below jobs/]
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub job_dir: Option<String>,
    /// Print the submitted job as JSON instead of its ID
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Program of every rank with its arguments, started by `regatta launch`; or a command of
    /// regatta: launch, train, bench
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// A network by its name; the launch parses it again.
fn network(text: &str) -> Result<String, String> {
    text.parse::<Requirement>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

const SCHEDULERS: [NamedValue<BatchScheduler>; 3] = [
    ("slurm", BatchScheduler::Slurm, "Slurm: sbatch"),
    ("pbs", BatchScheduler::Pbs, "PBS Professional, OpenPBS: qsub"),
    ("flux", BatchScheduler::Flux, "Flux: flux batch"),
];

const RUNTIMES: [NamedValue<ContainerRuntime>; 4] = [
    ("apptainer", ContainerRuntime::Apptainer, "Apptainer"),
    ("singularity", ContainerRuntime::Singularity, "SingularityCE"),
    ("podman-hpc", ContainerRuntime::PodmanHpc, "podman-hpc (Perlmutter)"),
    ("edf", ContainerRuntime::Edf, "the container engine of CSCS (Alps)"),
];

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta submit -N 16 -t 2h -A project_465000001 -- python train.py
                                                128 ranks on 16 nodes of LUMI, from a login node
  regatta submit --system lumi-g -N 2 -t 30m -A project_1 --dry-run -- python train.py
                                                print the script, from anywhere
  regatta submit -N 4 -t 12h -A me --requeue -- regatta train gpt2 data.source=books
                                                train longer than the time limit of the queue
  regatta submit -N 2 -t 1h -A me --container torch.sif --require-net cxi -- python train.py
                                                every rank in a container, not over TCP
  regatta submit -t 1h -A me --array 0-9%2 -- sh -c 'python train.py --seed $SLURM_ARRAY_TASK_ID'
                                                ten jobs, at most two at a time
  regatta submit -t 10m -A me --after 12345 -- regatta eval jobs/gpt2/run
                                                after another job has succeeded
  regatta submit -N 2 -t 1h -A me -p debug --directive='-l filesystems=home' -- ./train
                                                at ALCF, with one file system only

The site's requirements are in its profile: whole nodes, GPUs, network options, mandatory options.
`regatta jobs` shows the state of submitted jobs.";
