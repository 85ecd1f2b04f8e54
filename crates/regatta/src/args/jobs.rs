//! The options of `regatta jobs`.

use clap::Args;

/// `regatta jobs`.
#[derive(Debug, Args)]
pub struct JobsArgs {
    /// Job IDs, names or job folders [default: the latest jobs]
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Maximum number of jobs to list, newest first
    #[arg(short = 'l', long, value_name = "COUNT", default_value_t = 20, conflicts_with = "all")]
    pub limit: usize,
    /// List all jobs
    #[arg(short = 'a', long)]
    pub all: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta jobs                                  the latest jobs: state, time, progress, reason
  regatta jobs 12345 --json                     one job, for a script
  regatta jobs jobs/train                       the job in a folder; of an array, each task
  regatta jobs --all                            all jobs that were ever submitted

The state is that of squeue and sacct, qstat, or flux jobs; of a job that its scheduler does not know
any more, the one seen last, or that of its run folder. Progress is the last line of the metrics of a
`regatta train`. Records are in ~/.local/state/regatta/jobs, one file per job.";
