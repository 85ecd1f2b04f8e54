//! Commands that launch jobs on the first nodes of a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_testbed::Cluster;

use crate::chaos::inject::wait_for;
use crate::support::REGATTA;

/// A shared folder for a job; its run folder is `run`.
pub fn folder(cluster: &Cluster, name: &str) -> PathBuf {
    let folder = cluster.shared().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// `regatta launch` in an allocation, without the ranks' command.
pub fn launch_words(folder: &Path) -> String {
    format!("{REGATTA} launch --oversubscribe --run-dir {}/run", folder.display())
}

/// `regatta launch` over ssh.
pub fn ssh_words(cluster: &Cluster, nodes: usize, folder: &Path) -> String {
    let hostfile = folder.join("hosts");
    std::fs::write(&hostfile, cluster.nodes()[..nodes].join("\n") + "\n").unwrap();
    let ssh = cluster.ssh_command().join(" ");
    format!("{} --ssh '{ssh}' --hostfile {}", launch_words(folder), hostfile.display())
}

/// A command line on the login host, split like in a shell.
pub fn login(cluster: &Cluster, words: &str) -> Command {
    let words = shlex::split(words).unwrap();
    cluster.login(&words[0], &words[1..])
}

/// A job whose ranks run a shell script in the job's folder.
pub fn shell_job(
    cluster: &Cluster,
    nodes: usize,
    folder: &Path,
    options: &str,
    script: &str,
) -> Command {
    let launch = ssh_words(cluster, nodes, folder);
    let mut command = login(cluster, &format!("{launch} {options} -- sh -c"));
    command.arg(format!("cd {} && {script}", folder.display()));
    command
}

pub fn wait_for_file(path: &Path) -> Result<(), String> {
    wait_for(&path.display().to_string(), || path.exists().then_some(()))
}

/// Waits until each rank has created its file `at-RANK`.
pub fn wait_for_ranks(folder: &Path, ranks: u32) -> Result<(), String> {
    (0..ranks).try_for_each(|rank| wait_for_file(&folder.join(format!("at-{rank}"))))
}

/// The result of a run, if it was written.
pub fn run_result(folder: &Path) -> Option<RunResult> {
    let text = std::fs::read_to_string(folder.join("run/result.json")).ok()?;
    document::from_json(&text).ok()
}
