//! Real logins by ssh: a daemon in every node, and keys that only this cluster has.

use crate::base::Base;
use crate::error::{TestbedError, io};
use crate::host::Host;
use crate::inside;
use crate::run::succeed;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Where its files are in the cluster's folder.
const FOLDER: &str = "sshd";
const PORT: u16 = 22;
/// The time the daemons have to listen.
const READY: Duration = Duration::from_secs(20);
/// How often to look whether they do.
const ASK: Duration = Duration::from_millis(5);

/// The client's configuration in a cluster's folder.
pub(crate) fn client_config(base: &Base) -> PathBuf {
    base.file(FOLDER).join("config")
}

/// Makes the keys and writes both sides' configuration. A login's environment has `variables`,
/// and hwloc in it sees `topology`.
pub(crate) fn configure(
    base: &Base,
    network: &str,
    variables: &[String],
    topology: Option<&Path>,
) -> Result<(), TestbedError> {
    let folder = base.file(FOLDER);
    fs::create_dir_all(&folder).map_err(io("make", &folder))?;
    for key in ["host", "user"] {
        let mut keygen = Command::new("ssh-keygen");
        succeed(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key)))?;
    }
    let public = folder.join("host.pub");
    let key = fs::read_to_string(&public).map_err(io("read", &public))?;
    let mut variables = variables.to_vec();
    if let Some(xml) = topology {
        // hwloc binds only where it believes to describe the machine it runs on.
        variables.push(format!("HWLOC_XMLFILE={}", xml.display()));
        variables.push("HWLOC_THISSYSTEM=1".to_owned());
    }
    let write = |name: &str, text: String| base.write(&format!("{FOLDER}/{name}"), text);
    write("known_hosts", format!("node*,{network}.* {key}"))?;
    write("config", client(&folder))?;
    write("sshd_config", server(&folder, &variables))?;
    // Without PAM, a root that is locked, as Ubuntu's is, may not even log in by key.
    write("shadow", "root:*:19000:0:99999:7:::\n".to_owned())
}

fn client(folder: &Path) -> String {
    let folder = folder.display();
    // The default way to agree on a key takes a third of a login's time.
    format!(
        "Host *
User root
IdentityFile {folder}/user
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
BatchMode yes
KexAlgorithms curve25519-sha256
LogLevel ERROR
"
    )
}

fn server(folder: &Path, variables: &[String]) -> String {
    let folder = folder.display();
    // Only the first of several such lines would count.
    let quoted: Vec<String> = variables.iter().map(|v| format!("\"{v}\"")).collect();
    let environment = match quoted.as_slice() {
        [] => String::new(),
        some => format!("SetEnv {}\n", some.join(" ")),
    };
    // The daemon refuses some of many logins at once unless told otherwise.
    format!(
        "Port {PORT}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
PidFile none
MaxStartups 1000
{environment}"
    )
}

/// Starts the daemon in a host. It does not listen yet; see [`wait`].
pub(crate) fn start(base: &Base, host: &Host) -> Result<(), TestbedError> {
    // The daemon insists on an empty folder of this name, which its service makes at start, and on
    // its whole path for its own name.
    let script = "set -e; mkdir -p /run/sshd; mount --bind \"$1/shadow\" /etc/shadow; \
                  exec \"$(PATH=$PATH:/usr/sbin:/sbin command -v sshd)\" -f \"$1/sshd_config\" \
                  -E \"$2\"";
    let log = base.file("log").join(format!("sshd-{}.log", host.name));
    let mut command = host.enter();
    command.args(["sh", "-c", script, "sshd"]).arg(base.file(FOLDER)).arg(log);
    succeed(&mut command).map(drop)
}

/// Waits until the daemons listen.
pub(crate) fn wait(base: &Base, hosts: &[Host]) -> Result<(), TestbedError> {
    let deadline = Instant::now() + READY;
    for host in hosts {
        while !inside::sockets(host)?.iter().any(|s| s.port == PORT) {
            if Instant::now() >= deadline {
                let log = base.file("log").join(format!("sshd-{}.log", host.name));
                let log = fs::read_to_string(log).unwrap_or_default();
                let (name, seconds) = (host.name.clone(), READY.as_secs());
                return Err(TestbedError::SshNotReady { name, seconds, log });
            }
            std::thread::sleep(ASK);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_sets_all_variables() {
        let text = server(Path::new("/x"), &["A=1".to_owned(), "B=2 3".to_owned()]);
        assert!(text.ends_with("\nSetEnv \"A=1\" \"B=2 3\"\n"), "{text}");
        assert!(!server(Path::new("/x"), &[]).contains("SetEnv"));
    }
}
