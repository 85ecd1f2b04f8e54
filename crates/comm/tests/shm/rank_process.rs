//! Shared memory between ranks as separate processes: the test program re-executes itself.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use regatta_comm::bootstrap::{BootstrapConfig, listen};
use regatta_comm::{
    Call, CallKind, Collectives, Comm, CommError, Communicator, Counts, DType, ReduceOp, Result,
    hierarchical,
};
use regatta_wire::secret::Secret;

use crate::seeded_rng::SeededRng;
use crate::{port_file, suite};

const RANK: &str = "REGATTA_TEST_RANK";
const RANKS: &str = "REGATTA_TEST_RANKS";
const SECRET: &str = "REGATTA_TEST_SECRET";
const PORT_FILE: &str = "REGATTA_TEST_PORT_FILE";
const SCENARIO: &str = "REGATTA_TEST_SCENARIO";

/// Prefix of the line that a rank prints at its end.
const OUTCOME: &str = "outcome: ";

/// Much longer than any scenario takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The outcome that each rank printed, if it was not killed.
fn run_scenario(scenario: &str, ranks: u32) -> Vec<Option<String>> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let name = format!("regatta-test-shm-{}-{number}", std::process::id());
    let port = std::env::temp_dir().join(name);
    let secret = Secret::generate().unwrap().to_hex();
    let start = |rank: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_process::rank_main", "--nocapture", "--test-threads=1"])
            .env(RANK, rank.to_string())
            .env(RANKS, ranks.to_string())
            .env(SECRET, &secret)
            .env(PORT_FILE, &port)
            .env(SCENARIO, scenario)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let deadline = Instant::now() + TIMEOUT;
    let outcomes = children.into_iter().map(|child| wait_for(child, deadline, scenario)).collect();
    let _ = std::fs::remove_file(port);
    outcomes
}

