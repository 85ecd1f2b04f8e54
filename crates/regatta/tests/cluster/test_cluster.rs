//! Jobs on a test cluster, and the output of their ranks.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use regatta_testbed::{
    Cluster, ClusterBuilder, CommandOutput, cluster_or_skip, or_skip, run, write_with_mode,
};
use serde_json::Value;

use crate::support::REGATTA;

/// MPICH's and Open MPI's launchers, with the Debian packages that have them.
pub const HYDRA: (&str, &str) = ("mpiexec.hydra", "mpich");
pub const OPEN_MPI: (&str, &str) = ("mpirun", "openmpi-bin");
/// Variables that let Open MPI run as root.
pub const OMPI_AS_ROOT: [(&str, &str); 2] =
    [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
/// Describes synthetic nodes.
const LSTOPO: (&str, &str) = ("lstopo-no-graphics", "hwloc-nox");
/// A rank prints its host name, independently of the binary, and runs the binary.
const RANK: [&str; 4] = ["sh", "-c", "hostname; exec \"$@\"", "sh"];

/// `Some` if these programs are installed; else like [`or_skip`].
pub fn programs_or_skip(programs: &[(&str, &str)]) -> Option<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let lacks = |name: &str| !folders.iter().any(|f| f.join(name).is_file());
    let missing = programs.iter().filter(|(name, _)| lacks(name));
    let message = |(name, package): &(&str, &str)| format!("no program {name} (package {package})");
    or_skip(&missing.map(message).collect::<Vec<_>>())
}

/// A cluster of synthetic nodes, described by an hwloc synthetic topology and `slurm.conf` options;
/// `None` like [`or_skip`].
pub fn synthetic_nodes(
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
    let mut lstopo = Command::new(LSTOPO.0);
    run(lstopo.args(["-i", hwloc, "--of", "xml"]).arg(&file)).unwrap().expect_success();
    let cluster = cluster_or_skip(&builder.topology(&file, cpus, slurm).fake_affinity(true));
    std::fs::remove_file(file).unwrap();
    cluster
}

/// Output of one rank. The rank number is the launcher's, not the binary's.
#[derive(Debug)]
pub struct RankOutput {
    pub number: u32,
    pub host: String,
    pub text: String,
}

impl RankOutput {
    /// The output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|e| panic!("output of rank {}: {e}: {:?}", self.number, self.text))
    }

    /// The variables printed by `regatta env --json`.
    pub fn variables(&self) -> HashMap<String, String> {
        let line = |l: &Value| {
            let text = |key: &str| l[key].as_str().map(str::to_owned);
            Some((text("variable")?, text("value")?))
        };
        self.json().as_array().unwrap().iter().filter_map(line).collect()
    }
}

/// Output of a finished job.
#[derive(Debug)]
pub struct JobOutput {
    pub ranks: Vec<RankOutput>,
    pub output: CommandOutput,
}

impl JobOutput {
    /// Asserts that the job succeeded.
    pub fn assert_success(self) -> Self {
        assert!(self.output.status.success(), "{self:#?}");
        self
    }

    /// The host of each rank.
    pub fn hosts(&self) -> Vec<&str> {
        self.ranks.iter().map(|r| r.host.as_str()).collect()
    }

    /// The local rank of a rank, and the number of ranks on its host.
    fn local_rank(&self, rank: &RankOutput) -> (usize, usize) {
        let on_host = |ranks: &[RankOutput]| ranks.iter().filter(|r| r.host == rank.host).count();
        (on_host(&self.ranks[..rank.number as usize]), on_host(&self.ranks))
    }
}

/// A cluster to run jobs on.
pub struct TestCluster {
    pub hosts: Cluster,
    jobs: Cell<u32>,
}

impl TestCluster {
    pub fn new(hosts: Cluster) -> Self {
        Self { hosts, jobs: Cell::new(0) }
    }

    /// Like [`cluster_or_skip`].
    pub fn or_skip(builder: &ClusterBuilder) -> Option<Self> {
        cluster_or_skip(builder).map(Self::new)
    }

