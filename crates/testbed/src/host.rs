//! A host: its namespaces and the process that holds them.

use crate::cgroup;
use crate::cluster_dir::ClusterDir;
use crate::command::{succeed, wait_for_exit};
use crate::error::{TestbedError, io};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a host's processes to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Each host mounts its own directory here, which hides the machine's.
const PRIVATE_DIR: &str = "/tmp";

/// A process that holds namespaces. It exits when `stdin` closes.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    holder: Child,
    stdin: Option<ChildStdin>,
    /// Name of the PID namespace in `/proc`, and an open file that keeps the kernel from reusing the
    /// name after a crash. The switch has none.
    pid_namespace: Option<(PathBuf, File)>,
}

impl Host {
    /// A network namespace with two bridges.
    pub(crate) fn switch() -> Result<Self, TestbedError> {
        let script = "set -e; ip link set lo up; \
                      for n in 0 1; do ip link add br$n type bridge; ip link set br$n up; done; \
                      echo up; read -r _ || :";
        let mut command = Command::new("unshare");
        command.args(["--net", "--fork", "--kill-child", "bash", "-c", script]);
        start_holder("switch", &mut command)
    }

    /// A host, not yet attached to a switch. It sees `shared` directories at the machine's paths.
    pub(crate) fn start(
        name: &str,
        dir: &ClusterDir,
        shared: &[PathBuf],
    ) -> Result<Self, TestbedError> {
        cgroup::create(&dir.name, name)?;
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "--propagation", "private"]);
        command.args(["bash", "-c", include_str!("host.sh"), "host", name]).arg(&dir.path);
        command.arg(format!("{}/{name}", dir.name)).arg(cgroup::controllers().join(" "));
        let is_below = |p: &&PathBuf| p.starts_with(PRIVATE_DIR) && *p != Path::new(PRIVATE_DIR);
        command.args(shared.iter().filter(is_below));
        let mut host = start_holder(name, &mut command)?;
        let namespace = host.pid_namespace_path();
        let name_in_proc = fs::read_link(&namespace).map_err(io("read", &namespace))?;
        let open = File::open(&namespace).map_err(io("open", &namespace))?;
        host.pid_namespace = Some((name_in_proc, open));
        Ok(host)
    }

    /// The holder is the parent of the host's first process, so it is not in the PID namespace.
    fn pid_namespace_path(&self) -> String {
        format!("/proc/{}/ns/pid_for_children", self.host_pid())
    }

    /// Attaches the host to a switch, with an address of a /24 network.
    pub(crate) fn attach(&self, switch: &Host, address: &str) -> Result<(), TestbedError> {
        self.attach_to(switch, &self.port(), "br0", "eth0", address)
    }

    /// Attaches the host to the second network.
    pub(crate) fn attach_second(&self, switch: &Host, address: &str) -> Result<(), TestbedError> {
        self.attach_to(switch, &format!("sx-{}", self.name), "br1", "eth1", address)
    }

    fn attach_to(
        &self,
        switch: &Host,
        port: &str,
        bridge: &str,
        device: &str,
        address: &str,
    ) -> Result<(), TestbedError> {
        let peer = format!("peer name {device} netns {}", self.host_pid());
        switch.ip(&format!("link add {port} up master {bridge} type veth {peer}"))?;
        self.ip(&format!("address add {address} dev {device}"))?;
        self.ip(&format!("link set {device} up"))
    }

    /// Name of its port on the switch.
    pub(crate) fn port(&self) -> String {
        format!("sw-{}", self.name)
    }

    /// Runs `ip` with space-separated arguments in the network namespace.
    pub(crate) fn ip(&self, args: &str) -> Result<(), TestbedError> {
        self.run_in_network("ip", args)
    }

    fn run_in_network(&self, program: &str, args: &str) -> Result<(), TestbedError> {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.host_pid().to_string(), program]);
        succeed(command.args(args.split(' '))).map(drop)
    }

    /// Limits the transmit rate of a device.
    pub(crate) fn limit(&self, device: &str, rate: &str) -> Result<(), TestbedError> {
        let limit = format!("rate {rate} burst 3kb latency 400ms");
        self.tc(&format!("qdisc replace dev {device} root tbf {limit}"))
    }

    /// Limits the transmit rate of a device to one address.
    pub(crate) fn limit_to(
        &self,
        device: &str,
        address: &str,
        rate: &str,
    ) -> Result<(), TestbedError> {
        // Traffic outside of any class is not limited.
        self.tc(&format!("qdisc replace dev {device} root handle 1: htb"))?;
        let limit = format!("rate {rate} burst 3kb cburst 3kb");
        self.tc(&format!("class replace dev {device} parent 1: classid 1:1 htb {limit}"))?;
        let matched = format!("match ip dst {address} flowid 1:1");
        self.tc(&format!("filter add dev {device} parent 1: protocol ip u32 {matched}"))
    }

    /// Removes the limits of a device.
    pub(crate) fn unlimit(&self, device: &str) -> Result<(), TestbedError> {
        self.tc(&format!("qdisc delete dev {device} root"))
    }

    fn tc(&self, args: &str) -> Result<(), TestbedError> {
        self.run_in_network("tc", args)
    }

    /// Whether this is the name of the host's PID namespace.
    pub(crate) fn is_pid_namespace(&self, namespace: &Path) -> bool {
        self.pid_namespace.as_ref().is_some_and(|(name, _)| name == namespace)
    }

    /// A command prefix that runs its further arguments in the host.
    pub(crate) fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        let holder = self.host_pid().to_string();
        command.args(["--target", &holder, "--net", "--uts", "--mount", "--ipc"]);
        command.arg(format!("--pid={}", self.pid_namespace_path())).arg("--");
        command.stdin(Stdio::null());
        command
    }

    /// A command prefix that runs its further arguments in the host's network and UTS namespaces only.
    pub(crate) fn enter_network(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.host_pid().to_string(), "--net", "--uts", "--"]);
        command.stdin(Stdio::null());
        command
    }

    /// Process ID of the holder, whose death ends the host.
    pub(crate) fn host_pid(&self) -> u32 {
        self.holder.id()
    }

    /// Makes the host exit; [`Host::drop`] waits for it.
    pub(crate) fn release(&mut self) {
        self.stdin = None;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.release();
        if wait_for_exit(&mut self.holder, Instant::now() + EXIT_TIMEOUT).is_none() {
            // Killing the holder kills the host's first process.
            let _ = self.holder.kill();
            let _ = self.holder.wait();
        }
    }
}

/// Starts a holder and waits until its namespaces are set up.
fn start_holder(name: &str, command: &mut Command) -> Result<Host, TestbedError> {
    // In its own process group: Ctrl-C must not end hosts before their cluster.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut holder = command.spawn().map_err(|source| TestbedError::Start {
        command: format!("unshare for host {name}"),
        source,
    })?;
    let stdin = holder.stdin.take();
    let (stdout, stderr) = (holder.stdout.take(), holder.stderr.take());
    let host = Host { name: name.to_owned(), holder, stdin, pid_namespace: None };
    let mut line = String::new();
    if let Some(stdout) = stdout {
        BufReader::new(stdout).read_line(&mut line).map_err(io("read the answer of host", name))?;
    }
    if line.trim() == "up" {
        return Ok(host);
    }
    let mut message = String::new();
    if let Some(mut stderr) = stderr {
        stderr.read_to_string(&mut message).map_err(io("read the answer of host", name))?;
    }
    Err(TestbedError::HostFailed { name: name.to_owned(), stderr: message.trim().to_owned() })
}
