//! The job's secret leaks nowhere: not into process lists, logs or files of the run folder.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regatta_testbed::{Cluster, cluster_or_skip, or_skip, run_meanwhile, write_with_mode};

use crate::chaos::check::assert_no_leftovers;
use crate::chaos::inject::wait_for;
use crate::chaos::job::{folder, ssh_words, wait_for_ranks};
use crate::support::REGATTA;

/// Wraps the agent: saves the boot document and delays the start. mktemp names the files because
/// agents on several nodes may have the same PID.
const AGENT: &str = "#!/bin/sh
own=$(mktemp FOLDER/boot-XXXXXX)
[ \"$3\" = - ] && cat > \"$own\" || cp \"$3\" \"$own\"
ln \"$own\" FOLDER/boot 2>/dev/null
until [ -e FOLDER/start ]; do sleep 0.1; done
exec REGATTA \"$@\" < \"$own\"
";
const RANKS: &str = "echo hello; : > $0/at-$RANK; until [ -e $0/go ]; do sleep 0.1; done";

#[test]
fn secret_is_not_leaked() {
    let builder = Cluster::builder().nodes(3).cpus(2).slurm(false).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    let folder = folder(&cluster, "by-pipe");
    let words = delayed_job(&cluster, &folder, "");
    assert_not_leaked(&cluster, &folder, &mut cluster.login(&words[0], &words[1..]), &[]);
}

/// Launchers that forward standard input to one agent only need a file with the secret: readable by
/// the user only, and removed once the agents have connected.
#[test]
fn secret_file_is_private_and_removed_after_bootstrap() {
    let builder = Cluster::builder().nodes(3).cpus(2).slurm(false).ssh(true);
    let Some(cluster) = cluster_or_skip(&builder) else { return };
    if !Path::new("/usr/bin/mpiexec.hydra").exists() {
        return or_skip(&["no program mpiexec.hydra (package mpich)".to_owned()]).unwrap_or(());
    }
    let folder = folder(&cluster, "by-file");
    let words = delayed_job(&cluster, &folder, "--launcher hydra");
    // Another mpiexec may be first in PATH. A link does not work, because Hydra looks for its helpers
    // in its own folder.
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    write_with_mode(bin.join("mpiexec"), 0o755, "#!/bin/sh\nexec mpiexec.hydra \"$@\"\n");
    let mut command = cluster.launcher(&words[0], &words[1..]);
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    command.env("HYDRA_LAUNCHER", "ssh").env("HYDRA_LAUNCHER_EXEC", cluster.ssh_shim());
    assert_not_leaked(&cluster, &folder, &mut command, &[folder.join("run/boot")]);
}

/// The command line of a job with delayed agents.
fn delayed_job(cluster: &Cluster, folder: &Path, options: &str) -> Vec<String> {
    let path = folder.to_str().unwrap();
    let script = AGENT.replace("FOLDER", path).replace("REGATTA", REGATTA);
    write_with_mode(folder.join("agent"), 0o755, script);
    let launch = ssh_words(cluster, 3, folder);
    let agent = format!("--fan-out 2 --agent {path}/agent");
    shlex::split(&format!("{launch} {agent} {options} -- sh -c '{RANKS}' {path}")).unwrap()
}

/// Runs the job; only `files` may contain the secret, while the agents start.
fn assert_not_leaked(cluster: &Cluster, folder: &Path, command: &mut Command, files: &[PathBuf]) {
    let (out, secret) = run_meanwhile(command, Duration::from_secs(90), || {
        let secret = observe(cluster, folder, files);
        // Let the job end even after a failure.
        for name in ["start", "go"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        secret
    });
    let out = out.unwrap();
    let secret = secret.unwrap_or_else(|why| panic!("{why}: {out:?}"));
    assert_eq!(out.status.code(), Some(0), "{}", out.stderr);
    assert!(!out.stdout.contains(&secret) && !out.stderr.contains(&secret), "{out:?}");
    assert_eq!(files_with(&folder.join("run"), &secret), Vec::<PathBuf>::new());
    assert_no_leftovers(cluster).unwrap();
}

/// Checks for leaks while the agents start and while the ranks run.
fn observe(cluster: &Cluster, folder: &Path, files: &[PathBuf]) -> Result<String, String> {
    let boot = folder.join("boot");
    // The file may be incomplete.
    let parsed = |text: String| serde_json::from_str::<serde_json::Value>(&text).ok();
    let read = || std::fs::read_to_string(&boot).ok().and_then(parsed);
    let secret = wait_for("the boot document", read)?["secret"].clone();
    let secret = secret.as_str().unwrap().to_owned();
    assert_eq!(secret.len(), 64);
    check_leaks(cluster, folder, &secret, files)?;
    for file in files {
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    std::fs::write(folder.join("start"), "").unwrap();
    wait_for_ranks(folder, 3)?;
    check_leaks(cluster, folder, &secret, &[])?;
    Ok(secret)
}

/// Checks that only these files of the run folder contain the secret, and no process does.
fn check_leaks(
    cluster: &Cluster,
    folder: &Path,
    secret: &str,
    files: &[PathBuf],
) -> Result<(), String> {
    let found = files_with(&folder.join("run"), secret);
    if found != files {
        return Err(format!("the secret is in {found:?}"));
    }
    let mut checked = 0;
    for host in cluster.nodes().iter().map(String::as_str).chain(["login"]) {
        for process in cluster.processes(host).unwrap() {
            for name in ["cmdline", "environ"] {
                // The process may be gone by now.
                let path = format!("/proc/{}/{name}", process.pid);
                let bytes = std::fs::read(path).unwrap_or_default();
                checked += 1;
                if String::from_utf8_lossy(&bytes).contains(secret) {
                    return Err(format!("the secret is in {name} of {}", process.command));
                }
            }
        }
    }
    if checked > 8 { Ok(()) } else { Err(format!("only {checked} files were checked")) }
}

/// Files below a folder that contain the secret.
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
