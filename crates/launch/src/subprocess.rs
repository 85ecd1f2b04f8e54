//! Runs commands and captures their output.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::process::signal_group;

/// An in-memory file with this text, positioned at its start. Unlike a pipe it takes any length at
/// once and shows how far it was read.
pub(crate) fn memory_file(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("regatta", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Output of a command on both streams if it succeeds within `timeout`, for queries such as
/// `mpiexec --version`.
pub fn output_of<A: AsRef<OsStr>>(program: &str, args: &[A], timeout: Duration) -> Option<String> {
    let captured = capture(program, args, timeout).ok()?;
    captured.status.success().then(|| captured.stdout + &captured.stderr)
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Captured {
    /// Its exit status; SIGKILL after the timeout.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Runs a command without input, and kills it after `timeout`.
pub fn capture<A: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: &[A],
    timeout: Duration,
) -> io::Result<Captured> {
    let [mut stdout, mut stderr] = [memory_file("")?, memory_file("")?];
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).process_group(0);
    command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let mut child = command.spawn()?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(None) if start.elapsed() < timeout => std::thread::sleep(Duration::from_millis(2)),
            Ok(Some(status)) => break status,
            _ => {
                signal_group(child.id(), libc::SIGKILL);
                break child.wait().unwrap_or(ExitStatus::from_raw(libc::SIGKILL));
            }
        }
    };
    let read = |file: &mut File| -> io::Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Captured { status, stdout: read(&mut stdout)?, stderr: read(&mut stderr)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_returns_none_on_failure_or_timeout() {
        let query = |script: &str, limit| output_of("sh", &["-c", script], limit);
        let long = Duration::from_secs(60);
        assert_eq!(query("echo a; echo b >&2", long).as_deref(), Some("a\nb\n"));
        assert_eq!(query("echo a; exit 1", long), None);
        assert_eq!(query("echo a; sleep 600", Duration::from_millis(100)), None);
        assert_eq!(output_of("/no/such/mpiexec", &["--version"], long), None);
    }
}
