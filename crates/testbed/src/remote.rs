//! A stand-in for ssh, for launchers that reach the nodes by it.
//!
//! It enters a node from outside of all hosts, for a process can go only into PID namespaces below
//! its own: from one host to the next there is no way.

use crate::base::Base;
use crate::error::{TestbedError, io};
use crate::host::Host;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Its name in the cluster's folder.
pub(crate) const NAME: &str = "ssh";

/// Writes the stand-in. As a login by ssh does, it hands nothing of the caller's environment on;
/// what it starts has `variables`, and hwloc sees `topology`.
pub(crate) fn write(
    base: &Base,
    hosts: &[Host],
    variables: &[String],
    topology: Option<&Path>,
) -> Result<(), TestbedError> {
    let cases: String =
        hosts.iter().map(|h| format!("{}) holder={};;\n", h.name, h.holder())).collect();
    // hwloc binds only where it believes to describe the machine it runs on.
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
env -i -C {folder} PATH=\"$PATH\" {hwloc} {variables} sh -c \"$*\"
",
        folder = base.path.display(),
        variables = variables.join(" "),
    );
    base.write(NAME, script)?;
    let path = base.file(NAME);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(io("allow", &path))
}
