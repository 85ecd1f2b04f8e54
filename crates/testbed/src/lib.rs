//! A multi-node cluster of Linux namespaces on one machine, for tests; [`in_process`] and [`one_node`]
//! have ranks as threads.
//!
//! A host is a set of Linux namespaces (network, UTS, mount, IPC, PID) with its own name, address,
//! `/tmp`, `/dev/shm`, `/sys` and control groups; veth pairs connect the hosts to a bridge in a
//! network namespace of its own. Clusters are isolated from each other, so several with the same
//! names and addresses can run at once.
//!
//! ```no_run
//! use regatta_testbed::{Cluster, cluster_or_skip, run_within};
//! use std::time::Duration;
//!
//! let Some(cluster) = cluster_or_skip(&Cluster::builder().nodes(4).gpus(4)) else { return };
//! let mut srun = cluster.login("srun", ["-N4", "hostname"]);
//! assert!(run_within(&mut srun, Duration::from_secs(20)).unwrap().status.success());
//! ```
//!
//! Faults are injected by [`Cluster::disconnect`], [`Cluster::crash`] and [`Cluster::limit_disk`];
//! [`Cluster::processes`] and [`Cluster::listening_ports`] show what a job left behind.
//!
//! No process outlives the one that created its cluster: the first process of each host exits when
//! its standard input closes, and the kernel then kills all others. Files left by a killed test are
//! removed by the next cluster.

mod affinity;
mod assertions;
mod builder;
mod cgroup;
mod cluster;
mod cluster_dir;
mod command;
mod error;
mod fault_injection;
mod host;
mod host_processes;
pub mod in_process;
pub mod lumi;
pub mod one_node;
mod parallel;
mod random;
pub mod reference;
mod requirements;
mod sample;
mod slurm;
mod ssh_shim;
mod sshd;

pub use assertions::{
    Parts, assert_contains, assert_within, poll_until, wait_until, write_with_mode,
};
pub use builder::ClusterBuilder;
pub use cluster::{Args, Cluster};
pub use command::{CommandOutput, default_signals, run, run_meanwhile, run_within};
pub use error::TestbedError;
pub use host_processes::HostProcess;
pub use random::Random;
pub use requirements::{REQUIRE, REQUIRE_LIBFABRIC, cluster_or_skip, or_skip, skip};
pub use sample::{TEST_CASES, all_cases, sample_cases};
