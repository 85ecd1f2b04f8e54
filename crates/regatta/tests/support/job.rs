//! Jobs of shell scripts, for the tests of `launch`.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use regatta_model::document;
use regatta_model::result::RunResult;

use super::{Folder, Run, command};

/// A job of shell scripts, as many ranks as asked for on however few cores.
pub fn job(folder: &Folder, options: &[&str], script: &str) -> Command {
    let mut job = command();
    job.current_dir(folder.path()).arg("launch").arg("--oversubscribe").args(options);
    job.args(["--", "sh", "-c", script]);
    job
}

/// Runs a job to its end.
pub fn ended(job: &mut Command) -> Run {
    Run::from(job.output().unwrap())
}

/// A run's result.
pub fn result(folder: &Folder, run: &str) -> RunResult {
    let text = std::fs::read_to_string(folder.path().join(run).join("result.json")).unwrap();
    document::from_json(&text).unwrap()
}

/// What a rank wrote.
pub fn log(folder: &Folder, run: &str, rank: u32, stream: &str) -> String {
    let file = folder.path().join(run).join(format!("log/rank-{rank}.{stream}"));
    std::fs::read_to_string(file).unwrap()
}

/// Waits until something holds; a job that hangs must not hang the tests.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "still waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process lives; one that is over and waits to be asked does not.
pub fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Sends a signal to the process that was started.
pub fn signal(child: &Child, signal: i32) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
}
