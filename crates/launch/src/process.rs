//! The processes of ranks: started bound, ended with everything they started.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use regatta_model::result::Ending;

use crate::bind::{Binding, lead_session};
use crate::warden;

/// A variable and its value; `None`: it is taken away.
pub type Setting = (String, Option<String>);

/// What a rank runs, and with what.
#[derive(Debug, Clone)]
pub struct RankSpec {
    /// Its number in the job.
    pub rank: u32,
    /// The program and its arguments, as the user gave them: no shell reads them.
    pub command: Vec<OsString>,
    /// Where it runs; `None`: where we do.
    pub folder: Option<PathBuf>,
    /// The environment of whoever launched, if that is not ours.
    pub base: Vec<(OsString, OsString)>,
    /// What of our environment it does not get: variables that begin so.
    pub without: Vec<String>,
    /// Its environment, on top of that.
    pub env: Vec<Setting>,
    /// What it is bound to.
    pub binding: Binding,
}

/// Why a rank could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is nothing to run.
    #[error("nothing to run: write the command after --")]
    NoCommand,
    /// It cannot be run.
    #[error("rank {rank}: {program}: {source}; {hint}")]
    Spawn {
        /// The rank.
        rank: u32,
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
}

impl RankSpec {
    /// The command, with environment and binding.
    fn prepare(&self) -> Result<Command, StartError> {
        let (program, args) = self.command.split_first().ok_or(StartError::NoCommand)?;
        let mut command = Command::new(program);
        command.args(args).envs(self.base.iter().map(|(name, value)| (name, value)));
        let begins = |name: &str| self.without.iter().any(|prefix| name.starts_with(prefix));
        let unwanted = std::env::vars_os().map(|(name, _)| name);
        for name in unwanted.filter(|name| begins(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
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
            // A file that may not be executed is EACCES.
            _ if source.raw_os_error() == Some(libc::EPERM) => {
                "binding to CPUs or memory is forbidden here, as in some containers"
            }
            io::ErrorKind::WouldBlock => {
                "raise the limit on processes (ulimit -u), or start fewer ranks"
            }
            _ if source.raw_os_error() == Some(libc::EMFILE) => {
                "raise the limit on open files (ulimit -n), or start fewer ranks"
            }
            io::ErrorKind::NotFound if self.lacks_folder() => {
                "the folder it was launched in does not exist on this node"
            }
            io::ErrorKind::NotFound if program.as_ref().is_some_and(|p| p.contains('/')) => {
                "there is no such file on this node, or not the program that its first line names"
            }
            io::ErrorKind::NotFound => "it is not in PATH on this node",
            io::ErrorKind::PermissionDenied => "it may not be executed: chmod +x",
            io::ErrorKind::InvalidInput => {
                "the CPUs or memory of the plan are not allowed here: see regatta map --check"
            }
            _ => "see the reason before",
        };
        StartError::Spawn { rank: self.rank, program: program.unwrap_or_default(), source, hint }
    }

    fn lacks_folder(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| !folder.is_dir())
    }

    /// Starts the rank in a process group of its own, its output piped to us.
    pub fn start(&self) -> Result<Child, StartError> {
        let mut command = self.prepare()?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let binding = self.binding.clone();
        let parent = std::process::id();
        // SAFETY: between fork and exec only system calls are made; what they read was allocated
        // before.
        unsafe {
            command.pre_exec(move || {
                lead_session(parent)?;
                binding.apply()
            });
        }
        command.spawn().map_err(|source| self.error(source))
    }

    /// Becomes the rank: binds this process and replaces it by the command. Returns only if that
    /// fails.
    pub fn become_it(&self) -> StartError {
        match (self.prepare(), self.binding.apply()) {
            (Ok(mut command), Ok(())) => self.error(command.exec()),
            (Err(error), _) => error,
            (_, Err(source)) => self.error(source),
        }
    }
}

