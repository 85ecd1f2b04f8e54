//! Runs a command for a limited time and keeps what it wrote.

use crate::error::TestbedError;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// The time [`run`] gives a command.
const LIMIT: Duration = Duration::from_secs(60);
/// The time between the request to end and the kill.
const GRACE: Duration = Duration::from_secs(2);

/// What a command left.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output; what is no UTF-8 is replaced.
    pub stdout: String,
    /// Its standard error, likewise.
    pub stderr: String,
}

/// Runs a command to its end, a minute at most; a longer one is killed with its process group.
pub fn run(command: &mut Command) -> Result<Output, TestbedError> {
    run_within(command, LIMIT)
}

/// As [`run`], with a limit of one's own.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<Output, TestbedError> {
    // Memory files, not pipes: a daemon that keeps them open cannot make us wait for it.
    let start = |source| TestbedError::Start { command: line(command), source };
    let (stdout, stderr) = match (memory_file(), memory_file()) {
        (Ok(out), Ok(err)) => (out, err),
        (Err(source), _) | (_, Err(source)) => return Err(start(source)),
    };
    let (out, err) = match (stdout.try_clone(), stderr.try_clone()) {
        (Ok(out), Ok(err)) => (out, err),
        (Err(source), _) | (_, Err(source)) => return Err(start(source)),
    };
    let spawned = command.stdout(out).stderr(err).process_group(0).spawn();
    let mut child =
        spawned.map_err(|source| TestbedError::Start { command: line(command), source })?;
    match wait_until(&mut child, Instant::now() + limit) {
        Some(status) => Ok(Output { status, stdout: text(&stdout), stderr: text(&stderr) }),
        None => {
            end_group(&mut child);
            Err(TestbedError::TimedOut {
                command: line(command),
                seconds: limit.as_secs_f64(),
                stdout: text(&stdout),
                stderr: text(&stderr),
            })
        }
    }
}

/// Runs a command that must succeed, and gives its standard output.
pub(crate) fn succeed(command: &mut Command) -> Result<String, TestbedError> {
    let output = run(command)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let (status, stderr) = (output.status, output.stderr.trim().to_owned());
    Err(TestbedError::Failed { command: line(command), status, stderr })
}

/// Waits for a child until `deadline`.
pub(crate) fn wait_until(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let mut pause = Duration::from_micros(200);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Asks a child's process group to end, then kills it. The group holds what `nsenter` forked into
/// the host, which the death of `nsenter` alone would leave running.
fn end_group(child: &mut Child) {
    let group = Pid::from_child(child);
    // Failure means that the group is gone already.
    let _ = kill_process_group(group, Signal::TERM);
    wait_until(child, Instant::now() + GRACE);
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
}

fn memory_file() -> std::io::Result<File> {
    Ok(File::from(memfd_create("regatta-testbed", MemfdFlags::CLOEXEC)?))
}

/// All of a file, whatever its descriptor's position, which the child shares.
fn text(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |m| m.len() as usize)];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// A command as a person would type it, for messages.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_and_the_status_come_back() {
        let output = run(Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"])).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("a\n", "b\n"));
    }

    #[test]
    fn a_long_command_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let error = run_within(&mut command, Duration::from_millis(300)).unwrap_err();
        let TestbedError::TimedOut { stdout, .. } = error else { panic!("{error}") };
        let child = format!("/proc/{}/stat", stdout.trim());
        // The orphan may stay a zombie for a moment, until somebody reaps it.
        let ended = |stat: String| stat.rsplit(')').next().is_some_and(|s| s.starts_with(" Z"));
        // A signal is on its way when kill returns; on a busy machine it arrives a little later.
        let gone = || std::fs::read_to_string(&child).map_or(true, ended);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !gone() {
            assert!(Instant::now() < deadline, "{child} is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_daemon_does_not_hold_us_up() {
        let begin = Instant::now();
        run(Command::new("sh").args(["-c", "sleep 5 & exit 0"])).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(4));
    }
}
