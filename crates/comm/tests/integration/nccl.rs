//! Conformance and fault tests of the NCCL communicator. Ranks are processes, because NCCL rejects
//! two ranks of one process on one device; `NCCL_HOSTID` makes each look like a separate host, so
//! that they can share a device.

mod streams;

use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use regatta_comm::bootstrap::{self, BootstrapConfig, listen};
use regatta_comm::nccl::{self, Gpu, NcclConfig, Vendor};
use regatta_comm::{
    Buffer, CallKind, Collectives, Comm, Communicator, Counts, DType, MemorySpace, OwnedCall,
    ReduceOp,
};
use regatta_wire::secret::Secret;

use crate::suite;

/// Environment of a rank process.
const RANK: &str = "REGATTA_TEST_RANK";
const RANKS: &str = "REGATTA_TEST_RANKS";
const PORT: &str = "REGATTA_TEST_PORT";
const SECRET: &str = "REGATTA_TEST_SECRET";
const SCENARIO: &str = "REGATTA_TEST_SCENARIO";

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn config(desync_after: u64) -> NcclConfig {
    let desync_after = Duration::from_secs(desync_after);
    NcclConfig { vendor: Vendor::Nvidia, device: 0, desync_after, debug: false, blocking: false }
}

/// This rank's NCCL communicator.
fn nccl_comm(desync_after: u64) -> Communicator {
    nccl_comm_with(config(desync_after))
}

fn nccl_comm_with(config: NcclConfig) -> Communicator {
    nccl::init(Box::new(bootstrap_comm()), config).unwrap()
}

/// This rank's bootstrap communicator.
fn bootstrap_comm() -> Communicator {
    let number = |name: &str| variable(name).unwrap().parse::<u32>().unwrap();
    let secret = Secret::from_hex(&variable(SECRET).unwrap()).unwrap();
    let port = number(PORT) as u16;
    let (rank, ranks) = (number(RANK), number(RANKS));
    bootstrap::join(BootstrapConfig::new(rank, ranks, "127.0.0.1", port, secret)).unwrap()
}

/// Starts one process of this test binary per rank.
fn start(ranks: u32, scenario: &str) -> Vec<Child> {
    let secret = Secret::generate().unwrap().to_hex();
    let port = listen("127.0.0.1:0".parse().unwrap()).unwrap().local_addr().unwrap().port();
    let rank = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "nccl::as_a_rank", "--nocapture", "--ignored"]);
        command.env(RANK, rank.to_string()).env(RANKS, ranks.to_string()).env(SCENARIO, scenario);
        command.env(PORT, port.to_string()).env(SECRET, &secret);
        command.env("NCCL_HOSTID", format!("host{rank}")).env("NCCL_SOCKET_IFNAME", "lo");
        // Streams that share a hardware queue wait for each other.
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
        command.spawn().unwrap()
    };
    (0..ranks).map(rank).collect()
}

/// The ranks of all tests at once would exhaust the memory of a device.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a scenario with each number of ranks, if there is a device; in some, rank 1 dies.
fn run_ranks(worlds: &[u32], scenario: &str, rank_1_survives: bool) {
    if !has_device() {
        return;
    }
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for ranks in worlds {
        for (rank, mut child) in start(*ranks, scenario).into_iter().enumerate() {
            let success = child.wait().unwrap().success();
            assert_eq!(success, rank_1_survives || rank != 1, "rank {rank} of {ranks}, {scenario}");
        }
    }
}

