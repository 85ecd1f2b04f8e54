//! A rank that is a process of its own, which can be killed: the test program once more.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, join, listen};
use regatta_comm::{Call, CallKind, Comm, CommError, Counts, DType, ReduceOp};
use regatta_wire::secret::Secret;

use crate::meeting;

/// Set for a process that is a rank: its orders.
const ORDERS: &str = "REGATTA_TEST_ORDERS";

/// What a rank is to do: one collective again and again, and be killed in one of them.
#[derive(Debug, Clone, Copy)]
pub struct Orders {
    pub kind: CallKind,
    pub count: usize,
    /// Which rank is killed in which call, after how many microseconds.
    pub victim: u32,
    pub call: u64,
    pub after_us: u64,
    pub lost_after_s: u64,
    pub desync_after_s: u64,
}

impl Orders {
    fn write(self) -> String {
        let kind = CallKind::ALL.iter().position(|k| *k == self.kind).unwrap();
        format!(
            "{kind} {} {} {} {} {} {}",
            self.count,
            self.victim,
            self.call,
            self.after_us,
            self.lost_after_s,
            self.desync_after_s
        )
    }

    fn read(text: &str) -> Self {
        let numbers: Vec<u64> = text.split(' ').map(|n| n.parse().unwrap()).collect();
        Self {
            kind: CallKind::ALL[numbers[0] as usize],
            count: numbers[1] as usize,
            victim: numbers[2] as u32,
            call: numbers[3],
            after_us: numbers[4],
            lost_after_s: numbers[5],
            desync_after_s: numbers[6],
        }
    }
}

/// The environment of a rank.
pub fn environment(rank: u32, ranks: u32, master: &str, secret: &Path) -> Vec<(String, String)> {
    let pairs = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", ranks.to_string()),
        ("MASTER_ADDR", master.to_owned()),
        // It is told when it is known.
        ("MASTER_PORT", "0".to_owned()),
        ("REGATTA_SECRET_FILE", secret.display().to_string()),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// A file that is gone with this.
pub struct Kept(pub PathBuf);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_file(port_file(&self.0));
    }
}

/// Where the first rank says which port it has.
fn port_file(secret: &Path) -> PathBuf {
    secret.with_extension("port")
}

/// A file with a new secret.
pub fn secret_file(folder: &Path, name: &str) -> Kept {
    use std::os::unix::fs::OpenOptionsExt;
    let path = folder.join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(&path).unwrap();
    file.write_all(Secret::generate().unwrap().to_hex().as_bytes()).unwrap();
    Kept(path)
}

/// Makes a command that runs this program a rank.
pub fn as_rank(command: &mut Command, orders: Orders, environment: &[(String, String)]) {
    command.env(ORDERS, orders.write());
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
}

/// The arguments with which this program runs [`a_rank`] only.
pub const ARGUMENTS: [&str; 3] = ["--exact", "process::a_rank", "--nocapture"];

/// Ranks on this machine, and the file with their secret.
pub fn start(ranks: u32, orders: Orders, name: &str) -> (Vec<Child>, Kept) {
    let secret = secret_file(&std::env::temp_dir(), name);
    let rank = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(ARGUMENTS);
        as_rank(&mut command, orders, &environment(rank, ranks, "127.0.0.1", &secret.0));
        command.spawn().unwrap()
    };
    ((0..ranks).map(rank).collect(), secret)
}

/// What a rank said at its end; none if it was killed.
pub fn said(child: Child) -> Option<String> {
    said_in(&child.wait_with_output().unwrap().stdout)
}

/// What a rank said, in its output.
pub fn said_in(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let at = text.find("said: ")?;
    text[at + 6..].lines().next().map(str::to_owned)
}

/// The settings of a rank, of its environment and the port that the first one has.
pub fn own_settings() -> BootstrapConfig {
    let mut settings = BootstrapConfig::from_environment().unwrap();
    let listener = (settings.rank == 0).then(|| listen("0.0.0.0:0".parse().unwrap()).unwrap());
    let secret = PathBuf::from(std::env::var("REGATTA_SECRET_FILE").unwrap());
    let own = listener.as_ref().map(|listener| listener.local_addr().unwrap().port());
    settings.port = meeting::port(&port_file(&secret), own);
    settings.listener = listener;
    settings
}

/// The rank itself: does as ordered until there is an error, and says which and after how long.
#[test]
fn a_rank() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders = Orders::read(&orders);
    let mut settings = own_settings();
    settings.lost_after = Duration::from_secs(orders.lost_after_s);
    settings.desync_after = Duration::from_secs(orders.desync_after_s);
    settings.join_within = Duration::from_secs(30);
    let comm = join(settings).unwrap();
    let mut call = 0;
    let mut last = Instant::now();
    let error = loop {
        call += 1;
        if comm.rank() == orders.victim && call == orders.call {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(orders.after_us));
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
            });
        }
        if let Err(error) = one(&comm, orders.kind, orders.count) {
            break error;
        }
        if call % 100 == 1 {
            println!("\ncalled: {call}");
        }
        last = Instant::now();
    };
    println!("\nsaid: {} ms: {error}", last.elapsed().as_millis());
}

/// One collective of `count` elements a part.
fn one(comm: &dyn Comm, kind: CallKind, count: usize) -> Result<(), CommError> {
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    let mut call = Call {
        kind,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        root: 1,
        tag: 0,
        counts: Counts::Equal(count),
        input: None,
        output: &mut [],
    };
    let (input, output) = call.lengths(rank, ranks);
    let (input, mut output) = (vec![0; input * 4], vec![0; output * 4]);
    if !matches!(kind, CallKind::Broadcast | CallKind::Barrier) {
        call.input = Some(&input);
        output.resize(call.lengths(rank, ranks).1 * 4, 0);
    }
    call.output = &mut output;
    comm.run(call)
}
