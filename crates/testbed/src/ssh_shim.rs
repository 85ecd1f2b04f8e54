//! A substitute for ssh, for launchers that start processes on nodes through it.
//!
//! It enters a node from outside of all hosts: a process can enter only descendant PID namespaces, so
//! one host cannot enter another.

use crate::cluster_dir::ClusterDir;
use crate::error::{TestbedError, io};
use crate::host::Host;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// File name in the cluster's directory.
pub(crate) const NAME: &str = "ssh";

/// Writes the script. Like an ssh login it does not pass on the caller's environment; its commands
/// have `variables`, and hwloc reads `topology`.
pub(crate) fn write(
    dir: &ClusterDir,
    hosts: &[Host],
    variables: &[String],
    topology: Option<&Path>,
) -> Result<(), TestbedError> {
    let cases: String =
        hosts.iter().map(|h| format!("{}) holder={};;\n", h.name, h.host_pid())).collect();
    // hwloc binds only if it believes that the file describes this machine.
    let hwloc = topology.map_or_else(String::new, |xml| {
        format!("HWLOC_XMLFILE={} HWLOC_THISSYSTEM=1", xml.display())
    });
    let script = format!(
        "#!/bin/sh
while :; do case $1 in -*) shift;; *) break;; esac; done
case $1 in
{cases}*) echo \"ssh: no host $1\" >&2; exit 255;;
esac
shift
exec nsenter --target $holder --net --uts --mount --ipc --pid=/proc/$holder/ns/pid_for_children -- \
env -i -C {cwd} PATH=\"$PATH\" {hwloc} {variables} sh -c \"$*\"
",
        cwd = dir.path.display(),
        variables = variables.join(" "),
    );
    dir.write(NAME, script)?;
    let path = dir.file(NAME);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(io("allow", &path))
}