/// Whether a device and NCCL are available; prints why not.
fn has_device() -> bool {
    match nccl::device_count(Vendor::Nvidia) {
        Ok(devices) => devices > 0,
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

#[test]
#[ignore = "run by the tests of this file"]
fn as_a_rank() {
    let Some(scenario) = variable(SCENARIO) else { return };
    match scenario.as_str() {
        "combinations" => suite::sampled_combinations_on_rank(&nccl_comm(60), 400, true),
        "sessions" => suite::random_sessions_on_rank(&nccl_comm(60), 12, true),
        "messages" => suite::random_messages_on_rank(&nccl_comm(60), 6),
        "edge-cases" => edge_cases(&nccl_comm(60)),
        "streams" => streams::on_rank(&nccl_comm(60)),
        "call-mismatch" => call_mismatch(&nccl_comm_with(NcclConfig { debug: true, ..config(5) })),
        "missing-rank" => missing_rank(&nccl_comm(5)),
        "abort" => aborting_rank(&nccl_comm(600)),
        "die-in-flight" => rank_dies_in_flight(&nccl_comm(600)),
        "die-during-init" => rank_dies_during_init(bootstrap_comm()),
        _ => rank_dies(&nccl_comm(600)),
    }
}

fn edge_cases(comm: &Communicator) {
    let ranks = comm.size() as usize;
    let mut buffer = comm.buffer(4 << 20);
    buffer.as_mut_slice::<f32>().fill(1.0);
    let pending = comm.start(OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, buffer));
    let call = pending.wait().unwrap();
    assert!(call.output.as_slice::<f32>().iter().all(|v| *v == ranks as f32));
    adopt_device_memory(comm);
    device_messages(comm);
    repeated_calls(comm);
    suite::group_on_rank(comm);
    // A count mismatch is reported identically on all ranks.
    let other = (comm.rank() as usize + 1) % ranks;
    let (mut send, receive) = (vec![0; ranks], vec![0; ranks]);
    if comm.rank() == 0 {
        send[other] = 3;
    }
    let to = vec![0u8; send.iter().sum()];
    let error = comm.all_to_all_v(&to, &send, &mut [], &receive).unwrap_err().to_string();
    assert!(error.contains("rank 0 on") && error.contains("sends 3 u8 to rank 1"), "{error}");
    assert_eq!(comm.barrier().unwrap_err().to_string(), error);
}

/// Adopts half of a device buffer as foreign memory.
fn adopt_device_memory(comm: &Communicator) {
    let gpu = Gpu::open(Vendor::Nvidia, 0).unwrap();
    let mut buffer = gpu.buffer(800).unwrap();
    buffer.copy_from_host(&[1.0f64; 100]).unwrap();
    let half = buffer.address().map_addr(|at| at.checked_add(400).unwrap());
    // SAFETY: the buffer outlives its half and is not used meanwhile.
    let half = unsafe { gpu.adopt(half, 400, Box::new(())) };
    let call = OwnedCall::all_reduce(DType::F64, ReduceOp::Sum, half);
    let call = comm.start(call).wait().unwrap();
    assert_eq!(call.output.space(), MemorySpace::Device(0));
    let mut all = [0.0; 100];
    buffer.copy_to_host(&mut all).unwrap();
    let sum = f64::from(comm.size());
    assert!(all[..50].iter().all(|v| *v == 1.0) && all[50..].iter().all(|v| *v == sum));
    let mixed = OwnedCall { input: Some(Buffer::zeroed(400)), ..call };
    let error = comm.start(mixed).wait().unwrap_err().to_string();
    assert!(error.contains("the input is in host memory, the output in the memory of device 0"));
}

/// A ring of messages between devices.
fn device_messages(comm: &Communicator) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let message = |kind, value: i32, other: u32| {
        let mut buffer = comm.device_buffer(4000).unwrap();
        buffer.copy_from_host(&[value; 1000]).unwrap();
        let call = OwnedCall::new(kind, DType::I32, Counts::Equal(1000), buffer);
        let call = comm.start(OwnedCall { root: other, ..call }).wait().unwrap();
        let mut got = [0i32; 1000];
        call.output.copy_to_host(&mut got).unwrap();
        got[999]
    };
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let (send, receive) =
        (|| message(CallKind::Send, rank as i32, next), || message(CallKind::Receive, -1, before));
    // A send blocks until it is matched: even ranks send first.
    let got = if rank % 2 == 0 {
        send();
        receive()
    } else {
        let got = receive();
        send();
        got
    };
    assert_eq!(got, before as i32);
}

/// Repeated calls are queued back to back, each on the result of the previous one.
fn repeated_calls(comm: &Communicator) {
    let mut buffer = comm.device_buffer(80).unwrap();
    buffer.copy_from_host(&[1.0f64; 10]).unwrap();
    let mut call = OwnedCall::all_reduce(DType::F64, ReduceOp::Sum, buffer);
    comm.run_owned(std::slice::from_mut(&mut call), 5).unwrap();
    let mut got = [0.0; 10];
    call.output.copy_to_host(&mut got).unwrap();
    assert_eq!(got, [f64::from(comm.size()).powi(5); 10]);
    let (rank, ranks) = (comm.rank(), comm.size());
    let message = |kind, other: u32| {
        let mut buffer = comm.device_buffer(4).unwrap();
        buffer.copy_from_host(&[rank as i32]).unwrap();
        let call = OwnedCall::new(kind, DType::I32, Counts::Equal(1), buffer);
        OwnedCall { root: other, ..call }
    };
    let before = (rank + ranks - 1) % ranks;
    let mut both =
        [message(CallKind::Send, (rank + 1) % ranks), message(CallKind::Receive, before)];
    comm.run_owned(&mut both, 3).unwrap();
    let mut got = [0i32];
    both[1].output.copy_to_host(&mut got).unwrap();
    assert_eq!(got, [before as i32]);
}

