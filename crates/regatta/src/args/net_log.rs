//! The options of `regatta net-log`.

use std::path::PathBuf;

use clap::Args;
use regatta_observe::net_log::Requirement;

/// `regatta net-log`.
#[derive(Debug, Args)]
pub struct NetLogArgs {
    /// Logs of the job (`-`: standard input), or the run folder of `regatta launch --check-net`
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Exit with status 1 unless all ranks use this network: ib, ofi, cxi, efa, socket, or a plug-in by
    /// its name in the log; NAME/GDRDMA also requires GPUDirect RDMA
    #[arg(long, value_name = "NAME")]
    pub require: Option<Requirement>,
    /// Print the report as JSON, with the transports of each rank
    #[arg(long)]
    pub json: bool,
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta net-log slurm-123456.out              the network of a job that ran with NCCL_DEBUG=INFO
  regatta net-log nccl.*.log                    one log per rank (NCCL_DEBUG_FILE=nccl.%h.%p.log)
  regatta net-log --require ib/GDRDMA job.out   status 1 unless all use InfiniBand and GPUDirect RDMA
  regatta net-log --require cxi --json job.out  Slingshot by libfabric, as JSON
  kubectl logs worker-0 | regatta net-log -     from a pipe
  regatta net-log runs/20261117-223922-1        the logs that `regatta launch --check-net` wrote

The job must run with NCCL_DEBUG=INFO; NCCL_DEBUG_SUBSYS, if set, must include INIT, and NET and ENV for
the plug-in and the fixes. Prefixes of srun -l, mpirun, PBS and timestamps do not matter.";
