//! One host: the namespaces, and the process that holds them.

use crate::base::Base;
use crate::cgroup;
use crate::error::{TestbedError, io};
use crate::run::{succeed, wait_until};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// The time a host's processes have to end.
const END: Duration = Duration::from_secs(10);
/// Every host's own `/tmp` covers what the machine has there.
const COVERED: &str = "/tmp";

/// A process that holds namespaces open. It ends when `stdin` closes.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    holder: Child,
    stdin: Option<ChildStdin>,
    /// What `/proc` calls the PID namespace; the switch has none. It is held open, so that a crash
    /// does not make the name another host's.
    processes: Option<(PathBuf, File)>,
}

impl Host {
    /// A network namespace with two bridges in it, to which the hosts are joined.
    pub(crate) fn switch() -> Result<Self, TestbedError> {
        let script = "set -e; ip link set lo up; \
                      for n in 0 1; do ip link add br$n type bridge; ip link set br$n up; done; \
                      echo up; read -r _ || :";
        let mut command = Command::new("unshare");
        command.args(["--net", "--fork", "--kill-child", "bash", "-c", script]);
        hold("switch", &mut command)
    }

    /// A whole host, not yet joined to a switch. It shows `shared` folders where the machine does.
    pub(crate) fn start(name: &str, base: &Base, shared: &[PathBuf]) -> Result<Self, TestbedError> {
        cgroup::create(&base.name, name)?;
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "--propagation", "private"]);
        command.args(["bash", "-c", include_str!("host.sh"), "host", name]).arg(&base.path);
        command.arg(format!("{}/{name}", base.name)).arg(cgroup::controllers().join(" "));
        command.args(shared.iter().filter(|p| p.starts_with(COVERED) && *p != Path::new(COVERED)));
        let mut host = hold(name, &mut command)?;
        let namespace = host.process_namespace();
        let called = fs::read_link(&namespace).map_err(io("read", &namespace))?;
        let open = File::open(&namespace).map_err(io("open", &namespace))?;
        host.processes = Some((called, open));
        Ok(host)
    }

    /// The holder is the parent of the host's first process, so not in its PID namespace.
    fn process_namespace(&self) -> String {
        format!("/proc/{}/ns/pid_for_children", self.holder.id())
    }

    /// Joins the host to a switch, under an address of a /24 network.
    pub(crate) fn join(&self, switch: &Host, address: &str) -> Result<(), TestbedError> {
        self.plug(switch, [&self.port(), "br0", "eth0"], address)
    }

    /// Joins it to a second network, which has nothing to do with the first.
    pub(crate) fn join_second(&self, switch: &Host, address: &str) -> Result<(), TestbedError> {
        self.plug(switch, [&format!("sx-{}", self.name), "br1", "eth1"], address)
    }

    fn plug(
        &self,
        switch: &Host,
        [port, bridge, device]: [&str; 3],
        address: &str,
    ) -> Result<(), TestbedError> {
        let holder = self.holder.id().to_string();
        let port = ["link", "add", port, "up", "master", bridge, "type", "veth"];
        let peer = ["peer", "name", device, "netns", &holder];
        switch.on_network(&[&port[..], &peer].concat())?;
        self.on_network(&["address", "add", address, "dev", device])?;
        self.on_network(&["link", "set", device, "up"])
    }

    /// The name of its port on the switch.
    pub(crate) fn port(&self) -> String {
        format!("sw-{}", self.name)
    }

    /// Runs `ip` on the network of a host or switch.
    pub(crate) fn on_network(&self, args: &[&str]) -> Result<(), TestbedError> {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.holder.id().to_string(), "ip"]);
        succeed(command.args(args)).map(drop)
    }

    /// Has a device send so much at most.
    pub(crate) fn limit(&self, device: &str, rate: &str) -> Result<(), TestbedError> {
        let words = ["qdisc", "replace", "dev", device, "root", "tbf", "rate", rate];
        self.traffic(&[&words[..], &["burst", "3kb", "latency", "400ms"]].concat())
    }

    /// Has a device send so much to one address at most.
    pub(crate) fn limit_to(
        &self,
        device: &str,
        address: &str,
        rate: &str,
    ) -> Result<(), TestbedError> {
        // What is in no class is sent as it comes.
        let root = ["qdisc", "replace", "dev", device, "root", "handle", "1:", "htb"];
        self.traffic(&root)?;
        let class = ["class", "replace", "dev", device, "parent", "1:", "classid", "1:1", "htb"];
        self.traffic(&[&class[..], &["rate", rate, "burst", "3kb", "cburst", "3kb"]].concat())?;
        let filter = ["filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "u32"];
        self.traffic(&[&filter[..], &["match", "ip", "dst", address, "flowid", "1:1"]].concat())
    }

    /// Has it send as much as it can.
    pub(crate) fn unlimit(&self, device: &str) -> Result<(), TestbedError> {
        self.traffic(&["qdisc", "delete", "dev", device, "root"])
    }

    /// Runs `tc` on the network of a host or switch.
    fn traffic(&self, args: &[&str]) -> Result<(), TestbedError> {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.holder.id().to_string(), "tc"]);
        succeed(command.args(args)).map(drop)
    }

    /// Whether this is, as `/proc` calls it, the host's PID namespace.
    pub(crate) fn holds(&self, namespace: &Path) -> bool {
        self.processes.as_ref().is_some_and(|(name, _)| name == namespace)
    }

    /// A command whose further arguments run in the host.
    pub(crate) fn enter(&self) -> Command {
        let holder = self.holder.id();
        let mut command = Command::new("nsenter");
        command.args(["--target", &holder.to_string(), "--net", "--uts", "--mount", "--ipc"]);
        command.arg(format!("--pid={}", self.process_namespace())).arg("--");
        command.stdin(Stdio::null());
        command
    }

    /// A command whose further arguments run with the host's network and name, and else outside.
    pub(crate) fn enter_network(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net", "--uts", "--"]);
        command.stdin(Stdio::null());
        command
    }

    /// The machine's number for the process whose death ends the host.
    pub(crate) fn holder(&self) -> u32 {
        self.holder.id()
    }

    /// Lets the host end; [`Host::drop`] waits until it has.
    pub(crate) fn release(&mut self) {
        self.stdin = None;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.release();
        if wait_until(&mut self.holder, Instant::now() + END).is_none() {
            // The holder's death kills the host's first process.
            let _ = self.holder.kill();
            let _ = self.holder.wait();
        }
    }
}

/// Starts a holder and waits until it says that its namespaces are set up.
fn hold(name: &str, command: &mut Command) -> Result<Host, TestbedError> {
    // A group of its own: an interrupt from the keyboard must not end hosts before their cluster.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut holder = command.spawn().map_err(|source| TestbedError::Start {
        command: format!("unshare for host {name}"),
        source,
    })?;
    let stdin = holder.stdin.take();
    let (stdout, stderr) = (holder.stdout.take(), holder.stderr.take());
    let host = Host { name: name.to_owned(), holder, stdin, processes: None };
    let mut said = String::new();
    if let Some(stdout) = stdout {
        BufReader::new(stdout).read_line(&mut said).map_err(io("read the answer of host", name))?;
    }
    if said.trim() == "up" {
        return Ok(host);
    }
    let mut complaint = String::new();
    if let Some(mut stderr) = stderr {
        stderr.read_to_string(&mut complaint).map_err(io("read the answer of host", name))?;
    }
    Err(TestbedError::HostFailed { name: name.to_owned(), stderr: complaint.trim().to_owned() })
}
