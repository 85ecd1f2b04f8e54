//! Commands that launch jobs on the first nodes of a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_testbed::Cluster;

use crate::REGATTA;

/// A shared folder for a job; its run folder is `run`.
pub fn folder(cluster: &Cluster, name: &str) -> PathBuf {
    let folder = cluster.shared().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// `regatta launch` in an allocation, without the ranks' command.
pub fn launch_words(folder: &Path) -> Vec<String> {
    let mut words: Vec<String> = [REGATTA, "launch", "--oversubscribe"].map(str::to_owned).into();
    words.extend(["--run-dir".to_owned(), path_arg(&folder.join("run"))]);
    words
}

/// `regatta launch` over ssh.
pub fn ssh_words(cluster: &Cluster, nodes: usize, folder: &Path) -> Vec<String> {
    let hostfile = folder.join("hosts");
    std::fs::write(&hostfile, cluster.nodes()[..nodes].join("\n") + "\n").unwrap();
    let mut words = launch_words(folder);
    words.extend(["--ssh".to_owned(), cluster.ssh_command().join(" ")]);
    words.extend(["--hostfile".to_owned(), path_arg(&hostfile)]);
    words
}

/// A job whose ranks run a shell script in the job's folder.
pub fn shell_job(
    cluster: &Cluster,
    nodes: usize,
    folder: &Path,
    options: &[&str],
    script: &str,
) -> Command {
    let words = ssh_words(cluster, nodes, folder);
    let mut command = cluster.login(&words[0], &words[1..]);
    let script = format!("cd {} && {script}", folder.display());
    command.args(options).args(["--", "sh", "-c", &script]);
    command
}

/// The result of a run, if it was written.
pub fn run_result(folder: &Path) -> Option<RunResult> {
    let text = std::fs::read_to_string(folder.join("run/result.json")).ok()?;
    document::from_json(&text).ok()
}

/// A path as an argument.
pub fn path_arg(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
