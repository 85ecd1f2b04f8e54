//! Shared memory between ranks as separate processes: the test program re-executes itself. They need
//! no network bootstrap.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use regatta_comm::error::Peer;
use regatta_comm::shm::{self, ShmConfig};
use regatta_comm::{
    Call, CallKind, Collectives, Comm, CommError, Communicator, Counts, DType, ReduceOp,
};

use crate::seeded_rng::SeededRng;
use crate::suite;

const RANK: &str = "REGATTA_TEST_RANK";
const RANKS: &str = "REGATTA_TEST_RANKS";
const NAME: &str = "REGATTA_TEST_NAME";
const SCENARIO: &str = "REGATTA_TEST_SCENARIO";

/// Prefix of the line that a rank prints at its end.
const OUTCOME: &str = "outcome: ";

/// Much longer than any scenario takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The outcome that each rank printed, if it was not killed.
fn run_scenario(scenario: &str, ranks: u32) -> Vec<Option<String>> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let name = format!("test-{}-{number}", std::process::id());
    let start = |rank: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_process::rank_main", "--nocapture", "--test-threads=1"])
            .env(RANK, rank.to_string())
            .env(RANKS, ranks.to_string())
            .env(NAME, &name)
            .env(SCENARIO, scenario)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let deadline = Instant::now() + TIMEOUT;
    children.into_iter().map(|child| wait_for(child, deadline, scenario)).collect()
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
    let (name, scenario) = (variable(NAME).unwrap(), variable(SCENARIO).unwrap());
    let args: Vec<&str> = scenario.split(' ').collect();
    let peers = (0..ranks).map(|rank| Peer::new(rank, "n1")).collect();
    let settings = ShmConfig {
        join_timeout: Duration::from_secs(if args[0] == "absent" { 1 } else { 50 }),
        desync_after: Duration::from_secs(if args[0] == "no-call" { 1 } else { 300 }),
        ..ShmConfig::default()
    };
    if args[0] == "absent" && rank == parse(args[1]) as u32 {
        return;
    }
    let outcome = match shm::join(&name, rank, peers, settings) {
        Ok(engine) => run_rank(&Communicator::new(Box::new(engine)), &args),
        Err(error) => error.to_string(),
    };
    println!("\n{OUTCOME}{outcome}");
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
                    let reported = text.contains(&lost) && text.ends_with("its process exited");
                    assert!(reported, "{scenario}: rank {rank}: {text}");
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
    let outcome = |rank: usize| outcomes[rank].clone().unwrap_or_default();
    for rank in [0, 1] {
        assert!(outcome(rank).contains("timed out waiting for rank 2 on n1"), "{}", outcome(rank));
    }
    let outcomes = run_scenario("absent 0", 2);
    assert!(outcomes[1].clone().unwrap_or_default().contains("no shared memory from rank 0"));
}
