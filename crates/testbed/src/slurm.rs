//! Configuration and daemons of Slurm.

use crate::builder::ClusterBuilder;
use crate::cluster::Cluster;
use crate::cluster_dir::ClusterDir;
use crate::command::{run_within, succeed};
use crate::error::{TestbedError, io};
use crate::parallel::parallel_map;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for the nodes to become idle.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Major device number of NVIDIA GPUs.
const GPU_MAJOR: u32 = 195;
/// Bytes of each log shown in an error.
const LOG_TAIL_BYTES: usize = 2000;

/// Writes the configuration and the GPUs' device files into the cluster's directory.
pub(crate) fn configure(dir: &ClusterDir, builder: &ClusterBuilder) -> Result<(), TestbedError> {
    dir.write("slurm.conf", slurm_conf(&dir.path, builder))?;
    dir.write("cgroup.conf", cgroup_conf(builder))?;
    dir.write("gres.conf", gres_conf(&dir.path, builder.gpus))?;
    for gpu in 0..builder.gpus {
        let path = dir.file("dev").join(format!("nvidia{gpu}"));
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(GPU_MAJOR, gpu))
            .map_err(|e| io("create the device", &path)(e.into()))?;
    }
    let mut key = [0; 1024];
    let random = "/dev/urandom";
    fs::File::open(random).and_then(|mut f| f.read_exact(&mut key)).map_err(io("read", random))?;
    dir.write("munge.key", key)?;
    let key = dir.file("munge.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).map_err(io("protect", &key))
}

/// Starts the daemons and waits until all nodes are idle.
pub(crate) fn start(cluster: &Cluster) -> Result<(), TestbedError> {
    let dir = cluster.shared().display();
    succeed(&mut cluster.login(
        "munged",
        [
            // munged otherwise rejects a directory below the world-writable /tmp.
            "--force".to_owned(),
            format!("--key-file={dir}/munge.key"),
            format!("--socket={dir}/run/munge.sock"),
            format!("--pid-file={dir}/run/munged.pid"),
            format!("--log-file={dir}/log/munged.log"),
            format!("--seed-file={dir}/run/munge.seed"),
        ],
    ))?;
    succeed(&mut cluster.login("slurmctld", [""; 0]))?;
    let topology = cluster.topology().map(|xml| format!("HWLOC_XMLFILE={}", xml.display()));
    parallel_map(cluster.nodes(), |node| {
        let words = topology.iter().map(String::as_str).chain(["slurmd"]);
        succeed(&mut cluster.on(node, "env", words)?)
    })?;
    wait(cluster)
}

fn wait(cluster: &Cluster) -> Result<(), TestbedError> {
    let deadline = Instant::now() + READY_TIMEOUT;
    let expected = cluster.nodes().len().to_string();
    while Instant::now() < deadline {
        let mut sinfo = cluster.login("sinfo", ["-h", "-t", "idle", "-o", "%D"]);
        // It fails until slurmctld listens.
        if run_within(&mut sinfo, READY_TIMEOUT).is_ok_and(|o| o.stdout.trim() == expected) {
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Err(TestbedError::SlurmNotReady {
        seconds: READY_TIMEOUT.as_secs(),
        logs: log_tails(&cluster.shared().join("log")),
    })
}

fn log_tails(dir: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let log = fs::read(entry.path()).unwrap_or_default();
        let end = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]);
        text += &format!("--- {}\n{end}\n", entry.file_name().to_string_lossy());
    }
    text
}

fn slurm_conf(dir: &Path, builder: &ClusterBuilder) -> String {
    let dir = dir.display();
    let nodes = builder.nodes;
    let network = crate::cluster::NETWORK;
    let login = crate::cluster::LOGIN_ADDRESS;
    let (track, task) = match builder.cgroups() {
        true => ("proctrack/cgroup", "task/affinity,task/cgroup"),
        false => ("proctrack/linuxproc", "task/affinity"),
    };
    let topology = match &builder.topology {
        Some(topology) => topology.slurm.clone(),
        None => format!("Sockets=1 CoresPerSocket={} ThreadsPerCore=1", builder.cpus),
    };
    let (gres_types, gres) = match builder.gpus {
        0 => (String::new(), String::new()),
        n => ("GresTypes=gpu\n".to_owned(), format!(" Gres=gpu:{n}")),
    };
    format!(
        "ClusterName=testbed
SlurmctldHost=login({network}.{login})
SlurmUser=root
AuthInfo=socket={dir}/run/munge.sock
StateSaveLocation={dir}/spool
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/run/slurmctld.pid
SlurmdPidFile={dir}/run/slurmd-%n.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd-%n.log
ProctrackType={track}
TaskPlugin={task}
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MailProg=/bin/true
{gres_types}NodeName=node[1-{nodes}] NodeAddr={network}.[1-{nodes}] CPUs={cpus} {topology} RealMemory=4000{gres}
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
",
        cpus = builder.cpus
    )
}

fn cgroup_conf(builder: &ClusterBuilder) -> String {
    let yes = |b: bool| if b { "yes" } else { "no" };
    format!(
        "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainCores={}\n\
         ConstrainDevices={}\nConstrainRAMSpace=no\n",
        yes(builder.constrain_cores),
        yes(builder.constrain_devices)
    )
}

fn gres_conf(dir: &Path, gpus: u32) -> String {
    match gpus {
        0 => String::new(),
        n => format!("Name=gpu File={}/dev/nvidia[0-{}]\n", dir.display(), n - 1),
    }
}
