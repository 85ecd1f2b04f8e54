//! The job's secret is seen by nobody: not in a process list, a log or a file of the run folder.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regatta_testbed::{Cluster, Output, cluster_or_skip, or_skip, run_within};

use crate::REGATTA;
use crate::check::nothing_left;
use crate::harm::until;
use crate::launch::{folder, text, words_by_ssh};

/// Stands in for the agent: keeps the boot document, and waits before it becomes the real one.
/// Agents of several nodes may have the same process number, so their files are named by mktemp.
const AGENT: &str = "#!/bin/sh
own=$(mktemp FOLDER/boot-XXXXXX)
[ \"$3\" = - ] && cat > \"$own\" || cp \"$3\" \"$own\"
ln \"$own\" FOLDER/boot 2>/dev/null
until [ -e FOLDER/start ]; do sleep 0.1; done
exec REGATTA \"$@\" < \"$own\"
";
const RANKS: &str = "echo hello; : > $0/at-$RANK; until [ -e $0/go ]; do sleep 0.1; done";

#[test]
fn the_secret_is_nowhere_to_be_read() {
    let builder = Cluster::builder().nodes(3).cpus(2).slurm(false).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let folder = folder(&cluster, "by-pipe");
    let words = job(&cluster, &folder, &[]);
    keeps_its_secret(&cluster, &folder, &mut cluster.login(&words[0], &words[1..]), &[]);
}

/// Where a starter hands standard input to one agent only, a file holds the secret: for the user
/// alone, and until the agents have connected.
#[test]
fn a_file_with_the_secret_is_the_users_alone_and_soon_gone() {
    let builder = Cluster::builder().nodes(3).cpus(2).slurm(false).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    if !Path::new("/usr/bin/mpiexec.hydra").exists() {
        return or_skip(&["no program mpiexec.hydra (package mpich)".to_owned()]).unwrap_or(());
    }
    let folder = folder(&cluster, "by-file");
    let words = job(&cluster, &folder, &["--starter", "hydra"]);
    // Another mpiexec may be the first in the path. A link would not do: it looks for its helpers
    // where it is itself.
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    program(&bin.join("mpiexec"), "#!/bin/sh\nexec mpiexec.hydra \"$@\"\n");
    let path = format!("{}:{}", text(&bin), std::env::var("PATH").unwrap());
    let mut command = cluster.launcher(&words[0], &words[1..]);
    command.env("PATH", path);
    command.env("HYDRA_LAUNCHER", "ssh").env("HYDRA_LAUNCHER_EXEC", cluster.ssh());
    keeps_its_secret(&cluster, &folder, &mut command, &[folder.join("run/boot")]);
}

fn program(path: &Path, script: &str) {
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// The words of a job whose agents do not start at once.
fn job(cluster: &Cluster, folder: &Path, options: &[&str]) -> Vec<String> {
    let agent = folder.join("agent");
    let script = AGENT.replace("FOLDER", &text(folder)).replace("REGATTA", REGATTA);
    program(&agent, &script);
    let mut words = words_by_ssh(cluster, 3, folder);
    words.extend(["--fan-out", "2", "--agent", &text(&agent)].map(str::to_owned));
    words.extend(options.iter().map(|option| (*option).to_owned()));
    words.extend(["--", "sh", "-c", RANKS, &text(folder)].map(str::to_owned));
    words
}

/// Runs the job. While its agents start, `files` hold the secret.
fn keeps_its_secret(cluster: &Cluster, folder: &Path, command: &mut Command, files: &[PathBuf]) {
    let (out, secret) = std::thread::scope(|scope| {
        let job = scope.spawn(|| run_within(command, Duration::from_secs(90)).unwrap());
        let secret = watched(cluster, folder, files);
        // Also after a failure the job is to end.
        for name in ["start", "go"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        (job.join().unwrap(), secret)
    });
    let secret = secret.unwrap_or_else(|why| panic!("{why}: {out:?}"));
    assert_eq!(out.status.code(), Some(0), "{}", out.stderr);
    assert!(!shows(&out, &secret), "{out:?}");
    assert_eq!(files_with(&folder.join("run"), &secret), Vec::<PathBuf>::new());
    nothing_left(cluster).unwrap();
}

fn shows(out: &Output, secret: &str) -> bool {
    out.stdout.contains(secret) || out.stderr.contains(secret)
}

/// Looks while the agents start and while the ranks run.
fn watched(cluster: &Cluster, folder: &Path, files: &[PathBuf]) -> Result<String, String> {
    let boot = folder.join("boot");
    // It may be seen while it is being written.
    let parsed = |text: String| serde_json::from_str::<serde_json::Value>(&text).ok();
    let read = || std::fs::read_to_string(&boot).ok().and_then(parsed);
    let secret = until("the boot document", read)?["secret"].clone();
    let secret = secret.as_str().unwrap().to_owned();
    assert_eq!(secret.len(), 64);
    unseen(cluster, folder, &secret, files)?;
    for file in files {
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    std::fs::write(folder.join("start"), "").unwrap();
    for rank in 0..3 {
        let at = folder.join(format!("at-{rank}"));
        until("the ranks", || at.exists().then_some(()))?;
    }
    unseen(cluster, folder, &secret, &[])?;
    Ok(secret)
}

/// The secret is in these files of the run folder alone, and no process shows it.
fn unseen(cluster: &Cluster, folder: &Path, secret: &str, files: &[PathBuf]) -> Result<(), String> {
    let found = files_with(&folder.join("run"), secret);
    if found != files {
        return Err(format!("the secret is in {found:?}"));
    }
    let mut seen = 0;
    for host in cluster.nodes().iter().map(String::as_str).chain(["login"]) {
        for process in cluster.processes(host).unwrap() {
            for name in ["cmdline", "environ"] {
                // One that is over by now shows nothing.
                let path = format!("/proc/{}/{name}", process.pid);
                let bytes = std::fs::read(path).unwrap_or_default();
                seen += 1;
                if String::from_utf8_lossy(&bytes).contains(secret) {
                    return Err(format!("the secret is in {name} of {}", process.command));
                }
            }
        }
    }
    if seen > 8 { Ok(()) } else { Err(format!("{seen} processes were looked at")) }
}

/// The files below a folder that hold the secret.
fn files_with(folder: &Path, secret: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_with(&path, secret));
        } else if std::fs::read(&path).is_ok_and(|b| String::from_utf8_lossy(&b).contains(secret)) {
            found.push(path);
        }
    }
    found
}
