//! Jobs whose ranks are shell scripts.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use regatta_model::document;
use regatta_model::result::RunResult;

use super::{CommandOutput, TempDir, command};

/// A job whose ranks run a shell script, oversubscribed if necessary.
pub fn shell_job(folder: &TempDir, options: &[&str], script: &str) -> Command {
    let mut job = command();
    job.current_dir(folder.path()).arg("launch").arg("--oversubscribe").args(options);
    job.args(["--", "sh", "-c", script]);
    job
}

/// Runs a command to its end.
pub fn run_command(job: &mut Command) -> CommandOutput {
    CommandOutput::from(job.output().unwrap())
}

/// The result of a run.
pub fn run_result(folder: &TempDir, run: &str) -> RunResult {
    let text = std::fs::read_to_string(folder.path().join(run).join("result.json")).unwrap();
    document::from_json(&text).unwrap()
}

/// The log of a rank.
pub fn rank_log(folder: &TempDir, run: &str, rank: u32, stream: &str) -> String {
    let file = folder.path().join(run).join(format!("log/rank-{rank}.{stream}"));
    std::fs::read_to_string(file).unwrap()
}

/// Waits until a condition holds; panics after a timeout.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process is alive; zombies are not.
pub fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Sends a signal to a child process.
pub fn send_signal(child: &Child, signal: i32) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
}
