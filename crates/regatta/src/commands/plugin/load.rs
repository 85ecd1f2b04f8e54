//! Loads a library in a child process, because its initialisers may block, crash, print or start
//! threads.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use regatta_doctor::collect::{self, TableNames};
use regatta_doctor::plugin::LoadResult;
use regatta_launch::subprocess::{CommandEnd, capture};

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
) -> Result<(LoadResult, TableNames)> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let words = ["plugin", "load-library", "--"].map(OsStr::new).into_iter();
    let args: Vec<&OsStr> =
        words.chain([path.as_os_str()]).chain(symbols.iter().map(OsStr::new)).collect();
    let captured =
        capture(program, &args, limit).context("cannot run the process that loads the library")?;
    Ok(outcome(&captured.stdout, captured.end, limit))
}

fn outcome(text: &str, end: CommandEnd, limit: Duration) -> (LoadResult, TableNames) {
    let mut lines = text.lines();
    let error: Option<Option<String>> = lines.next().and_then(|l| serde_json::from_str(l).ok());
    let names = lines.next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let result = match (error, end) {
        (Some(None), _) => LoadResult::Loaded,
        (Some(Some(error)), _) => LoadResult::Failed(error),
        (None, CommandEnd::TimedOut) => {
            let seconds = limit.as_secs_f64();
            LoadResult::TimedOut(format!("its initialisers did not end within {seconds} s"))
        }
        (None, CommandEnd::Exited(status)) => {
            LoadResult::Crashed(format!("its initialisers ended the process: {status}"))
        }
        (None, CommandEnd::Unknown) => {
            LoadResult::Crashed("its initialisers ended the process".to_owned())
        }
    };
    (result, names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn the_first_line_decides() {
        let result = |text: &str, end: CommandEnd| outcome(text, end, Duration::from_secs(2)).0;
        let exited = |status: i32| CommandEnd::Exited(ExitStatus::from_raw(status));
        assert_eq!(result("null\n[]\n", exited(0)), LoadResult::Loaded);
        assert_eq!(result("null\n", exited(11)), LoadResult::Loaded, "names are read later");
        assert_eq!(result("\"x: y\"\n", exited(0)), LoadResult::Failed("x: y".to_owned()));
        assert!(
            matches!(result("", exited(6)), LoadResult::Crashed(why) if why.contains("SIGABRT"))
        );
        assert!(matches!(result("", exited(0)), LoadResult::Crashed(_)), "exit(0)");
        assert!(matches!(result("", CommandEnd::Unknown), LoadResult::Crashed(_)));
        let timed_out = "its initialisers did not end within 2 s".to_owned();
        assert_eq!(result("", CommandEnd::TimedOut), LoadResult::TimedOut(timed_out));
    }
}
