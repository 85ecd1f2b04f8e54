//! A real multi-node cluster on one machine, for tests.
//!
//! A host is a set of Linux namespaces (network, UTS, mount, IPC, PID) with its own name, address,
//! `/tmp`, `/dev/shm`, `/sys` and control groups; veth pairs join the hosts to a bridge that has a
//! network namespace to itself. Each cluster is therefore out of every other one's sight, and many
//! may be up at once with the same names and addresses.
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
//! A cluster can be harmed as real ones are: [`Cluster::cut`], [`Cluster::crash`] and
//! [`Cluster::small_disk`]; [`Cluster::processes`] and [`Cluster::listening`] tell what a job left.
//!
//! Nothing outlives the process that made a cluster: the first process of each host ends when its
//! standard input closes, and the kernel then ends all the others. What a killed test leaves of
//! files, the next cluster removes.

mod affinity;
mod base;
mod builder;
mod cgroup;
mod cluster;
mod error;
mod fault;
mod host;
mod inside;
pub mod lumi;
mod remote;
mod require;
mod run;
mod slurm;
mod sshd;
mod together;

pub use builder::ClusterBuilder;
pub use cluster::Cluster;
pub use error::TestbedError;
pub use inside::Process;
pub use require::{REQUIRE, cluster_or_skip, or_skip};
pub use run::{Output, run, run_within};
