//! Ranks as separate processes that can be killed: the test program re-executes itself.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, join, listen};
use regatta_comm::{
    Buffer, Call, CallKind, Collectives, Comm, Communicator, Counts, DType, ReduceOp, Result,
    hierarchical,
};
use regatta_wire::secret::Secret;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{port_file, suite};

/// Set for a rank process: its script.
const SCRIPT: &str = "REGATTA_TEST_SCRIPT";

/// Prefix of the line that a rank prints at its end.
const OUTCOME: &str = "outcome: ";

/// Much longer than any script takes. A rank that hangs ends without an outcome.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The script of a rank: it repeats one operation until it fails or is killed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RankScript {
    pub operation: Operation,
    pub count: usize,
    /// The rank to kill, in which call, and after how many microseconds.
    pub victim: u32,
    pub call: u64,
    pub after_us: u64,
    pub lost_after_s: u64,
    pub desync_after_s: u64,
    /// Whether ranks of the same node share memory.
    pub hierarchical: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Operation {
    Collective(CallKind),
    /// An all-reduce of a buffer from the communicator.
    ZeroCopy,
    /// A message to the next rank.
    Ring,
}

impl RankScript {
    /// All-reduces without a victim.
    pub fn all_reduce(count: usize) -> Self {
        Self {
            operation: Operation::Collective(CallKind::AllReduce),
            count,
            victim: u32::MAX,
            call: 0,
            after_us: 0,
            lost_after_s: 20,
            desync_after_s: 20,
            hierarchical: false,
        }
    }

    fn run(&self, comm: &Communicator, shared: &mut Buffer) -> Result {
        match self.operation {
            Operation::Collective(kind) => {
                let call = Call::new(kind, DType::F32, Counts::Equal(self.count), &mut []);
                suite::run_zeroed(comm, Call { root: 1, ..call })
            }
            Operation::ZeroCopy => comm.all_reduce(shared.as_mut_slice::<f32>(), ReduceOp::Sum),
            Operation::Ring => {
                let (mut data, rank, ranks) = (vec![1u8; self.count], comm.rank(), comm.size());
                comm.send(&data, (rank + 1) % ranks, 0)?;
                comm.receive(&mut data, (rank + ranks - 1) % ranks, 0)
            }
        }
    }
}

/// Rank processes. Their files are removed on drop.
pub struct RankProcesses {
    pub children: Vec<Child>,
    secret: PathBuf,
}

impl Drop for RankProcesses {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.secret);
        let _ = std::fs::remove_file(port_file(&self.secret));
    }
}

/// The file with the port of rank 0.
fn port_file(secret: &Path) -> PathBuf {
    secret.with_extension("port")
}

fn secret_file(dir: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!("regatta-test-{}-{number}", std::process::id()));
    std::fs::write(&path, Secret::generate().unwrap().to_hex()).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

/// The arguments with which this program only runs the test `main`.
pub fn arguments(main: &str) -> [&str; 3] {
    ["--exact", main, "--nocapture"]
}

/// Starts a process per command, whose rank is its index. The ranks share a directory.
pub fn start(
    commands: impl IntoIterator<Item = Command, IntoIter: ExactSizeIterator>,
    script: &impl Serialize,
    master: &str,
    dir: &Path,
) -> RankProcesses {
    let (secret, commands) = (secret_file(dir), commands.into_iter());
    let (script, ranks) = (serde_json::to_string(script).unwrap(), commands.len().to_string());
    let rank = |(rank, mut command): (usize, Command)| {
        command.env(SCRIPT, &script).env("RANK", rank.to_string()).env("WORLD_SIZE", &ranks);
        // The port is exchanged once rank 0 listens.
        command.env("MASTER_ADDR", master).env("MASTER_PORT", "0");
        command.env("REGATTA_SECRET_FILE", &secret);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children = commands.enumerate().map(rank).collect();
    RankProcesses { children, secret }
}

/// Starts ranks on this machine that run the test `main` with these variables.
pub fn start_local(
    ranks: u32,
    main: &str,
    script: &impl Serialize,
    variables: &[(&str, &str)],
) -> RankProcesses {
    let command = |_| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(arguments(main)).envs(variables.iter().copied());
        command
    };
    start((0..ranks).map(command), script, "127.0.0.1", &std::env::temp_dir())
}

impl RankProcesses {
    /// The outcome of each rank; none if it was killed.
    pub fn outcomes(&mut self) -> Vec<Option<String>> {
        self.children.drain(..).map(outcome).collect()
    }

    /// Asserts that all ranks but the killed victim report it as lost.
    pub fn assert_victim_lost(&mut self, script: RankScript, what: &str) {
        let victim = script.victim;
        for (rank, outcome) in (0..).zip(self.outcomes()) {
            if rank == victim {
                assert_eq!(outcome, None, "{what}: {script:?}");
                continue;
            }
            let error = outcome.unwrap_or_default();
            let named = error.contains(&format!("rank {victim} on "));
            let lost = named && error.contains(" was lost ");
            assert!(lost, "{what}: {script:?}: rank {rank}: {error}");
        }
    }
}

pub fn outcome(child: Child) -> Option<String> {
    let output = child.wait_with_output().unwrap().stdout;
    let text = String::from_utf8_lossy(&output);
    text.split_once(OUTCOME)?.1.lines().next().map(str::to_owned)
}

/// The script of this process if it is a rank.
pub fn own_script<T: DeserializeOwned>() -> Option<T> {
    let script = std::env::var(SCRIPT).ok()?;
    suite::kill_self_after(TIMEOUT);
    Some(serde_json::from_str(&script).unwrap())
}

/// Prints the outcome of this rank.
pub fn report(outcome: impl std::fmt::Display) {
    println!("\n{OUTCOME}{outcome}");
}

/// The configuration of this rank, from its environment and the port of rank 0.
pub fn own_config() -> BootstrapConfig {
    let mut config = BootstrapConfig::from_env().unwrap();
    config.listener = (config.rank == 0).then(|| listen("0.0.0.0:0".parse().unwrap()).unwrap());
    config.join_timeout = Duration::from_secs(50);
    // On any machine, so that a killed rank interrupts reads of its memory.
    config.cross_memory = Some(true);
    let secret = PathBuf::from(std::env::var("REGATTA_SECRET_FILE").unwrap());
    let own = config.listener.as_ref().map(|listener| listener.local_addr().unwrap().port());
    config.master_port = port_file::exchange_port(&port_file(&secret), own);
    config
}

/// The test that a rank with a [`RankScript`] runs.
pub const MAIN: &str = "rank_process::rank_main";

/// Not a test itself: runs a script until a call fails, and reports the error and how long it took.
#[test]
fn rank_main() {
    let Some(script) = own_script::<RankScript>() else { return };
    let mut config = own_config();
    config.lost_after = Duration::from_secs(script.lost_after_s);
    config.desync_after = Duration::from_secs(script.desync_after_s);
    let join = if script.hierarchical { hierarchical::join } else { join };
    let comm = join(config).unwrap();
    let mut shared = comm.buffer(script.count * 4);
    let mut last = Instant::now();
    for call in 1.. {
        if comm.rank() == script.victim && call == script.call {
            suite::kill_self_after(Duration::from_micros(script.after_us));
        }
        if let Err(error) = script.run(&comm, &mut shared) {
            return report(format_args!("{} ms: {error}", last.elapsed().as_millis()));
        }
        if call % 100 == 1 {
            println!("\ncalled: {call}");
        }
        last = Instant::now();
    }
}
