//! Loads a library in a child process, because its initialisers may block, crash, print or start
//! threads.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use regatta_doctor::collect::{self, LoadedPlugin};
use regatta_doctor::plugin::LoadResult;
use regatta_launch::subprocess::capture;

use crate::args::plugin::LoadLibraryArgs;

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
    let own =
        ["plugin", "load-library", "--"].map(OsStr::new).into_iter().chain([path.as_os_str()]);
    let args: Vec<&OsStr> = own.chain(symbols.iter().map(OsStr::new)).collect();
    let start = Instant::now();
    let captured = capture(program, &args, limit);
    let captured = captured.context("cannot start the process that loads the library")?;
    let timed_out = (start.elapsed() >= limit).then_some(limit);
    Ok(outcome(&captured.stdout, captured.status, timed_out))
}

/// How loading ended, by what the process wrote; `timed_out` is the limit that it exceeded.
fn outcome(
    text: &str,
    status: ExitStatus,
    timed_out: Option<Duration>,
) -> (LoadResult, LoadedPlugin) {
    let mut lines = text.lines();
    let error: Option<Option<String>> = lines.next().and_then(|l| serde_json::from_str(l).ok());
    let names = lines.next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let result = match (error, timed_out) {
        (Some(None), _) => LoadResult::Loaded,
        (Some(Some(error)), _) => LoadResult::Failed(error),
        (None, Some(limit)) => {
            let seconds = limit.as_secs_f64();
            LoadResult::TimedOut(format!("its initialisers did not end within {seconds} s"))
        }
        (None, None) => {
            LoadResult::Crashed(format!("its initialisers ended the process: {status}"))
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
        let result = |text: &str, status| outcome(text, status, None).0;
        let exited = ExitStatus::from_raw;
        assert_eq!(result("null\n{\"names\":[]}\n", exited(0)), LoadResult::Loaded);
        assert_eq!(result("null\n", exited(11)), LoadResult::Loaded, "names are read later");
        assert_eq!(result("\"x: y\"\n", exited(0)), LoadResult::Failed("x: y".to_owned()));
        assert!(
            matches!(result("", exited(6)), LoadResult::Crashed(why) if why.contains("SIGABRT"))
        );
        assert!(matches!(result("", exited(0)), LoadResult::Crashed(_)), "exit(0)");
        let timed_out = "its initialisers did not end within 2 s".to_owned();
        let limit = Some(Duration::from_secs(2));
        assert_eq!(outcome("", exited(9), limit).0, LoadResult::TimedOut(timed_out));
    }
}
