//! System packages that the tests need.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A C compiler for the fake affinity library, a C++ compiler for the emulated GPU, the schedulers, launchers
/// and tools of the test cluster, and libfabric.
const PACKAGES: &str = "gcc g++ libc6-dev util-linux iproute2 hwloc-nox munge slurmctld slurmd \
                        slurm-client slurm-wlm-basic-plugins mpich openmpi-bin openssh-client \
                        openssh-server libfabric1 jq";

/// A clang that compiles the GPU kernels for AMD architectures. Older distributions do not have it; then the
/// test that needs it is skipped with a message.
const OPTIONAL_PACKAGE: &str = "clang-19";

/// A package of which only a program is needed, and that program. Debian's `hwloc` has it, too, and
/// conflicts with `hwloc-nox`.
const LSTOPO: (&str, &str) = ("hwloc-nox", "lstopo-no-graphics");

/// What the tests may require of this machine; the others are skipped with a message.
#[derive(Debug, Clone, Copy)]
pub struct Available {
    /// Everything in the packages, such as libfabric.
    pub packages: bool,
    /// A test cluster, which needs root.
    pub cluster: bool,
}

/// Installs missing packages as root on Debian or Ubuntu.
pub fn install() -> Result<Available> {
    let packages = install_missing()?;
    Ok(Available { packages, cluster: packages && is_root() })
}

/// Returns whether all packages are installed.
fn install_missing() -> Result<bool> {
    let missing = missing(is_installed, is_in_path);
    if missing.is_empty() {
        install_optional();
        return Ok(true);
    }
    let list = missing.join(" ");
    if !has_apt() {
        print!("xtask: not Debian or Ubuntu: ");
        println!("the multi-host tests need the contents of these packages: {list}");
        return Ok(false);
    }
    if !is_root() {
        println!("xtask: not root: the multi-host tests are skipped. They need root and");
        println!("       apt-get install --no-install-recommends {list}");
        return Ok(false);
    }
    println!("xtask: installing {list}");
    apt(&["update", "-q"])?;
    apt_install(&missing)?;
    install_optional();
    Ok(true)
}

/// Installs the optional package if that is possible.
fn install_optional() {
    if is_installed(OPTIONAL_PACKAGE) || !has_apt() || !is_root() {
        return;
    }
    if let Err(error) = apt_install(&[OPTIONAL_PACKAGE]) {
        println!("xtask: {error:#}: the kernels are not compiled for AMD GPUs");
    }
}

/// The packages to install. A program from another package is as good.
fn missing(installed: fn(&str) -> bool, in_path: fn(&str) -> bool) -> Vec<&'static str> {
    let available =
        |package: &str| installed(package) || (package == LSTOPO.0 && in_path(LSTOPO.1));
    PACKAGES.split(' ').filter(|package| !available(package)).collect()
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Status}", package]).stderr(Stdio::null());
    query.output().is_ok_and(|output| output.stdout == b"installed")
}

fn has_apt() -> bool {
    let version = Command::new("apt-get").arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

fn is_root() -> bool {
    id("-u").is_ok_and(|user| user == "0")
}

/// The number of the user (`-u`) or its group (`-g`).
pub fn id(which: &str) -> Result<String, String> {
    let output = Command::new("id").arg(which).output().map_err(|error| format!("id: {error}"))?;
    Ok(String::from_utf8_lossy(output.stdout.trim_ascii()).into_owned())
}

fn apt_install(packages: &[&str]) -> Result<()> {
    apt(&[&["install", "-q", "-y", "--no-install-recommends"], packages].concat())
}

fn apt(arguments: &[&str]) -> Result<()> {
    let mut apt = Command::new("apt-get");
    let status = apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
    if !status.context("apt-get")?.success() {
        bail!("apt-get {} failed", arguments.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn installed_hwloc_is_not_replaced_by_hwloc_nox() {
        let other_than_hwloc_nox = |package: &str| package != "hwloc-nox";
        assert_eq!(missing(other_than_hwloc_nox, |_| false), ["hwloc-nox"]);
        assert_eq!(
            missing(other_than_hwloc_nox, |program| program == "lstopo-no-graphics"),
            [""; 0]
        );
    }
}
