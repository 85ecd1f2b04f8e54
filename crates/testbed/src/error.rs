//! What can go wrong while a cluster is made or used.

use std::path::PathBuf;
use std::process::ExitStatus;

/// Why there is no cluster, or why a command in it gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// This machine cannot hold such a cluster.
    #[error("this machine cannot hold a test cluster: {0}")]
    Missing(String),
    /// The builder was asked for what cannot be.
    #[error("no such cluster can be made: {0}")]
    Settings(String),
    /// A host of another name was asked for.
    #[error("the cluster has no host {name:?}, only {known}")]
    NoHost {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A file or folder could not be used.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A command could not be started.
    #[error("cannot start `{command}`: {source}")]
    Start {
        /// The command line.
        command: String,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A command failed that the cluster needs.
    #[error("`{command}` failed with {status}: {stderr}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// A command was killed because its time was over.
    #[error(
        "`{command}` was killed after {seconds} s; it had written {stdout:?} and, as errors, {stderr:?}"
    )]
    TimedOut {
        /// The command line.
        command: String,
        /// The time it had.
        seconds: f64,
        /// Its standard output so far.
        stdout: String,
        /// Its standard error so far.
        stderr: String,
    },
    /// A host's first process ended while it set the host up.
    #[error("host {name} did not come up: {stderr}")]
    HostFailed {
        /// The host.
        name: String,
        /// What its first process said.
        stderr: String,
    },
    /// Slurm's nodes did not become idle.
    #[error("Slurm's nodes were not idle after {seconds} s; the ends of the logs:\n{logs}")]
    SlurmNotReady {
        /// The time it had.
        seconds: u64,
        /// The last lines of each log.
        logs: String,
    },
    /// A node's sshd does not listen.
    #[error("sshd of {name} did not listen after {seconds} s; its log:\n{log}")]
    SshNotReady {
        /// The node.
        name: String,
        /// The time it had.
        seconds: u64,
        /// What it logged.
        log: String,
    },
    /// A host's processes outlive it.
    #[error("host {name} was crashed, and has processes even {seconds} s later")]
    StillAlive {
        /// The host.
        name: String,
        /// The time they had.
        seconds: u64,
    },
}

/// Turns an I/O error into ours, which names the file.
pub(crate) fn io(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(std::io::Error) -> TestbedError {
    let path = path.into();
    move |source| TestbedError::Io { action, path, source }
}
