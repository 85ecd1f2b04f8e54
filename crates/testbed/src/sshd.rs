//! An OpenSSH daemon on every node, with keys of this cluster only.

use crate::cluster_dir::ClusterDir;
use crate::command::succeed;
use crate::error::{TestbedError, io};
use crate::host::Host;
use crate::host_processes;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Its directory within the cluster's directory.
const SSH_DIR: &str = "sshd";
const PORT: u16 = 22;
/// Time for the daemons to listen.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Path of the client configuration.
pub(crate) fn client_config(dir: &ClusterDir) -> PathBuf {
    dir.file(SSH_DIR).join("config")
}

/// Creates the keys and writes the client and server configuration. The environment of a login has
/// `variables`, and hwloc reads `topology`.
pub(crate) fn configure(
    dir: &ClusterDir,
    network: &str,
    variables: &[String],
    topology: Option<&Path>,
) -> Result<(), TestbedError> {
    let ssh_dir = dir.file(SSH_DIR);
    fs::create_dir_all(&ssh_dir).map_err(io("create", &ssh_dir))?;
    for key in ["host", "user"] {
        let mut keygen = Command::new("ssh-keygen");
        succeed(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(ssh_dir.join(key)))?;
    }
    let public = ssh_dir.join("host.pub");
    let key = fs::read_to_string(&public).map_err(io("read", &public))?;
    let mut variables = variables.to_vec();
    // A shell of a login would run the start-up files of this machine's user, which may take a minute.
    variables.push(format!("HOME={}", ssh_dir.display()));
    if let Some(xml) = topology {
        // hwloc binds only if it believes that the file describes this machine.
        variables.push(format!("HWLOC_XMLFILE={}", xml.display()));
        variables.push("HWLOC_THISSYSTEM=1".to_owned());
    }
    let write = |name: &str, text: String| dir.write(&format!("{SSH_DIR}/{name}"), text);
    write("known_hosts", format!("node*,{network}.* {key}"))?;
    write("config", client(&ssh_dir))?;
    write("sshd_config", server(&ssh_dir, &variables))?;
    // Without PAM, a locked root account, as on Ubuntu, cannot log in even by key.
    write("shadow", "root:*:19000:0:99999:7:::\n".to_owned())
}

fn client(ssh_dir: &Path) -> String {
    let ssh_dir = ssh_dir.display();
    // The default key exchange takes a third of the login time.
    format!(
        "Host *
User root
IdentityFile {ssh_dir}/user
IdentitiesOnly yes
UserKnownHostsFile {ssh_dir}/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
BatchMode yes
KexAlgorithms curve25519-sha256
LogLevel ERROR
"
    )
}

fn server(ssh_dir: &Path, variables: &[String]) -> String {
    let ssh_dir = ssh_dir.display();
    // Only the first SetEnv line takes effect.
    let quoted: Vec<String> = variables.iter().map(|v| format!("\"{v}\"")).collect();
    let environment = match quoted.as_slice() {
        [] => String::new(),
        some => format!("SetEnv {}\n", some.join(" ")),
    };
    // By default the daemon drops some of many concurrent logins.
    format!(
        "Port {PORT}
HostKey {ssh_dir}/host
AuthorizedKeysFile {ssh_dir}/user.pub
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

/// Starts the daemon on a host. Use [`wait`] until it listens.
pub(crate) fn start(dir: &ClusterDir, host: &Host) -> Result<(), TestbedError> {
    // The daemon requires this empty directory, which its service creates, and its absolute path
    // as its own name.
    let script = "set -e; mkdir -p /run/sshd; mount --bind \"$1/shadow\" /etc/shadow; \
                  exec \"$(PATH=$PATH:/usr/sbin:/sbin command -v sshd)\" -f \"$1/sshd_config\" \
                  -E \"$2\"";
    let log = dir.file("log").join(format!("sshd-{}.log", host.name));
    let mut command = host.enter();
    command.args(["sh", "-c", script, "sshd"]).arg(dir.file(SSH_DIR)).arg(log);
    succeed(&mut command).map(drop)
}

/// Waits until the daemons listen.
pub(crate) fn wait(dir: &ClusterDir, hosts: &[Host]) -> Result<(), TestbedError> {
    let deadline = Instant::now() + READY_TIMEOUT;
    for host in hosts {
        while !host_processes::sockets(host)?.iter().any(|s| s.port == PORT) {
            if Instant::now() >= deadline {
                let log = dir.file("log").join(format!("sshd-{}.log", host.name));
                let log = fs::read_to_string(log).unwrap_or_default();
                let (name, seconds) = (host.name.clone(), READY_TIMEOUT.as_secs());
                return Err(TestbedError::SshNotReady { name, seconds, log });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_setenv_line_sets_all_variables() {
        let text = server(Path::new("/x"), &["A=1".to_owned(), "B=2 3".to_owned()]);
        assert!(text.ends_with("\nSetEnv \"A=1\" \"B=2 3\"\n"), "{text}");
        assert!(!server(Path::new("/x"), &[]).contains("SetEnv"));
    }
}
