//! Jobs on a test cluster, and what their ranks wrote.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use regatta_testbed::{Cluster, ClusterBuilder, Output, cluster_or_skip, or_skip, run};
use serde_json::Value;

/// The binary under test.
pub const REGATTA: &str = env!("CARGO_BIN_EXE_regatta");
/// MPICH's and Open MPI's launchers, with the Debian packages that have them.
pub const HYDRA: (&str, &str) = ("mpiexec.hydra", "mpich");
pub const OPEN_MPI: (&str, &str) = ("mpirun", "openmpi-bin");
/// What describes nodes that the machine is not.
const LSTOPO: (&str, &str) = ("lstopo-no-graphics", "hwloc-nox");
/// What a rank does: tell its host, by other means than the binary's, and run the binary.
const RANK: [&str; 4] = ["sh", "-c", "hostname; exec \"$@\"", "sh"];

/// `Some` if these programs are here; else as [`or_skip`].
pub fn programs_or_skip(programs: &[(&str, &str)]) -> Option<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let lacks = |name: &str| !folders.iter().any(|f| f.join(name).is_file());
    let missing = programs.iter().filter(|(name, _)| lacks(name));
    let tell = |(name, package): &(&str, &str)| format!("no program {name} (package {package})");
    or_skip(&missing.map(tell).collect::<Vec<_>>())
}

/// A cluster of nodes that look as hwloc's synthetic description and `slurm.conf`'s words say,
/// with CPUs and NUMA nodes that the machine need not have; `None` as [`or_skip`].
pub fn made_up_nodes(
    hwloc: &str,
    slurm: &str,
    cpus: u32,
    builder: ClusterBuilder,
) -> Option<Cluster> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    programs_or_skip(&[LSTOPO])?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("regatta-topology-{}-{count}.xml", std::process::id());
    let file = std::env::temp_dir().join(name);
    let made = run(Command::new(LSTOPO.0).args(["-i", hwloc, "--of", "xml"]).arg(&file)).unwrap();
    assert!(made.status.success(), "{made:?}");
    let cluster = cluster_or_skip(&builder.topology(&file, cpus, slurm).fake_affinity(true));
    std::fs::remove_file(file).unwrap();
    cluster
}

/// What one rank wrote. Its number is the launcher's, not what the binary made of it.
#[derive(Debug)]
pub struct Rank {
    pub number: u32,
    pub host: String,
    pub text: String,
}

impl Rank {
    /// What it wrote as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|e| panic!("rank {} wrote {e}: {:?}", self.number, self.text))
    }

    /// What `regatta env --json` said.
    pub fn variables(&self) -> HashMap<String, String> {
        let line = |l: &Value| {
            let text = |key: &str| l[key].as_str().map(str::to_owned);
            Some((text("variable")?, text("value")?))
        };
        self.json().as_array().unwrap().iter().filter_map(line).collect()
    }
}

/// A job that has ended.
#[derive(Debug)]
pub struct Job {
    pub ranks: Vec<Rank>,
    pub output: Output,
}

impl Job {
    /// The job, which must have succeeded.
    pub fn good(self) -> Self {
        assert!(self.output.status.success(), "{self:#?}");
        self
    }

    /// The host of each rank.
    pub fn hosts(&self) -> Vec<&str> {
        self.ranks.iter().map(|r| r.host.as_str()).collect()
    }
}

/// A cluster to start jobs on.
pub struct Bed {
    pub cluster: Cluster,
    jobs: Cell<u32>,
}

