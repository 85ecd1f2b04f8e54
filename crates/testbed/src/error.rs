//! Errors of the testbed.

use std::path::PathBuf;
use std::process::ExitStatus;

/// Why a cluster could not be started, or a command in it failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum TestbedError {
    /// This machine cannot run such a cluster.
    #[error("this machine cannot run a test cluster: {0}")]
    Missing(String),
    /// The configuration is invalid.
    #[error("invalid cluster configuration: {0}")]
    InvalidConfig(String),
    /// There is no host of this name.
    #[error("the cluster has no host {name:?}, only {known}")]
    NoHost { name: String, known: String },
    /// A file operation failed.
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// A command could not be started.
    #[error("cannot start `{command}`: {source}")]
    Start { command: String, source: std::io::Error },
    /// A command required by the cluster failed.
    #[error("`{command}` failed with {status}: {stderr}")]
    Failed { command: String, status: ExitStatus, stderr: String },
    /// A command timed out.
    #[error(
        "`{command}` timed out after {seconds} s and was killed: stdout {stdout:?}, stderr {stderr:?}"
    )]
    TimedOut { command: String, seconds: f64, stdout: String, stderr: String },
    /// A host's first process exited during set-up.
    #[error("host {name} failed to start: {stderr}")]
    HostFailed { name: String, stderr: String },
    /// Slurm's nodes did not become idle in time.
    #[error("Slurm nodes are not idle after {seconds} s; ends of the logs:\n{logs}")]
    SlurmNotReady { seconds: u64, logs: String },
    /// A node's sshd did not listen in time.
    #[error("sshd on {name} does not listen after {seconds} s; its log:\n{log}")]
    SshNotReady { name: String, seconds: u64, log: String },
    /// Processes of a crashed host survived.
    #[error("host {name} still has processes {seconds} s after its crash")]
    StillAlive { name: String, seconds: u64 },
}

/// Wraps an I/O error with the operation and the file.
pub(crate) fn io(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(std::io::Error) -> TestbedError {
    let path = path.into();
    move |source| TestbedError::Io { action, path, source }
}
