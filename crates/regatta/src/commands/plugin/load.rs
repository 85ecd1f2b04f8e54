//! Loads a library in a child process, because its initialisers may block, crash, print or start
//! threads.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use regatta_doctor::collect::{self, LoadedPlugin};
use regatta_doctor::plugin::LoadResult;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::args::plugin::LoadLibraryArgs;

/// Interval at which the child process is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Loads the library in this process. Writes the loader's error, `null` if there is none, then the names
/// of the tables, each a line of JSON.
pub fn run(args: &LoadLibraryArgs) -> Result<ExitCode> {
    // SAFETY: a plain system call. The parent may be killed before its time limit.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // Initialisers print to standard output.
    let mut out = File::from(rustix::io::dup(io::stdout())?);
    let null = File::options().write(true).open("/dev/null")?;
    // SAFETY: both descriptors are open; nothing else uses standard output.
    unsafe { libc::dup2(null.as_raw_fd(), libc::STDOUT_FILENO) };
    let loaded = collect::load_library(&args.path);
    writeln!(out, "{}", serde_json::to_string(&loaded.as_ref().err())?)?;
    if let Ok(library) = loaded {
        let names = collect::table_names(library, &args.symbols);
        writeln!(out, "{}", serde_json::to_string(&names)?)?;
    }
    // SAFETY: it does not return. Finalisers of a plug-in that was never used need not be sound.
    unsafe { libc::_exit(0) }
}

/// Loads a library as NCCL does, in a child process, and reads the names of the tables of these symbols.
/// An error is one of the child process, not of the library.
pub fn load_library(
    path: &Path,
    symbols: &[String],
    limit: Duration,
) -> Result<(LoadResult, LoadedPlugin)> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["plugin", "load-library", "--"]).arg(path).args(symbols).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start the process that loads the library")?;
    let status = wait(&mut child, limit);
    let text = child.stdout.take().map(available).transpose()?.unwrap_or_default();
    Ok(outcome(&text, status, limit))
}

/// How the child process ended.
enum End {
    Exited(ExitStatus),
    TimedOut,
    /// With SIGCHLD ignored, children have no status.
    Unknown,
}

/// Waits for the child process; after the time limit, kills it and the processes that it started.
fn wait(child: &mut Child, limit: Duration) -> End {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return End::Exited(status),
            Err(_) => return End::Unknown,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
                let _ = child.wait();
                return End::TimedOut;
            }
        }
    }
}

/// What was written. A process that an initialiser started may hold the pipe open.
fn available(mut pipe: impl Read + AsFd) -> Result<String> {
    rustix::io::ioctl_fionbio(&pipe, true).context("cannot read from the child process")?;
    let mut bytes = Vec::new();
    match pipe.read_to_end(&mut bytes) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            Err(error).context("cannot read from the child process")
        }
        _ => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

fn outcome(text: &str, end: End, limit: Duration) -> (LoadResult, LoadedPlugin) {
    let mut lines = text.lines();
    let error: Option<Option<String>> = lines.next().and_then(|l| serde_json::from_str(l).ok());
    let names = lines.next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let result = match (error, end) {
        (Some(None), _) => LoadResult::Loaded,
        (Some(Some(error)), _) => LoadResult::Failed(error),
        (None, End::TimedOut) => {
            let seconds = limit.as_secs_f64();
            LoadResult::TimedOut(format!("its initialisers did not end within {seconds} s"))
        }
        (None, End::Exited(status)) => {
            LoadResult::Crashed(format!("its initialisers ended the process: {status}"))
        }
        (None, End::Unknown) => {
            LoadResult::Crashed("its initialisers ended the process".to_owned())
        }
    };
    (result, names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn the_first_line_decides() {
        let result = |text: &str, end: End| outcome(text, end, Duration::from_secs(2)).0;
        let exited = |status: i32| End::Exited(ExitStatus::from_raw(status));
        assert_eq!(result("null\n{\"names\":[]}\n", exited(0)), LoadResult::Loaded);
        assert_eq!(result("null\n", exited(11)), LoadResult::Loaded, "names are read later");
        assert_eq!(result("\"x: y\"\n", exited(0)), LoadResult::Failed("x: y".to_owned()));
        assert!(
            matches!(result("", exited(6)), LoadResult::Crashed(why) if why.contains("SIGABRT"))
        );
        assert!(matches!(result("", exited(0)), LoadResult::Crashed(_)), "exit(0)");
        assert!(matches!(result("", End::Unknown), LoadResult::Crashed(_)));
        let timed_out = "its initialisers did not end within 2 s".to_owned();
        assert_eq!(result("", End::TimedOut), LoadResult::TimedOut(timed_out));
    }
}
