//! A rank as a separate process that joins over the network and can be killed: the test program
//! re-executes itself.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, join, listen};
use regatta_comm::{Call, CallKind, Comm, Counts, DType};
use regatta_wire::secret::Secret;
use serde::{Deserialize, Serialize};

use crate::{port_file, suite};

/// Set for a rank process: its script.
const SCRIPT: &str = "REGATTA_TEST_SCRIPT";

/// The script of a rank: it repeats one collective until it fails or is killed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RankScript {
    pub kind: CallKind,
    pub count: usize,
    /// The rank to kill, in which call, and after how many microseconds.
    pub victim: u32,
    pub call: u64,
    pub after_us: u64,
    pub lost_after_s: u64,
    pub desync_after_s: u64,
}

impl RankScript {
    /// All-reduces without a victim.
    pub fn all_reduce(count: usize) -> Self {
        let (kind, victim, lost_after_s, desync_after_s) = (CallKind::AllReduce, u32::MAX, 20, 20);
        Self { kind, count, victim, call: 0, after_us: 0, lost_after_s, desync_after_s }
    }
}

pub fn environment(rank: u32, ranks: u32, master: &str, secret: &Path) -> Vec<(String, String)> {
    let pairs = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", ranks.to_string()),
        ("MASTER_ADDR", master.to_owned()),
        // Exchanged once rank 0 listens.
        ("MASTER_PORT", "0".to_owned()),
        ("REGATTA_SECRET_FILE", secret.display().to_string()),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// A secret file, removed on drop.
pub struct SecretFile(pub PathBuf);

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_file(port_file(&self.0));
    }
}

/// The file with the port of rank 0.
fn port_file(secret: &Path) -> PathBuf {
    secret.with_extension("port")
}

pub fn secret_file(dir: &Path, name: &str) -> SecretFile {
    use std::os::unix::fs::OpenOptionsExt;
    let path = dir.join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(&path).unwrap();
    file.write_all(Secret::generate().unwrap().to_hex().as_bytes()).unwrap();
    SecretFile(path)
}

/// Configures a command to run this program as a rank.
pub fn as_rank(command: &mut Command, script: RankScript, environment: &[(String, String)]) {
    command.env(SCRIPT, serde_json::to_string(&script).unwrap());
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
}

/// The arguments to run only [`rank_main`].
pub const ARGUMENTS: [&str; 3] = ["--exact", "rank_process::rank_main", "--nocapture"];

/// Starts ranks on this machine. Returns them and their secret file.
pub fn start(ranks: u32, script: RankScript, name: &str) -> (Vec<Child>, SecretFile) {
    let secret = secret_file(&std::env::temp_dir(), name);
    let rank = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(ARGUMENTS);
        as_rank(&mut command, script, &environment(rank, ranks, "127.0.0.1", &secret.0));
        command.spawn().unwrap()
    };
    ((0..ranks).map(rank).collect(), secret)
}

/// The error a rank ended with; none if it was killed.
pub fn error_of(child: Child) -> Option<String> {
    let output = child.wait_with_output().unwrap().stdout;
    let text = String::from_utf8_lossy(&output);
    text.split_once("error: ")?.1.lines().next().map(str::to_owned)
}

/// Asserts that all ranks but the killed victim report it as lost.
pub fn assert_victim_lost(children: Vec<Child>, script: RankScript, what: &str) {
    let victim = script.victim;
    for (rank, error) in (0..).zip(children.into_iter().map(error_of).collect::<Vec<_>>()) {
        if rank == victim {
            assert_eq!(error, None, "{what}: {script:?}");
            continue;
        }
        let error = error.unwrap_or_default();
        let named = error.contains(&format!("rank {victim} on ")) && error.contains(" was lost ");
        assert!(named, "{what}: {script:?}: rank {rank}: {error}");
    }
}

/// The configuration of this rank, from its environment and the port of rank 0.
pub fn own_config() -> BootstrapConfig {
    let mut config = BootstrapConfig::from_env().unwrap();
    let listener = (config.rank == 0).then(|| listen("0.0.0.0:0".parse().unwrap()).unwrap());
    let secret = PathBuf::from(std::env::var("REGATTA_SECRET_FILE").unwrap());
    let own = listener.as_ref().map(|listener| listener.local_addr().unwrap().port());
    config.master_port = port_file::exchange_port(&port_file(&secret), own);
    config.listener = listener;
    config
}

/// The rank process: runs its script until a call fails, and prints the error and how long it took.
#[test]
fn rank_main() {
    let Ok(script) = std::env::var(SCRIPT) else { return };
    let script: RankScript = serde_json::from_str(&script).unwrap();
    let mut config = own_config();
    config.lost_after = Duration::from_secs(script.lost_after_s);
    config.desync_after = Duration::from_secs(script.desync_after_s);
    config.join_timeout = Duration::from_secs(30);
    let comm = join(config).unwrap();
    let mut call = 0;
    let mut last = Instant::now();
    let error = loop {
        call += 1;
        if comm.rank() == script.victim && call == script.call {
            suite::kill_self_after(Duration::from_micros(script.after_us));
        }
        let counts = Counts::Equal(script.count);
        let collective = Call::new(script.kind, DType::F32, counts, &mut []);
        if let Err(error) = suite::run_zeroed(&comm, Call { root: 1, ..collective }) {
            break error;
        }
        if call % 100 == 1 {
            println!("\ncalled: {call}");
        }
        last = Instant::now();
    };
    println!("\nerror: {} ms: {error}", last.elapsed().as_millis());
}
