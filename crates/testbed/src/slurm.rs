//! Slurm's configuration, and its daemons.

use crate::base::Base;
use crate::builder::ClusterBuilder;
use crate::cluster::Cluster;
use crate::error::{TestbedError, io};
use crate::run::{run_within, succeed};
use crate::together::together;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time the nodes have to become idle.
const READY: Duration = Duration::from_secs(60);
/// How often to ask whether they are.
const ASK: Duration = Duration::from_millis(50);
/// NVIDIA's device number.
const GPU_MAJOR: u32 = 195;
/// Bytes of a log that an error shows.
const LOG_END: usize = 2000;

/// Writes the configuration into the cluster's folder, with the GPUs' device files.
pub(crate) fn configure(base: &Base, builder: &ClusterBuilder) -> Result<(), TestbedError> {
    base.write("slurm.conf", slurm_conf(&base.path, builder))?;
    base.write("cgroup.conf", cgroup_conf(builder))?;
    base.write("gres.conf", gres_conf(&base.path, builder.gpus))?;
    for gpu in 0..builder.gpus {
        let path = base.file("dev").join(format!("nvidia{gpu}"));
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(GPU_MAJOR, gpu))
            .map_err(|e| io("make the device", &path)(e.into()))?;
    }
    let mut key = [0; 1024];
    let random = "/dev/urandom";
    fs::File::open(random).and_then(|mut f| f.read_exact(&mut key)).map_err(io("read", random))?;
    base.write("munge.key", key)?;
    let key = base.file("munge.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).map_err(io("protect", &key))
}

/// Starts the daemons and waits until every node is idle.
pub(crate) fn start(cluster: &Cluster) -> Result<(), TestbedError> {
    let base = cluster.shared().display();
    succeed(&mut cluster.login(
        "munged",
        [
            // The folder is below /tmp, which everybody may write to.
            "--force".to_owned(),
            format!("--key-file={base}/munge.key"),
            format!("--socket={base}/run/munge.sock"),
            format!("--pid-file={base}/run/munged.pid"),
            format!("--log-file={base}/log/munged.log"),
            format!("--seed-file={base}/run/munge.seed"),
        ],
    ))?;
    succeed(&mut cluster.login("slurmctld", [""; 0]))?;
    let topology = cluster.topology().map(|xml| format!("HWLOC_XMLFILE={}", xml.display()));
    together(cluster.nodes(), |node| {
        let words = topology.iter().map(String::as_str).chain(["slurmd"]);
        succeed(&mut cluster.on(node, "env", words)?)
    })?;
    wait(cluster)
}

fn wait(cluster: &Cluster) -> Result<(), TestbedError> {
    let deadline = Instant::now() + READY;
    let wanted = cluster.nodes().len().to_string();
    while Instant::now() < deadline {
        let mut sinfo = cluster.login("sinfo", ["-h", "-t", "idle", "-o", "%D"]);
        // It fails until slurmctld listens.
        if run_within(&mut sinfo, READY).is_ok_and(|o| o.stdout.trim() == wanted) {
            return Ok(());
        }
        std::thread::sleep(ASK);
    }
    Err(TestbedError::SlurmNotReady {
        seconds: READY.as_secs(),
        logs: log_ends(&cluster.shared().join("log")),
    })
}

fn log_ends(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let log = fs::read(entry.path()).unwrap_or_default();
        let end = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_END)..]);
        text += &format!("--- {}\n{end}\n", entry.file_name().to_string_lossy());
    }
    text
}

fn slurm_conf(base: &Path, builder: &ClusterBuilder) -> String {
    let base = base.display();
    let nodes = builder.nodes;
    let network = crate::cluster::NETWORK;
    let login = crate::cluster::LOGIN_NUMBER;
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
AuthInfo=socket={base}/run/munge.sock
StateSaveLocation={base}/spool
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/slurmd-%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd-%n.log
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

fn gres_conf(base: &Path, gpus: u32) -> String {
    match gpus {
        0 => String::new(),
        n => format!("Name=gpu File={}/dev/nvidia[0-{}]\n", base.display(), n - 1),
    }
}
