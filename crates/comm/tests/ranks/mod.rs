//! Ranks that are processes: the test program runs itself, once for each.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use regatta_comm::background::Background;
use regatta_comm::error::Peer;
use regatta_comm::shm::{self, Settings};
use regatta_comm::{Call, Collectives, Comm, CommError, Counts, DType, Kind, ReduceOp};

const RANK: &str = "REGATTA_TEST_RANK";
const RANKS: &str = "REGATTA_TEST_RANKS";
const NAME: &str = "REGATTA_TEST_NAME";
const SCENE: &str = "REGATTA_TEST_SCENE";
const CASES: &str = "REGATTA_TEST_CASES";

/// What a rank ends with when it ends as the test wants.
const SAID: &str = "said: ";

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);

/// How a rank ended: what it said, if it could.
#[derive(Debug)]
struct Ended {
    said: Option<String>,
}

/// Runs a scene with so many ranks.
fn play(scene: &str, ranks: u32) -> Vec<Ended> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("test-{}-{number}", std::process::id());
    let start = |rank: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ranks::as_a_rank", "--nocapture", "--test-threads=1"])
            .env(RANK, rank.to_string())
            .env(RANKS, ranks.to_string())
            .env(NAME, &name)
            .env(SCENE, scene)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let limit = Instant::now() + LIMIT;
    children.into_iter().map(|child| end_of(child, limit, scene)).collect()
}

fn end_of(mut child: Child, limit: Instant, scene: &str) -> Ended {
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > limit {
            child.kill().unwrap();
            panic!("{scene}: a rank hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let said = text.lines().find_map(|line| line.split_once(SAID)).map(|(_, said)| said.to_owned());
    Ended { said }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Not a test of its own: what a rank does that another test has started.
#[test]
fn as_a_rank() {
    let Some(rank) = variable(RANK) else { return };
    let rank: u32 = rank.parse().unwrap();
    let ranks: u32 = variable(RANKS).unwrap().parse().unwrap();
    let (name, scene) = (variable(NAME).unwrap(), variable(SCENE).unwrap());
    let words: Vec<&str> = scene.split(' ').collect();
    let peers = (0..ranks).map(|rank| Peer { rank, host: "n1".to_owned() }).collect();
    let settings = Settings {
        join_within: Duration::from_secs(if words[0] == "absent" { 1 } else { 50 }),
        desync_after: Duration::from_secs(if words[0] == "silent" { 1 } else { 300 }),
        ..Settings::default()
    };
    if words[0] == "absent" && rank == number(words[1]) as u32 {
        return;
    }
    let said = match shm::join(&name, rank, peers, settings) {
        Ok(engine) => act(&Background::new(Box::new(engine)), &words),
        Err(error) => error.to_string(),
    };
    println!("\n{SAID}{said}");
}

fn number(word: &str) -> usize {
    word.parse().unwrap()
}

fn act(comm: &Background, words: &[&str]) -> String {
    let me = comm.rank() as usize;
    match words[0] {
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
                (number(words[1]), number(words[2]), number(words[3]), number(words[4]));
            comm.barrier().unwrap();
            if me == victim {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(micros as u64));
                    let own = rustix::process::getpid();
                    rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
                });
            }
            for_ever(comm, kind, count).to_string()
        }
        "silent" if me == number(words[1]) => {
            // It lives, and calls nothing, until the others have said so.
            std::thread::sleep(Duration::from_secs(3));
            "nothing".to_owned()
        }
        "silent" => comm.barrier().unwrap_err().to_string(),
        _ => "joined".to_owned(),
    }
}

/// How many things there are to be killed in.
const THINGS: usize = Kind::ALL.len() + 2;

/// Does one thing until it fails: a collective, one of shared buffers, or messages round and round.
fn for_ever(comm: &Background, thing: usize, count: usize) -> CommError {
    let (me, ranks) = (comm.rank() as usize, comm.size() as usize);
    let mut shared = comm.buffer(count * 4);
    loop {
        let done = match Kind::ALL.get(thing) {
            Some(kind) => once(comm, *kind, count),
            None if thing == Kind::ALL.len() => {
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

fn once(comm: &Background, kind: Kind, count: usize) -> Result<(), CommError> {
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
    let length = call.lengths(comm.rank() as usize, comm.size() as usize).1;
    let mut output = vec![0; length * 4];
    call.output = &mut output;
    comm.run(call)
}

#[test]
fn processes_work_together() {
    for (rank, ended) in play("work", 4).iter().enumerate() {
        assert_eq!(ended.said.as_deref(), Some(&*format!("10 {}", rank % 2)));
    }
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others() {
    // A seed, and from it which rank, when, and in what.
    let mut seed = 0x5eed_u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    // More of them on demand.
    let cases = variable(CASES).map_or(44, |cases| number(&cases));
    for case in 0..cases {
        let (kind, victim) = (case % THINGS, next(3));
        let (count, micros) = ([1, 100, 40_000, 300_000][next(4)], next(3000));
        let scene = format!("kill {kind} {victim} {count} {micros}");
        for (rank, ended) in play(&scene, 3).iter().enumerate() {
            let gone = format!("rank {victim} on n1 is gone (its process ended)");
            match &ended.said {
                Some(said) => assert!(said.contains(&gone), "{scene}: rank {rank} said {said}"),
                None => assert_eq!(rank, victim, "{scene}"),
            }
        }
    }
    // Folders there are other tests'.
    let is_ours = |entry: &std::fs::DirEntry| {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        is_file && entry.file_name().to_string_lossy().contains("regatta")
    };
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten().find(is_ours);
    assert!(left.is_none(), "{left:?}");
}

#[test]
fn a_rank_that_lives_and_calls_nothing_is_named() {
    for (rank, ended) in play("silent 2", 3).iter().enumerate() {
        let right = ["barrier: after 1 s nothing came from rank 2 on n1", "nothing"];
        assert_eq!(ended.said.as_deref(), Some(right[rank / 2]));
    }
}

#[test]
fn a_rank_that_never_joins_is_named() {
    let ended = play("absent 2", 3);
    let said = |rank: usize| ended[rank].said.clone().unwrap_or_default();
    for rank in [0, 1] {
        assert!(said(rank).contains("rank 2 on n1 did not come"), "{}", said(rank));
    }
    let ended = play("absent 0", 2);
    assert!(ended[1].said.clone().unwrap_or_default().contains("rank 0 gave no memory"));
}
