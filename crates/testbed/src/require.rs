//! What a machine needs for a cluster, and what a test does where it is lacking.

use crate::builder::ClusterBuilder;
use crate::cgroup;
use crate::cluster::Cluster;
use crate::run::run;
use std::path::Path;
use std::process::Command;

/// Set to 1, this variable makes a test fail where it would else be skipped for want of a cluster.
pub const REQUIRE: &str = "REGATTA_REQUIRE_CLUSTER";

/// Programs that every cluster needs, with the Debian package that has them.
const HOSTS: [(&str, &str); 5] = [
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("bash", "bash"),
];
/// What Slurm needs beyond.
const SLURM: [(&str, &str); 4] = [
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("srun", "slurm-client"),
    ("munged", "munge"),
];
/// What real logins need.
const SSH: [(&str, &str); 3] =
    [("sshd", "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client")];
/// What compiles the affinity library.
const COMPILER: [(&str, &str); 1] = [("cc", "gcc libc6-dev")];
/// Daemons are there, which an ordinary user's path leaves out.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// What this machine lacks for such a cluster.
pub(crate) fn missing(builder: &ClusterBuilder) -> Vec<String> {
    let mut programs = HOSTS.to_vec();
    if builder.slurm {
        programs.extend(SLURM);
    }
    if builder.ssh {
        programs.extend(SSH);
    }
    if builder.fake_affinity {
        programs.extend(COMPILER);
    }
    let mut missing: Vec<String> = absent(&programs)
        .into_iter()
        .map(|(name, package)| format!("no program {name} (Debian package {package})"))
        .collect();
    if !rustix::process::geteuid().is_root() {
        missing.push("not run as root".to_owned());
    } else if missing.is_empty() && !may_unshare() {
        missing.push("no right to make namespaces (in a container: run it privileged)".to_owned());
    }
    if builder.slurm && (builder.constrain_cores || builder.constrain_devices) {
        for name in cgroup::missing() {
            missing.push(format!("no control group hierarchy {name} of version 1"));
        }
    }
    missing
}

fn absent<'a>(programs: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> =
        std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(Into::into)).collect();
    let lacks = |name: &str| !folders.iter().any(|f| f.join(Path::new(name)).is_file());
    programs.iter().copied().filter(|(name, _)| lacks(name)).collect()
}

fn may_unshare() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc"]);
    run(command.args(["mount", "-t", "sysfs", "sysfs", "/sys"])).is_ok_and(|o| o.status.success())
}

/// The cluster, or `None` with the reason printed where this machine cannot hold one: the test
/// then returns. With [`REQUIRE`]`=1` that is a failure, and a cluster that should come up and does
/// not is one always.
///
/// # Panics
/// As told above: it is made to be called by tests.
pub fn cluster_or_skip(builder: &ClusterBuilder) -> Option<Cluster> {
    or_skip(&builder.missing())?;
    match builder.up() {
        Ok(cluster) => Some(cluster),
        Err(error) => panic!("{error}"),
    }
}

/// `Some` if nothing is missing; else says so and gives `None`, or fails with [`REQUIRE`]`=1`.
///
/// # Panics
/// If something is missing and [`REQUIRE`] is set.
pub fn or_skip(missing: &[String]) -> Option<()> {
    if missing.is_empty() {
        return Some(());
    }
    let why = missing.join("; ");
    let required = std::env::var_os(REQUIRE).is_some_and(|v| v == "1");
    assert!(!required, "{REQUIRE}=1, but this machine cannot hold a test cluster: {why}");
    eprintln!("skipped: this machine cannot hold a test cluster: {why}");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let programs = [("sh", "dash"), ("no-such-program", "some-package")];
        assert_eq!(absent(&programs), [("no-such-program", "some-package")]);
    }
}