/// Sends a signal to a rank's process group. Ctrl-Z becomes a stop that nobody can refuse: the
/// kernel does not stop a group for a terminal that has no shell to continue it.
pub fn signal_group(pid: u32, signal: i32) {
    let signal = if signal == libc::SIGTSTP { libc::SIGSTOP } else { signal };
    // SAFETY: a plain system call; a group that is gone is an error we do not care about.
    unsafe { libc::kill(-(pid as libc::pid_t), signal) };
}

/// Adopts what ranks leave behind, so that it can be found and ended.
pub fn adopt_orphans() {
    // SAFETY: a plain system call on this process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Every process below this one: what ranks started, also what left their process group.
pub fn descendants() -> Vec<u32> {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        parents.extend(parent_of(&stat).map(|parent| (pid, parent)));
    }
    let mut found = vec![std::process::id()];
    let mut at = 0;
    while at < found.len() {
        let here = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == here).map(|(pid, _)| *pid));
        at += 1;
    }
    found.remove(0);
    found
}

/// The parent in a stat line; the name before it may hold anything, so count from its end.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Kills every process below this one.
pub fn kill_descendants() {
    for pid in descendants() {
        // SAFETY: a plain system call; a process that is gone is an error we do not care about.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
    }
}

/// Kills every process below this one until none is left, also those that were just being started
/// and those that take their time to die; gives up after `limit`. Where nothing is left it costs
/// nothing.
pub fn end_descendants(limit: Duration) {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    bury_orphans(|_| false);
    while has_children() && start.elapsed() < limit {
        kill_descendants();
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
        bury_orphans(|_| false);
    }
}

/// Whether anything is below this process: what has lost its parent was adopted.
fn has_children() -> bool {
    // SAFETY: an all-zero siginfo_t is a valid value, and waitid writes to no other place.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) == 0
    }
}

/// Takes leave of adopted processes that are over: nobody else asks for them, and each would keep
/// its number until we end. Ranks are left alone. Only for the thread that starts ranks: another
/// might take a rank just started for an orphan.
pub fn bury_orphans(is_rank: impl Fn(u32) -> bool) {
    // SAFETY: an all-zero siginfo_t is a valid value, and waitid writes to no other place.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // A rank that is over hides what is behind it, until it is asked for its status.
        while libc::waitid(libc::P_ALL, 0, &mut info, look) == 0
            && info.si_pid() > 0
            && !is_rank(info.si_pid() as u32)
        {
            libc::waitpid(info.si_pid(), std::ptr::null_mut(), libc::WNOHANG);
            info = std::mem::zeroed();
        }
    }
}

/// Waits until a child is over, but leaves its status to be asked for: until then nobody else gets
/// its number. Does not return for a child that we kill because our warden is gone: nobody is to
/// take that for the child's failure.
pub fn await_end(pid: u32) {
    // SAFETY: an all-zero siginfo_t is a valid value, and waitid writes to no other place.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOWAIT;
        while libc::waitid(libc::P_PID, pid, &mut info, options) != 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
    while warden::is_gone() {
        std::thread::park();
    }
}

/// How a process ended, from its status.
pub fn ending(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exit(code),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::Exit(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_hint() {
        let binding = Binding::new(&Default::default(), &regatta_model::MemoryPolicy::System);
        let spec = RankSpec {
            rank: 0,
            command: vec!["x".into()],
            folder: None,
            base: Vec::new(),
            without: Vec::new(),
            env: Vec::new(),
            binding,
        };
        let says = |code| spec.error(io::Error::from_raw_os_error(code)).to_string();
        assert!(says(libc::EPERM).contains("binding") && says(libc::EACCES).contains("chmod"));
        assert!(
            says(libc::EAGAIN).contains("ulimit -u") && says(libc::EMFILE).contains("ulimit -n")
        );
    }

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        assert_eq!(parent_of("12 (a) b (c)) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of("nonsense"), None);
    }
}
