//! Rank processes: spawned with binding and environment, killed with all their descendants.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use regatta_model::result::RankExit;
use rustix::io::Errno;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, pidfd_open,
    pidfd_send_signal, setrlimit,
};

use crate::channel::{self, RankChannel};
use crate::cpu_binding::Binding;
use crate::signals;

/// An environment variable and its value; `None` unsets it.
pub type EnvSetting = (String, Option<String>);

/// What a rank executes, and with which environment and binding.
#[derive(Debug, Clone)]
pub struct RankSpec {
    /// The rank.
    pub rank: u32,
    /// Program and arguments, executed without a shell.
    pub command: Vec<OsString>,
    /// Working directory; `None` inherits ours.
    pub cwd: Option<PathBuf>,
    /// The launcher's environment, if this process does not have it.
    pub base_env: Vec<(OsString, OsString)>,
    /// Variables of our environment with these prefixes are removed.
    pub env_remove_prefixes: Vec<String>,
    /// Settings applied last.
    pub env: Vec<EnvSetting>,
    /// CPU and memory binding.
    pub binding: Binding,
    /// Payload of the input frame of the rank's channel; `None`: the rank has no channel.
    pub input: Option<Arc<[u8]>>,
}

/// A rank that was started.
pub(crate) struct SpawnedRank {
    pub child: Child,
    pub channel: Option<RankChannel>,
}

/// Raises the soft limit on open files to the hard limit while ranks run: this process needs three
/// descriptors per rank. Ranks start with the previous limit, because programs that use `select`
/// fail with a higher one.
pub(crate) struct OpenFilesLimit(Rlimit);

impl OpenFilesLimit {
    /// Raises the limit.
    pub fn raise() -> Self {
        let previous = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: previous.maximum, ..previous });
        Self(previous)
    }
}

impl Drop for OpenFilesLimit {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}

/// Why a rank could not be started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum StartError {
    /// The command is empty.
    #[error("no command given: write it after --")]
    NoCommand,
    /// The program cannot be executed.
    #[error("rank {rank}: cannot execute {program}: {source}; {hint}")]
    Spawn { rank: u32, program: String, source: io::Error, hint: &'static str },
}

impl StartError {
    /// Exit code of a command that cannot be executed, as of a shell.
    pub const EXIT_CODE: u8 = 127;
}

