//! What a machine needs for a cluster, and how tests handle its absence.

use crate::builder::ClusterBuilder;
use crate::cgroup;
use crate::cluster::Cluster;
use crate::command::run;
use std::fmt::Display;
use std::path::Path;
use std::process::Command;

/// With this variable set to 1, a test fails instead of being skipped where a cluster is not possible.
pub const REQUIRE: &str = "REGATTA_REQUIRE_CLUSTER";

/// With this variable set to 1, a test fails instead of being skipped where libfabric or the provider that
/// it needs is missing.
pub const REQUIRE_LIBFABRIC: &str = "REGATTA_REQUIRE_LIBFABRIC";

/// Programs required by every cluster, with their Debian packages.
const HOST_PROGRAMS: [(&str, &str); 5] = [
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("bash", "bash"),
];
/// Programs required by Slurm.
const SLURM_PROGRAMS: [(&str, &str); 4] = [
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("srun", "slurm-client"),
    ("munged", "munge"),
];
/// Programs required by OpenSSH logins.
const SSH_PROGRAMS: [(&str, &str); 3] =
    [("sshd", "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client")];
/// Programs required by the affinity library.
const COMPILER_PROGRAMS: [(&str, &str); 1] = [("cc", "gcc libc6-dev")];
/// Directories of daemons, often missing in an ordinary user's PATH.
const SYSTEM_DIRS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// What this machine lacks for such a cluster.
pub(crate) fn missing(builder: &ClusterBuilder) -> Vec<String> {
    let mut programs = HOST_PROGRAMS.to_vec();
    if builder.slurm {
        programs.extend(SLURM_PROGRAMS);
    }
    if builder.ssh {
        programs.extend(SSH_PROGRAMS);
    }
    if builder.fake_affinity {
        programs.extend(COMPILER_PROGRAMS);
    }
    let mut missing: Vec<String> = missing_programs(&programs)
        .into_iter()
        .map(|(name, package)| format!("no program {name} (Debian package {package})"))
        .collect();
    if !rustix::process::geteuid().is_root() {
        missing.push("not running as root".to_owned());
    } else if missing.is_empty() && !can_unshare() {
        missing.push(
            "no permission to create namespaces (run a container with --privileged)".to_owned(),
        );
    }
    if builder.slurm && (builder.constrain_cores || builder.constrain_devices) {
        for name in cgroup::missing() {
            missing.push(format!("no cgroup v1 controller {name}"));
        }
    }
    missing
}

fn missing_programs<'a>(programs: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = std::env::split_paths(&path).chain(SYSTEM_DIRS.map(Into::into)).collect();
    let lacks = |name: &str| !dirs.iter().any(|f| f.join(Path::new(name)).is_file());
    programs.iter().copied().filter(|(name, _)| lacks(name)).collect()
}

fn can_unshare() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc"]);
    run(command.args(["mount", "-t", "sysfs", "sysfs", "/sys"])).is_ok_and(|o| o.status.success())
}

/// Starts the cluster. Where this machine lacks something for it, prints the reason and returns
/// `None`, so that the test can return.
///
/// # Panics
/// If the cluster fails to start, or with [`REQUIRE`]`=1` if something is missing.
pub fn cluster_or_skip(builder: &ClusterBuilder) -> Option<Cluster> {
    or_skip(&builder.missing())?;
    match builder.build() {
        Ok(cluster) => Some(cluster),
        Err(error) => panic!("{error}"),
    }
}

/// `Some` if nothing is missing; otherwise prints what is and returns `None`.
///
/// # Panics
/// With [`REQUIRE`]`=1` if something is missing.
pub fn or_skip(missing: &[String]) -> Option<()> {
    if missing.is_empty() {
        return Some(());
    }
    skip(REQUIRE, format_args!("this machine cannot run a test cluster: {}", missing.join("; ")));
    None
}

/// Prints why a test is skipped.
///
/// # Panics
/// If `variable`, such as [`REQUIRE_LIBFABRIC`], is 1.
pub fn skip(variable: &str, why: impl Display) {
    let required = std::env::var_os(variable).is_some_and(|value| value == "1");
    assert!(!required, "{variable}=1, but {why}");
    eprintln!("skipped: {why}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_reported_with_its_package() {
        let programs = [("sh", "dash"), ("no-such-program", "some-package")];
        assert_eq!(missing_programs(&programs), [("no-such-program", "some-package")]);
    }
}