/// A rank that makes a different call is reported.
fn call_mismatch(comm: &Communicator) {
    comm.barrier().unwrap();
    let mut data = [1.0f32; 9];
    let error = match comm.rank() {
        1 => comm.all_gather(&[1u8], &mut vec![0; comm.size() as usize]).unwrap_err(),
        _ => comm.all_reduce(&mut data, ReduceOp::Sum).unwrap_err(),
    };
    let error = error.to_string();
    assert!(error.contains("all-gather of") && error.contains("all-reduce of 9 f32"), "{error}");
}

/// A rank that makes no call is reported.
fn missing_rank(comm: &Communicator) {
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        return std::thread::sleep(Duration::from_secs(8));
    }
    let error = comm.all_reduce(&mut [1.0f32; 9], ReduceOp::Sum).unwrap_err().to_string();
    assert!(error.contains("rank 1 on"), "{error}");
}

/// An abort fails the other ranks with its reason.
fn aborting_rank(comm: &Communicator) {
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        return comm.abort("no more data");
    }
    let mut data = vec![1.0f32; 1 << 20];
    let error = comm.all_reduce(&mut data, ReduceOp::Sum).unwrap_err().to_string();
    assert!(error.contains("rank 1 on") && error.contains("no more data"), "{error}");
    assert!(comm.has_failed());
}

/// Rank 1 dies after it has opened its device and before it connects.
fn rank_dies_during_init(bootstrap: Communicator) {
    if bootstrap.rank() == 1 {
        bootstrap.all_gather(&[1u8], &mut vec![0; bootstrap.size() as usize]).unwrap();
        bootstrap.broadcast(&mut [0u8; 128], 0).unwrap();
        std::process::abort();
    }
    let error = nccl::init(Box::new(bootstrap), config(600)).map(drop).unwrap_err().to_string();
    assert!(error.contains("rank 1 on"), "{error}");
}

/// Rank 1 dies while the other rank has calls in flight and waits for none of them.
fn rank_dies_in_flight(comm: &Communicator) {
    comm.barrier().unwrap();
    let sum = || OwnedCall::all_reduce(DType::F64, ReduceOp::Sum, comm.device_buffer(80).unwrap());
    comm.start(sum()).wait().unwrap();
    if comm.rank() == 1 {
        std::process::abort();
    }
    let events = [comm.start(sum()).event(), comm.start(sum()).event()];
    while events.iter().any(|event| event.is_complete() == Ok(false)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let error = events[1].is_complete().unwrap_err().to_string();
    assert!(error.contains("rank 1 on"), "{error}");
    assert!(comm.has_failed());
}

/// Rank 1 dies between collectives.
fn rank_dies(comm: &Communicator) {
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        std::process::abort();
    }
    let mut data = vec![1.0f32; 1 << 20];
    let mut sum = || comm.all_reduce(&mut data, ReduceOp::Sum);
    let error = (0..100).try_for_each(|_| sum()).unwrap_err().to_string();
    assert!(error.contains("rank 1 on"), "{error}");
}

#[test]
fn sampled_combinations_match_the_reference() {
    run_ranks(&[1, 2, 3, 4], "combinations", true);
}

#[test]
fn random_sessions_match_the_reference() {
    run_ranks(&[2, 3], "sessions", true);
}

#[test]
fn random_messages_are_delivered() {
    run_ranks(&[3], "messages", true);
}

#[test]
fn mismatched_and_missing_ranks_are_reported() {
    run_ranks(&[2], "call-mismatch", true);
    run_ranks(&[2], "missing-rank", true);
}

#[test]
fn edge_cases_match_the_reference() {
    run_ranks(&[4], "edge-cases", true);
}

#[test]
fn streams_of_different_communicators_are_independent() {
    run_ranks(&[2, 3], "streams", true);
}

#[test]
fn killed_rank_fails_events_that_nobody_waits_for() {
    run_ranks(&[2], "die-in-flight", false);
}

#[test]
fn killed_rank_fails_the_others() {
    run_ranks(&[3], "die", false);
    run_ranks(&[3], "die-during-init", false);
}

#[test]
fn aborted_rank_fails_the_others() {
    run_ranks(&[3], "abort", true);
}