impl Bed {
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, jobs: Cell::new(0) }
    }

    /// Writes a file that all hosts see.
    pub fn file(&self, name: &str, content: &str) -> String {
        let path = self.cluster.shared().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// What the binary prints on the login host.
    pub fn regatta(&self, args: &[&str]) -> String {
        let output = run(&mut self.cluster.login(REGATTA, args)).unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    /// The binary in each task of an `srun` with these options, itself run inside `salloc` if
    /// there are options for that.
    pub fn srun(&self, salloc: &[&str], options: &[&str], regatta: &[&str]) -> Job {
        let folder = self.folder();
        let out = folder.join("%t");
        let mut words = Vec::new();
        if !salloc.is_empty() {
            words.extend([&["salloc", "--quiet"], salloc].concat());
        }
        words.extend(["srun", "--output", out.to_str().unwrap()]);
        words.extend(options);
        let mut command = self.cluster.login(words[0], &words[1..]);
        command.args(RANK).arg(REGATTA).args(regatta);
        end(&mut command, |n| folder.join(n.to_string()))
    }

    /// The binary in each rank of MPICH's launcher.
    pub fn hydra(&self, variables: &[(&str, &str)], options: &[&str], regatta: &[&str]) -> Job {
        let folder = self.folder();
        let mut command = self.cluster.launcher(HYDRA.0, ["-launcher", "ssh", "-launcher-exec"]);
        command.arg(self.cluster.ssh()).arg("-outfile-pattern").arg(folder.join("%r"));
        command.args(options).args(RANK).arg(REGATTA).args(regatta);
        command.envs(variables.iter().copied());
        end(&mut command, |n| folder.join(n.to_string()))
    }

    /// The binary in each rank of Open MPI's launcher.
    pub fn open_mpi(&self, options: &[&str], regatta: &[&str]) -> Job {
        let folder = self.folder();
        let mut command = self.cluster.launcher(OPEN_MPI.0, ["--mca", "plm_rsh_agent"]);
        command.arg(self.cluster.ssh()).arg("--output-filename").arg(&folder);
        command.args(options).args(RANK).arg(REGATTA).args(regatta);
        // It refuses to be run by root without both.
        let root = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
        command.envs(root.map(|name| (name, "1")));
        // It writes all numbers with as many digits as the last one.
        let file = |n: u32, digits: usize| folder.join(format!("1/rank.{n:0digits$}/stdout"));
        end(&mut command, |n| if file(0, 2).exists() { file(n, 2) } else { file(n, 1) })
    }

    /// A new folder for what a job's ranks write.
    fn folder(&self) -> PathBuf {
        self.jobs.set(self.jobs.get() + 1);
        let folder = self.cluster.shared().join(format!("job-{}", self.jobs.get()));
        std::fs::create_dir(&folder).unwrap();
        folder
    }
}

/// Runs a job to its end and reads what its ranks wrote into their files.
fn end(command: &mut Command, file: impl Fn(u32) -> PathBuf) -> Job {
    let output = run(command).unwrap();
    let ranks = (0..).map_while(|n| read(n, &file(n))).collect();
    Job { ranks, output }
}

fn read(number: u32, file: &Path) -> Option<Rank> {
    let text = std::fs::read_to_string(file).ok()?;
    let (host, text) = text.split_once('\n').unwrap_or_default();
    Some(Rank { number, host: host.trim().to_owned(), text: text.to_owned() })
}

/// Asserts that every rank of `regatta map --json` reads its own place as the launcher dealt it. Only
/// Slurm tells the order of dealing: there the places of all ranks must be right in each.
pub fn assert_places(job: &Job, launcher: &str) {
    let hosts = job.hosts();
    let mut nodes = hosts.clone();
    nodes.sort_unstable();
    nodes.dedup();
    let on = |host: &str| hosts.iter().filter(|h| **h == host).count();
    for (rank, host) in job.ranks.iter().zip(&hosts) {
        let json = rank.json();
        let local = hosts[..rank.number as usize].iter().filter(|h| *h == host).count();
        let node = nodes.iter().position(|n| n == host).unwrap();
        let me = serde_json::json!({
            "rank": rank.number, "size": hosts.len(), "local_rank": local, "local_size": on(host),
            "node": node,
        });
        assert_eq!(json["allocation"]["me"], me, "{host}");
        assert_eq!(json["allocation"]["launcher"], launcher);
        let planned = &json["placement"]["nodes"];
        assert_eq!(planned.as_array().unwrap().len(), nodes.len(), "{planned}");
        for (node, planned) in nodes.iter().zip(planned.as_array().unwrap()) {
            let real = hosts.iter().enumerate().filter(|(_, h)| *h == node).map(|(i, _)| i);
            assert_eq!(planned["host"], *node, "rank {}", rank.number);
            let (planned, real) = (&planned["ranks"], real.collect::<Vec<_>>());
            assert_eq!(planned.as_array().unwrap().len(), real.len(), "rank {}", rank.number);
            if node == host {
                assert_eq!(planned[local], rank.number, "{planned}");
            }
            if launcher == "srun" {
                assert_eq!(*planned, Value::from(real), "{node}, seen by rank {}", rank.number);
            }
        }
    }
}

/// Asserts that `regatta env` tells each rank its own place, and all of them one place to meet, on
/// `host`'s address.
pub fn assert_environment(job: &Job, address: &str) {
    let hosts = job.hosts();
    let first = job.ranks[0].variables();
    for (rank, host) in job.ranks.iter().zip(&hosts) {
        let variables = rank.variables();
        let local = hosts[..rank.number as usize].iter().filter(|h| *h == host).count();
        let on_host = hosts.iter().filter(|h| *h == host).count();
        let wanted = [
            ("RANK", rank.number.to_string()),
            ("WORLD_SIZE", hosts.len().to_string()),
            ("LOCAL_RANK", local.to_string()),
            ("LOCAL_WORLD_SIZE", on_host.to_string()),
            ("MASTER_ADDR", address.to_owned()),
            ("MASTER_PORT", first["MASTER_PORT"].clone()),
        ];
        for (name, value) in wanted {
            assert_eq!(variables[name], value, "{name} of rank {} on {host}", rank.number);
        }
    }
}
