//! Runs a command with a timeout and captures its output.

use crate::error::TestbedError;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Timeout of [`run`].
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Result of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output; invalid UTF-8 is replaced.
    pub stdout: String,
    /// Standard error; invalid UTF-8 is replaced.
    pub stderr: String,
}

impl CommandOutput {
    /// The output of a command that must have succeeded.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        assert!(self.status.success(), "{self:?}");
        self
    }
}

/// Runs a command with a timeout of a minute, after which its process group is killed.
pub fn run(command: &mut Command) -> Result<CommandOutput, TestbedError> {
    run_within(command, DEFAULT_TIMEOUT)
}

/// Runs a command with the given timeout.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<CommandOutput, TestbedError> {
    let spawned = spawn_captured(command);
    let (mut child, stdout, stderr) =
        spawned.map_err(|source| TestbedError::Start { command: command_line(command), source })?;
    let status = wait_for_exit(&mut child, Instant::now() + limit);
    if status.is_none() {
        terminate_group(&mut child);
    }
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    let Some(status) = status else {
        let (command, seconds) = (command_line(command), limit.as_secs_f64());
        return Err(TestbedError::TimedOut { command, seconds, stdout, stderr });
    };
    Ok(CommandOutput { status, stdout, stderr })
}

/// Runs a command with the given timeout, and `meanwhile` in this thread.
pub fn run_meanwhile<T>(
    command: &mut Command,
    limit: Duration,
    meanwhile: impl FnOnce() -> T,
) -> (Result<CommandOutput, TestbedError>, T) {
    std::thread::scope(|scope| {
        let output = scope.spawn(|| run_within(command, limit));
        let value = meanwhile();
        (output.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), value)
    })
}

/// Starts a command with its output in memory files instead of pipes: a daemon that keeps them open
/// does not block us.
fn spawn_captured(command: &mut Command) -> std::io::Result<(Child, File, File)> {
    let (stdout, stderr) = (memory_file()?, memory_file()?);
    command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    Ok((default_signals(command).process_group(0).spawn()?, stdout, stderr))
}

/// Has the command start with the default action of all signals that tests send. Background jobs of a
/// shell inherit SIGINT and SIGQUIT ignored, `nohup` starts its command with SIGHUP ignored, and
/// programs keep what they inherit.
pub fn default_signals(command: &mut Command) -> &mut Command {
    use libc::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
    let reset = || {
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGCHLD] {
            // SAFETY: a plain system call; SIG_DFL is not a function of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: only system calls are made between fork and exec.
    unsafe { command.pre_exec(reset) }
}

/// Runs a command that must succeed, and returns its standard output.
pub(crate) fn succeed(command: &mut Command) -> Result<String, TestbedError> {
    let output = run(command)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let (status, stderr) = (output.status, output.stderr.trim().to_owned());
    Err(TestbedError::Failed { command: command_line(command), status, stderr })
}

/// Waits for a child until `deadline`.
pub(crate) fn wait_for_exit(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
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

/// Terminates a child's process group. It includes the process that `nsenter` forked into the host,
/// which would survive `nsenter`.
fn terminate_group(child: &mut Child) {
    let group = Pid::from_child(child);
    // Fails if the group is gone already.
    let _ = kill_process_group(group, Signal::TERM);
    wait_for_exit(child, Instant::now() + GRACE);
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
}

fn memory_file() -> std::io::Result<File> {
    Ok(File::from(memfd_create("regatta-testbed", MemfdFlags::CLOEXEC)?))
}

/// The whole file, regardless of the file position, which the child shares.
fn text(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |m| m.len() as usize)];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// The command line, for messages.
fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_and_the_status_are_returned() {
        let output = run(Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"])).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("a\n", "b\n"));
    }

    #[test]
    fn timed_out_command_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let error = run_within(&mut command, Duration::from_millis(300)).unwrap_err();
        let TestbedError::TimedOut { stdout, .. } = error else { panic!("{error}") };
        let child = format!("/proc/{}/stat", stdout.trim());
        // The orphan may stay a zombie until it is reaped.
        let ended = |stat: String| stat.rsplit(')').next().is_some_and(|s| s.starts_with(" Z"));
        // On a busy machine the signal is delivered only after kill has returned.
        let gone = || std::fs::read_to_string(&child).map_or(true, ended);
        crate::wait_until("the child to exit", gone);
    }

    #[test]
    fn signals_that_this_process_ignores_have_their_default_action() {
        let is_ignored = |status: String| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
            u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (libc::SIGUSR2 - 1)) != 0
        };
        // SAFETY: a plain system call; no other test of this process uses SIGUSR2.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        let mut command = Command::new("cat");
        command.arg("/proc/self/status");
        let inherited = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(is_ignored(inherited));
        assert!(!is_ignored(run(&mut command).unwrap().stdout));
    }

    #[test]
    fn daemon_that_keeps_the_output_open_does_not_block() {
        let begin = Instant::now();
        run(Command::new("sh").args(["-c", "sleep 60 & exit 0"])).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(40));
    }
}