    /// Writes a shared file.
    pub fn file(&self, name: &str, content: &str) -> String {
        let path = self.hosts.shared().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Output of the binary on the login host.
    pub fn regatta(&self, args: &[&str]) -> String {
        run(&mut self.hosts.login(REGATTA, args)).unwrap().expect_success().stdout
    }

    /// Writes a secret file for ranks that are not started by `regatta launch`.
    pub fn secret_file(&self) -> String {
        let path = self.hosts.shared().join("secret");
        write_with_mode(&path, 0o600, "a7".repeat(32));
        path.to_str().unwrap().to_owned()
    }

    /// Runs the binary in each task of `srun` with these options, inside `salloc` if it has options.
    pub fn srun(&self, salloc: &[&str], options: &[&str], regatta: &[&str]) -> JobOutput {
        let folder = self.output_folder();
        let out = folder.join("%t");
        let mut command = self.hosts.login("env", [""; 0]);
        if !salloc.is_empty() {
            command.args(["salloc", "--quiet"]).args(salloc);
        }
        command.args(["srun", "--output"]).arg(out).args(options);
        command.args(RANK).arg(REGATTA).args(regatta);
        run_job(&mut command, |n| folder.join(n.to_string()))
    }

    /// Runs the binary in each rank of MPICH's launcher.
    pub fn hydra(
        &self,
        variables: &[(&str, &str)],
        options: &[&str],
        regatta: &[&str],
    ) -> JobOutput {
        let folder = self.output_folder();
        let mut command = self.hosts.launcher(HYDRA.0, ["-launcher", "ssh", "-launcher-exec"]);
        command.arg(self.hosts.ssh_shim()).arg("-outfile-pattern").arg(folder.join("%r"));
        command.args(options).args(RANK).arg(REGATTA).args(regatta);
        command.envs(variables.iter().copied());
        run_job(&mut command, |n| folder.join(n.to_string()))
    }

    /// Runs the binary in each rank of Open MPI's launcher.
    pub fn open_mpi(&self, options: &[&str], regatta: &[&str]) -> JobOutput {
        let folder = self.output_folder();
        let mut command = self.hosts.launcher(OPEN_MPI.0, ["--mca", "plm_rsh_agent"]);
        command.arg(self.hosts.ssh_shim()).arg("--output-filename").arg(&folder);
        command.args(options).args(RANK).arg(REGATTA).args(regatta).envs(OMPI_AS_ROOT);
        // File names are zero-padded to the width of the last rank.
        let file = |n: u32, digits: usize| folder.join(format!("1/rank.{n:0digits$}/stdout"));
        run_job(&mut command, |n| if file(0, 2).exists() { file(n, 2) } else { file(n, 1) })
    }

    /// A new folder for the output of a job.
    fn output_folder(&self) -> PathBuf {
        self.jobs.set(self.jobs.get() + 1);
        let folder = self.hosts.shared().join(format!("job-{}", self.jobs.get()));
        std::fs::create_dir(&folder).unwrap();
        folder
    }
}

/// Runs a job to its end and reads the output files of its ranks.
fn run_job(command: &mut Command, file: impl Fn(u32) -> PathBuf) -> JobOutput {
    let output = run(command).unwrap();
    let read = |number| {
        let text = std::fs::read_to_string(file(number)).ok()?;
        let (host, text) = text.split_once('\n').unwrap_or_default();
        Some(RankOutput { number, host: host.trim().to_owned(), text: text.to_owned() })
    };
    JobOutput { ranks: (0..).map_while(read).collect(), output }
}

/// Asserts that `regatta map --json` in every rank detects the launcher's rank, local rank and node.
/// Slurm also reports the distribution, so there the placement of all ranks must match.
pub fn assert_allocation(job: &JobOutput, launcher: &str) {
    let hosts = job.hosts();
    let mut nodes = hosts.clone();
    nodes.sort_unstable();
    nodes.dedup();
    for (rank, host) in job.ranks.iter().zip(&hosts) {
        let json = rank.json();
        let (local, local_size) = job.local_rank(rank);
        let node = nodes.iter().position(|n| n == host).unwrap();
        let expected = serde_json::json!({
            "rank": rank.number, "size": hosts.len(), "local_rank": local,
            "local_size": local_size, "node": node,
        });
        assert_eq!(json["allocation"]["this_rank"], expected, "{host}");
        assert_eq!(json["allocation"]["launcher"], launcher);
        let planned = &json["placement"]["nodes"];
        assert_eq!(planned.as_array().unwrap().len(), nodes.len(), "{planned}");
        for (node, planned) in nodes.iter().zip(planned.as_array().unwrap()) {
            let actual = hosts.iter().enumerate().filter(|(_, h)| *h == node).map(|(i, _)| i);
            assert_eq!(planned["host"], *node, "rank {}", rank.number);
            let (planned, actual) = (&planned["ranks"], actual.collect::<Vec<_>>());
            assert_eq!(planned.as_array().unwrap().len(), actual.len(), "rank {}", rank.number);
            if node == host {
                assert_eq!(planned[local], rank.number, "{planned}");
            }
            if launcher == "srun" {
                assert_eq!(*planned, Value::from(actual), "{node}, seen by rank {}", rank.number);
            }
        }
    }
}

/// Asserts that `regatta env` sets each rank's own indices, and the same master address and port in
/// all ranks.
pub fn assert_environment(job: &JobOutput, address: &str) {
    let first = job.ranks[0].variables();
    for rank in &job.ranks {
        let variables = rank.variables();
        let (local, local_size) = job.local_rank(rank);
        let expected = [
            ("RANK", rank.number.to_string()),
            ("WORLD_SIZE", job.ranks.len().to_string()),
            ("LOCAL_RANK", local.to_string()),
            ("LOCAL_WORLD_SIZE", local_size.to_string()),
            ("MASTER_ADDR", address.to_owned()),
            ("MASTER_PORT", first["MASTER_PORT"].clone()),
        ];
        for (name, value) in expected {
            assert_eq!(variables[name], value, "{name} of rank {} on {}", rank.number, rank.host);
        }
    }
}