impl RankSpec {
    /// The command with its environment and working directory.
    fn prepare(&self) -> Result<Command, StartError> {
        let (program, args) = self.command.split_first().ok_or(StartError::NoCommand)?;
        let mut command = Command::new(program);
        command.args(args).envs(self.base_env.iter().map(|(name, value)| (name, value)));
        let is_removed =
            |name: &str| self.env_remove_prefixes.iter().any(|prefix| name.starts_with(prefix));
        for (name, _) in std::env::vars_os() {
            if is_removed(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        command.env_remove(channel::VARIABLE);
        for (variable, value) in &self.env {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        Ok(command)
    }

    fn error(&self, source: io::Error) -> StartError {
        let program = self.command.first().map(|p| p.to_string_lossy().into_owned());
        let hint = match source.kind() {
            // A file without execute permission is EACCES.
            _ if matches!(source.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                "binding memory (set_mempolicy) is not permitted here, as in some containers: use --memory \
                 prefer"
            }
            ErrorKind::WouldBlock => "raise the process limit (ulimit -u), or start fewer ranks",
            _ if source.raw_os_error() == Some(libc::EMFILE) => {
                "raise the limit on open files (ulimit -n), or start fewer ranks"
            }
            ErrorKind::NotFound if self.is_cwd_missing() => {
                "the working directory of the launch does not exist on this node"
            }
            ErrorKind::NotFound if program.as_ref().is_some_and(|p| p.contains('/')) => {
                "there is no such file on this node, or the interpreter in its #! line is missing"
            }
            ErrorKind::NotFound if self.program_path().is_file() => {
                "the file is in the working directory, not in PATH: name its interpreter or its path, as \
                 in python train.py or ./train.py"
            }
            ErrorKind::NotFound => "it is not in PATH on this node",
            ErrorKind::PermissionDenied if self.program_path().is_dir() => {
                "it is a directory: name the program or script in it"
            }
            ErrorKind::PermissionDenied => "it is not executable: chmod +x",
            ErrorKind::InvalidInput => {
                "the placement's CPUs or memory nodes are not available here: run regatta map \
                 --check"
            }
            _ => "fix the cause reported by the system",
        };
        StartError::Spawn { rank: self.rank, program: program.unwrap_or_default(), source, hint }
    }

    /// The path of the command, if it names one, or the file of this name in the working directory.
    fn program_path(&self) -> PathBuf {
        let program = self.command.first().map(Path::new).unwrap_or(Path::new(""));
        self.cwd.as_deref().unwrap_or(Path::new("")).join(program)
    }

    fn is_cwd_missing(&self) -> bool {
        self.cwd.as_ref().is_some_and(|cwd| !cwd.is_dir())
    }

    /// Spawns the rank in its own session, with its output piped to this process, and with a
    /// channel if it has an input.
    pub(crate) fn spawn(&self, open_files: &OpenFilesLimit) -> Result<SpawnedRank, StartError> {
        let mut command = self.prepare()?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let pair = self.input.clone().map(RankChannel::new).transpose();
        let (channel, rank_end) = pair.map_err(|source| self.error(source))?.unzip();
        if let Some(fd) = &rank_end {
            command.env(channel::VARIABLE, fd.as_raw_fd().to_string());
        }
        let binding = self.binding.clone();
        let open_files = open_files.0;
        let parent = std::process::id();
        // SAFETY: only system calls are made between fork and exec, on memory allocated before.
        unsafe {
            command.pre_exec(move || {
                start_session(parent)?;
                setrlimit(Resource::Nofile, open_files)?;
                // Of the copy in the child only: no other rank inherits the descriptor.
                rank_end.as_ref().map_or(Ok(()), |fd| fcntl_setfd(fd, FdFlags::empty()))?;
                binding.apply()
            });
        }
        let child = command.spawn().map_err(|source| self.error(source))?;
        Ok(SpawnedRank { child, channel })
    }

    /// Binds this process and replaces it with the rank's command. Returns only on failure.
    pub fn exec(&self) -> StartError {
        match (self.prepare(), self.binding.apply()) {
            (Ok(mut command), Ok(())) => {
                signals::restore_file_size_signal();
                self.error(command.exec())
            }
            (Err(error), _) => error,
            (_, Err(source)) => self.error(source),
        }
    }
}

/// Makes the calling process a session leader, without a controlling terminal and in its own
/// process group, and has the kernel kill it when its parent dies. Safe between fork and exec.
pub fn start_session(parent: u32) -> io::Result<()> {
    signals::unblock_stop_signals();
    signals::restore_file_size_signal();
    // SAFETY: plain system calls on the calling process.
    unsafe {
        if libc::setsid() < 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have died before the prctl call.
        if libc::getppid() as u32 != parent {
            libc::_exit(127);
        }
    }
    Ok(())
}

/// Sends a signal to a rank's process group. SIGTSTP is sent as SIGSTOP, because the kernel discards
/// SIGTSTP for an orphaned process group.
pub fn signal_group(pid: u32, signal: i32) {
    let signal = if signal == libc::SIGTSTP { libc::SIGSTOP } else { signal };
    // SAFETY: a plain system call; it fails harmlessly if the group is gone.
    unsafe { libc::kill(-(pid as libc::pid_t), signal) };
}

/// Makes this process a child subreaper: orphans of its ranks are reparented to it.
pub fn become_subreaper() {
    // SAFETY: a plain system call on this process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// All descendants of this process, also those that left their rank's process group.
pub fn descendants() -> Vec<u32> {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        parents.extend(parent_of(pid).map(|parent| (pid, parent)));
    }
    let mut found = vec![std::process::id()];
    let mut next = 0;
    while next < found.len() {
        let current = found[next];
        found.extend(parents.iter().filter(|(_, parent)| *parent == current).map(|(pid, _)| *pid));
        next += 1;
    }
    found.remove(0);
    found
}

/// The parent of a process, if it exists.
fn parent_of(pid: u32) -> Option<u32> {
    parent_pid(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The parent's process ID in /proc/PID/stat. The command name may contain any character, so
/// fields are counted from its closing parenthesis.
fn parent_pid(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Sends SIGKILL to all descendants.
pub fn kill_descendants() {
    let own = std::process::id();
    let found = descendants();
    let is_ours = |parent| parent == own || found.contains(&parent);
    // All are checked before the first is killed: its children then have another parent.
    let targets: Vec<_> = found.iter().filter_map(|pid| KillTarget::open(*pid, is_ours)).collect();
    targets.iter().for_each(KillTarget::kill);
}

/// A process to be killed. It may exit before, and its ID may then be that of another process; a pidfd
/// keeps referring to the process that was checked.
struct KillTarget {
    id: Pid,
    /// `None` where it cannot be opened: Linux before 5.3, a seccomp filter, too many open files.
    pidfd: Option<OwnedFd>,
}

impl KillTarget {
    /// The process, if its parent is one of ours.
    fn open(pid: u32, is_ours: impl Fn(u32) -> bool) -> Option<Self> {
        let id = Pid::from_raw(pid as i32)?;
        let pidfd = match pidfd_open(id, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return None,
            opened => opened.ok(),
        };
        parent_of(pid).is_some_and(is_ours).then_some(Self { id, pidfd })
    }

    /// Sends SIGKILL. Fails harmlessly if the process is gone.
    fn kill(&self) {
        let sent = self.pidfd.as_ref().map(|pidfd| pidfd_send_signal(pidfd, Signal::KILL));
        if matches!(sent, None | Some(Err(Errno::NOSYS | Errno::PERM))) {
            let _ = kill_process(self.id, Signal::KILL);
        }
    }
}

/// Kills and reaps all descendants until none is left, including processes forked meanwhile; gives
/// up after `timeout`. Free of cost when there are none. Returns whether none is left.
pub fn kill_and_reap_descendants(timeout: Duration) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    reap_orphans(|_| false);
    // Fails without children, which include adopted orphans.
    while wait_unreaped(libc::P_ALL, 0, libc::WNOHANG).is_ok() {
        if start.elapsed() >= timeout {
            return false;
        }
        kill_descendants();
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
        reap_orphans(|_| false);
    }
    true
}

/// Waits for a child to exit without reaping it; returns its process ID, or 0 if none has exited
/// under `WNOHANG`.
pub(crate) fn wait_unreaped(kind: libc::idtype_t, id: u32, flags: i32) -> io::Result<u32> {
    // SAFETY: an all-zero siginfo_t is valid, and waitid writes to it alone.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        match libc::waitid(kind, id, &mut info, libc::WEXITED | libc::WNOWAIT | flags) {
            0 => Ok(info.si_pid() as u32),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Reaps exited orphans, which would otherwise stay zombies until this process exits. Ranks are not
/// reaped. Call it only from the thread that spawns ranks: another thread could take a newly
/// spawned rank for an orphan.
pub fn reap_orphans(is_rank: impl Fn(u32) -> bool) {
    // waitid keeps returning an exited rank until it is reaped, which hides the others.
    while let Ok(pid @ 1..) = wait_unreaped(libc::P_ALL, 0, libc::WNOHANG)
        && !is_rank(pid)
    {
        // SAFETY: a null status is allowed.
        unsafe { libc::waitpid(pid as libc::pid_t, std::ptr::null_mut(), libc::WNOHANG) };
    }
}

/// Whether the original process was killed. This process then kills its ranks, and their exits are
/// not failures.
pub(crate) static PARENT_DIED: AtomicBool = AtomicBool::new(false);

/// Waits for a child to exit without reaping it, so that its process ID is not reused. Never
/// returns if the original process has died: the child was then killed by this process, which must
/// not count as its failure.
pub fn wait_for_exit(pid: u32) {
    let interrupted = |error: io::Error| error.kind() == ErrorKind::Interrupted;
    while wait_unreaped(libc::P_PID, pid, 0).is_err_and(interrupted) {}
    while PARENT_DIED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Converts an exit status.
pub fn rank_exit(status: ExitStatus) -> RankExit {
    match (status.code(), status.signal()) {
        (Some(code), _) => RankExit::Exit(code),
        (None, Some(signal)) => RankExit::Signal(signal),
        (None, None) => RankExit::Exit(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_another_parent_is_not_killed() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let own = std::process::id();
        assert!(descendants().contains(&child.id()));
        assert!(KillTarget::open(child.id(), |parent| parent != own).is_none());
        assert!(child.try_wait().unwrap().is_none());
        KillTarget::open(child.id(), |parent| parent == own).unwrap().kill();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn start_errors_have_specific_hints() {
        let binding = Binding::new(&Default::default(), &regatta_model::MemoryPolicy::Default);
        let spec = RankSpec {
            rank: 0,
            command: vec!["x".into()],
            cwd: None,
            base_env: Vec::new(),
            env_remove_prefixes: Vec::new(),
            env: Vec::new(),
            binding,
            input: None,
        };
        let message = |code| spec.error(io::Error::from_raw_os_error(code)).to_string();
        let hints = [
            (libc::EPERM, "--memory prefer"),
            (libc::ENOSYS, "set_mempolicy"),
            (libc::EACCES, "chmod"),
            (libc::EAGAIN, "ulimit -u"),
            (libc::EMFILE, "ulimit -n"),
        ];
        for (code, hint) in hints {
            assert!(message(code).contains(hint), "{}", message(code));
        }
        let directory = RankSpec { command: vec!["/tmp".into()], ..spec.clone() };
        let error = directory.error(io::Error::from_raw_os_error(libc::EACCES)).to_string();
        assert!(error.contains("it is a directory"), "{error}");
        let cwd = Some(env!("CARGO_MANIFEST_DIR").into());
        let script = RankSpec { command: vec!["Cargo.toml".into()], cwd, ..spec };
        let error = script.error(io::Error::from_raw_os_error(libc::ENOENT)).to_string();
        assert!(error.contains("name its interpreter or its path"), "{error}");
    }

    #[test]
    fn parent_pid_skips_parentheses_in_the_command_name() {
        assert_eq!(parent_pid("12 (a) b (c)) S 7 12 12 0"), Some(7));
        assert_eq!(parent_pid("nonsense"), None);
    }
}
