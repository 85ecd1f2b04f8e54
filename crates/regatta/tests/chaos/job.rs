//! The commands that start jobs, on the first nodes of a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_testbed::Cluster;

use crate::REGATTA;

/// A job's own folder, which all hosts see; the run folder is `run` in it.
pub fn folder(cluster: &Cluster, name: &str) -> PathBuf {
    let folder = cluster.shared().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The words that launch on the nodes of an allocation, without what the ranks run.
pub fn words(folder: &Path) -> Vec<String> {
    let mut words: Vec<String> = [REGATTA, "launch", "--oversubscribe"].map(str::to_owned).into();
    words.extend(["--run-dir".to_owned(), text(&folder.join("run"))]);
    words
}

/// The words that launch on these nodes by ssh.
pub fn words_by_ssh(cluster: &Cluster, nodes: usize, folder: &Path) -> Vec<String> {
    let hostfile = folder.join("hosts");
    std::fs::write(&hostfile, cluster.nodes()[..nodes].join("\n") + "\n").unwrap();
    let mut words = words(folder);
    words.extend(["--ssh".to_owned(), cluster.ssh_command().join(" ")]);
    words.extend(["--hostfile".to_owned(), text(&hostfile)]);
    words
}

/// A job of a shell script, which runs in the job's folder.
pub fn job(
    cluster: &Cluster,
    nodes: usize,
    folder: &Path,
    options: &[&str],
    script: &str,
) -> Command {
    let words = words_by_ssh(cluster, nodes, folder);
    let mut command = cluster.login(&words[0], &words[1..]);
    let script = format!("cd {} && {script}", folder.display());
    command.args(options).args(["--", "sh", "-c", &script]);
    command
}

/// How a run ended, if it told.
pub fn result(folder: &Path) -> Option<RunResult> {
    let text = std::fs::read_to_string(folder.join("run/result.json")).ok()?;
    document::from_json(&text).ok()
}

/// A path as a word.
pub fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
