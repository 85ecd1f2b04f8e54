//! Ranks on devices do what every communicator must. They are processes of their own, for the
//! library refuses two ranks of one process on one device; `NCCL_HOSTID` makes each look like a host
//! of its own, so that they can share one.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod suite;

use std::process::{Child, Command};
use std::time::Duration;

use regatta_comm::background::Background;
use regatta_comm::join::{self, listen};
use regatta_comm::nccl::{self, Settings, Vendor};
use regatta_comm::{Collectives, Comm, CommError, DType, Kind, OwnedCall, ReduceOp};
use regatta_wire::secret::Secret;
use suite::Case;

/// Tell a process that it is a rank, and what it is to do.
const RANK: &str = "REGATTA_TEST_RANK";
const RANKS: &str = "REGATTA_TEST_RANKS";
const PORT: &str = "REGATTA_TEST_PORT";
const SECRET: &str = "REGATTA_TEST_SECRET";
const WORK: &str = "REGATTA_TEST_WORK";

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn settings(desync_after: u64) -> Settings {
    let desync_after = Duration::from_secs(desync_after);
    Settings { vendor: Vendor::Nvidia, device: 0, desync_after }
}

/// This rank's communicator.
fn joined(desync_after: u64) -> Background {
    let number = |name: &str| variable(name).unwrap().parse::<u32>().unwrap();
    let secret = Secret::from_hex(&variable(SECRET).unwrap()).unwrap();
    let port = number(PORT) as u16;
    let host = join::Settings::new(number(RANK), number(RANKS), "127.0.0.1", port, secret);
    nccl::over(Box::new(join::join(host).unwrap()), settings(desync_after)).unwrap()
}

/// Starts ranks, each a process of this test.
fn start(ranks: u32, work: &str) -> Vec<Child> {
    let secret = Secret::generate().unwrap().to_hex();
    let port = listen("127.0.0.1:0".parse().unwrap()).unwrap().local_addr().unwrap().port();
    let rank = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "is_a_rank", "--nocapture", "--ignored"]);
        command.env(RANK, rank.to_string()).env(RANKS, ranks.to_string()).env(WORK, work);
        command.env(PORT, port.to_string()).env(SECRET, &secret);
        command.env("NCCL_HOSTID", format!("host{rank}")).env("NCCL_SOCKET_IFNAME", "lo");
        command.spawn().unwrap()
    };
    (0..ranks).map(rank).collect()
}

fn all_well(ranks: u32, work: &str) {
    for (rank, mut child) in start(ranks, work).into_iter().enumerate() {
        assert!(child.wait().unwrap().success(), "rank {rank} of {ranks}, {work}");
    }
}

/// Whether there is a device, and a library for it; says so if not.
fn here() -> bool {
    let alone = regatta_comm::fake::world(1).remove(0);
    match nccl::over(Box::new(alone), settings(10)) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

#[test]
#[ignore = "run by the tests of this file"]
fn is_a_rank() {
    let Some(work) = variable(WORK) else { return };
    match work.as_str() {
        "all" => every_kind(&joined(60)),
        "special" => special(&joined(60)),
        _ => loses_one(&joined(5)),
    }
}

fn every_kind(comm: &Background) {
    let ranks = comm.size();
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        for (j, dtype) in DType::ALL.into_iter().enumerate() {
            for (k, op) in ReduceOp::ALL.into_iter().enumerate() {
                if !kind.reduces() && k > 0 {
                    continue;
                }
                let root = (i + j + k) as u32 % ranks;
                let in_place = (i + j + k) % 2 == 0 && kind != Kind::AllToAll;
                let count = [0, 1, 7, 1000, 100_003][(i + j + k) % 5];
                let counts = vec![count; ranks as usize];
                Case { kind, dtype, op, root, counts, in_place }.check_own(comm);
            }
        }
    }
}

fn special(comm: &Background) {
    let ranks = comm.size() as usize;
    for kind in [Kind::AllGather, Kind::ReduceScatter, Kind::Gather, Kind::Scatter] {
        for in_place in [false, true] {
            let (dtype, op, root) = (DType::F32, ReduceOp::Average, ranks as u32 - 1);
            let counts = (0..ranks).map(|r| (r * 5) % 7).collect();
            Case { kind, dtype, op, root, counts, in_place }.check_own(comm);
        }
    }
    let part = comm.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
    let mut sum = [f64::from(comm.rank())];
    part.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    let right: u32 = (0..comm.size()).filter(|r| r % 2 == comm.rank() % 2).sum();
    assert_eq!(sum, [f64::from(right)]);
    let mut buffer = comm.buffer(4 << 20);
    buffer.as_mut_slice::<f32>().fill(1.0);
    let pending = comm.start(OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, buffer));
    let call = pending.wait().unwrap();
    assert!(call.output.as_slice::<f32>().iter().all(|v| *v == ranks as f32));
}

/// Rank 1 dies in the middle; the others must not wait for it for ever.
fn loses_one(comm: &Background) {
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        std::process::abort();
    }
    let mut data = vec![1.0f32; 1 << 20];
    let ended: Result<Vec<()>, CommError> =
        (0..100).map(|_| comm.all_reduce(&mut data, ReduceOp::Sum)).collect();
    assert!(matches!(ended, Err(CommError::Late { .. } | CommError::System { .. })), "{ended:?}");
}

#[test]
fn every_collective_gives_what_the_reference_gives() {
    if here() {
        [1, 2, 4].into_iter().for_each(|ranks| all_well(ranks, "all"));
    }
}

#[test]
fn special_ones_too() {
    if here() {
        all_well(4, "special");
    }
}

#[test]
fn a_rank_that_dies_is_an_error_of_the_others() {
    if !here() {
        return;
    }
    for (rank, mut child) in start(3, "lose").into_iter().enumerate() {
        assert_eq!(child.wait().unwrap().success(), rank != 1, "rank {rank}");
    }
}