fn wait_for(mut child: Child, deadline: Instant, scenario: &str) -> Option<String> {
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{scenario}: a rank hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    output.lines().find_map(|line| Some(line.split_once(OUTCOME)?.1.to_owned()))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Not a test itself: the body of a rank that another test has started.
#[test]
fn rank_main() {
    let Some(rank) = variable(RANK) else { return };
    let rank: u32 = rank.parse().unwrap();
    let ranks: u32 = variable(RANKS).unwrap().parse().unwrap();
    let scenario = variable(SCENARIO).unwrap();
    let args: Vec<&str> = scenario.split(' ').collect();
    if args[0] == "absent" && rank == parse(args[1]) as u32 {
        return;
    }
    let outcome = match join(rank, ranks, args[0]) {
        Ok(comm) => run_rank(&comm, &args),
        Err(error) => error.to_string(),
    };
    println!("\n{OUTCOME}{outcome}");
}

fn join(rank: u32, ranks: u32, scenario: &str) -> Result<Communicator> {
    let seconds = Duration::from_secs;
    let listener = (rank == 0).then(|| listen("127.0.0.1:0".parse().unwrap()).unwrap());
    let own_port = listener.as_ref().map(|listener| listener.local_addr().unwrap().port());
    let port = port_file::exchange_port(Path::new(&variable(PORT_FILE).unwrap()), own_port);
    let secret = Secret::from_hex(&variable(SECRET).unwrap()).unwrap();
    hierarchical::join(BootstrapConfig {
        listener,
        host: "n1".to_owned(),
        join_timeout: seconds(if scenario == "absent" { 1 } else { 50 }),
        desync_after: seconds(if scenario == "no-call" { 1 } else { 300 }),
        ..BootstrapConfig::new(rank, ranks, "127.0.0.1", port, secret)
    })
}

fn parse(word: &str) -> usize {
    word.parse().unwrap()
}

fn run_rank(comm: &Communicator, args: &[&str]) -> String {
    let me = comm.rank() as usize;
    match args[0] {
        "work" => {
            let mut sum = [comm.rank() as f32 + 1.0; 10_000];
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            let part = comm.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
            let mut least = [comm.rank() as i32];
            part.all_reduce(&mut least, ReduceOp::Min).unwrap();
            format!("{} {}", sum[9_999], least[0])
        }
        "kill" => {
            let (kind, victim, count, micros) =
                (parse(args[1]), parse(args[2]), parse(args[3]), parse(args[4]));
            comm.barrier().unwrap();
            if me == victim {
                suite::kill_self_after(Duration::from_micros(micros as u64));
            }
            run_until_error(comm, kind, count).to_string()
        }
        "no-call" if me == parse(args[1]) => {
            // Alive, but makes no call until the others have timed out.
            std::thread::sleep(Duration::from_secs(3));
            "no call".to_owned()
        }
        "no-call" => comm.barrier().unwrap_err().to_string(),
        _ => "joined".to_owned(),
    }
}

/// Number of operations during which a rank is killed.
const OPERATIONS: usize = CallKind::ALL.len() + 2;

/// Repeats one operation until it fails: a collective, a zero-copy all-reduce, or a ring of
/// messages.
fn run_until_error(comm: &Communicator, operation: usize, count: usize) -> CommError {
    let (me, ranks) = (comm.rank() as usize, comm.size() as usize);
    let mut shared = comm.buffer(count * 4);
    loop {
        let done = match CallKind::ALL.get(operation) {
            Some(kind) => {
                let call = Call::new(*kind, DType::F32, Counts::Equal(count), &mut []);
                suite::run_zeroed(comm, Call { root: 1, ..call })
            }
            None if operation == CallKind::ALL.len() => {
                comm.all_reduce(shared.as_mut_slice::<f32>(), ReduceOp::Sum)
            }
            None => {
                let mut data = vec![1u8; count];
                comm.send(&data, ((me + 1) % ranks) as u32, 0)
                    .and_then(|()| comm.receive(&mut data, ((me + ranks - 1) % ranks) as u32, 0))
            }
        };
        if let Err(error) = done {
            return error;
        }
    }
}

#[test]
fn rank_processes_run_collectives() {
    for (rank, outcome) in run_scenario("work", 4).iter().enumerate() {
        assert_eq!(outcome.as_deref(), Some(&*format!("10 {}", rank % 2)));
    }
}

#[test]
fn killed_rank_is_reported_by_all_others() {
    // The seed determines the rank, the time and the operation.
    let mut seeded = SeededRng(0x5eed);
    for case in 0..suite::case_count(44) as usize {
        let (kind, victim) = (case % OPERATIONS, seeded.below(3) as usize);
        let (count, micros) = (seeded.choose(&[1, 100, 40_000, 300_000]), seeded.below(3000));
        let scenario = format!("kill {kind} {victim} {count} {micros}");
        for (rank, outcome) in run_scenario(&scenario, 3).iter().enumerate() {
            let lost = format!("rank {victim} on n1 was lost");
            match outcome {
                Some(text) => {
                    assert!(text.contains(&lost), "{scenario}: rank {rank}: {text}");
                }
                None => assert_eq!(rank, victim, "{scenario}"),
            }
        }
    }
    // Directories in /dev/shm belong to other tests.
    let is_ours = |entry: &std::fs::DirEntry| {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        is_file && entry.file_name().to_string_lossy().contains("regatta")
    };
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten().find(is_ours);
    assert!(left.is_none(), "{left:?}");
}

#[test]
fn live_rank_that_makes_no_call_times_out() {
    for (rank, outcome) in run_scenario("no-call 2", 3).iter().enumerate() {
        let expected = ["barrier: timed out after 1 s waiting for rank 2 on n1", "no call"];
        assert_eq!(outcome.as_deref(), Some(expected[rank / 2]));
    }
}

#[test]
fn rank_that_never_joins_is_reported() {
    let outcomes = run_scenario("absent 2", 3);
    for outcome in &outcomes[..2] {
        let outcome = outcome.clone().unwrap_or_default();
        assert!(outcome.contains("1 of 3 ranks missing: rank 2"), "{outcome}");
    }
}
