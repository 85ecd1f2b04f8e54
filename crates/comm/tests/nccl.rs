//! Ranks on devices do what every communicator must. They are processes of their own, for the
//! library refuses two ranks of one process on one device; `NCCL_HOSTID` makes each look like a host
//! of its own, so that they can share one.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod suite;

use std::process::{Child, Command};
use std::time::Duration;

use regatta_comm::background::Background;
use regatta_comm::join::{self, listen};
use regatta_comm::nccl::{self, Gpu, Settings, Vendor};
use regatta_comm::{
    Buffer, Collectives, Comm, CommError, Counts, DType, Kind, OwnedCall, ReduceOp, Space,
};
use regatta_wire::secret::Secret;

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
    Settings { vendor: Vendor::Nvidia, device: 0, desync_after, debug: false }
}

/// This rank's communicator.
fn joined(desync_after: u64) -> Background {
    joined_with(settings(desync_after))
}

fn joined_with(settings: Settings) -> Background {
    nccl::over(Box::new(met()), settings).unwrap()
}

/// How this rank meets the others.
fn met() -> Background {
    let number = |name: &str| variable(name).unwrap().parse::<u32>().unwrap();
    let secret = Secret::from_hex(&variable(SECRET).unwrap()).unwrap();
    let port = number(PORT) as u16;
    let host = join::Settings::new(number(RANK), number(RANKS), "127.0.0.1", port, secret);
    join::join(host).unwrap()
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
        "product" => suite::own_product(&joined(60), 400, true),
        "sessions" => suite::own_sessions(&joined(60), 12, true),
        "messages" => suite::own_messages(&joined(60), 6),
        "special" => special(&joined(60)),
        "disagree" => disagree(&joined_with(Settings { debug: true, ..settings(5) })),
        "silent" => silent(&joined(5)),
        "abort" => aborts(&joined(600)),
        "early" => loses_one_early(met()),
        _ => loses_one(&joined(600)),
    }
}

fn special(comm: &Background) {
    let ranks = comm.size() as usize;
    let mut buffer = comm.buffer(4 << 20);
    buffer.as_mut_slice::<f32>().fill(1.0);
    let pending = comm.start(OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, buffer));
    let call = pending.wait().unwrap();
    assert!(call.output.as_slice::<f32>().iter().all(|v| *v == ranks as f32));
    adopted(comm);
    messages(comm);
    in_a_row(comm);
    suite::group_on(comm);
    // What each sends is not what the others expect: all are told, and all the same.
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

/// Memory of somebody else: here half of a buffer of our own.
fn adopted(comm: &Background) {
    let gpu = Gpu::open(Vendor::Nvidia, 0).unwrap();
    let mut whole = gpu.buffer(800).unwrap();
    whole.put(&[1.0f64; 100]).unwrap();
    let half = whole.address().map_addr(|at| at.checked_add(400).unwrap());
    // SAFETY: the half is there as long as its owner, whom nobody else uses meanwhile.
    let half = unsafe { gpu.adopt(half, 400, Box::new(())) };
    let call = OwnedCall::all_reduce(DType::F64, ReduceOp::Sum, half);
    let call = comm.start(call).wait().unwrap();
    assert_eq!(call.output.space(), Space::Device(0));
    let mut all = [0.0; 100];
    whole.fetch(&mut all).unwrap();
    let sum = f64::from(comm.size());
    assert!(all[..50].iter().all(|v| *v == 1.0) && all[50..].iter().all(|v| *v == sum));
    let mixed = OwnedCall { input: Some(Buffer::zeroed(400)), ..call };
    let error = comm.start(mixed).wait().unwrap_err().to_string();
    assert!(error.contains("the input lies in host memory, the output in the memory of device 0"));
}

/// Round and round, from device to device.
fn messages(comm: &Background) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let message = |kind, value: i32, other: u32| {
        let mut buffer = comm.device_buffer(4000).unwrap();
        buffer.put(&[value; 1000]).unwrap();
        let call = OwnedCall::new(kind, DType::I32, Counts::Equal(1000), buffer);
        let call = comm.start(OwnedCall { root: other, ..call }).wait().unwrap();
        let mut got = [0i32; 1000];
        call.output.fetch(&mut got).unwrap();
        got[999]
    };
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let (send, receive) =
        (|| message(Kind::Send, rank as i32, next), || message(Kind::Receive, -1, before));
    // Each waits until the other is there: in turns, or all would send.
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

/// Several in a row are queued: each adds up what the one before gave.
fn in_a_row(comm: &Background) {
    let mut buffer = comm.device_buffer(80).unwrap();
    buffer.put(&[1.0f64; 10]).unwrap();
    let mut call = OwnedCall::all_reduce(DType::F64, ReduceOp::Sum, buffer);
    comm.run_owned(&mut call, 5).unwrap();
    let mut got = [0.0; 10];
    call.output.fetch(&mut got).unwrap();
    assert_eq!(got, [f64::from(comm.size()).powi(5); 10]);
    let (rank, ranks) = (comm.rank(), comm.size());
    let message = |kind, other: u32| {
        let mut buffer = comm.device_buffer(4).unwrap();
        buffer.put(&[rank as i32]).unwrap();
        let call = OwnedCall::new(kind, DType::I32, Counts::Equal(1), buffer);
        OwnedCall { root: other, ..call }
    };
    let before = (rank + ranks - 1) % ranks;
    let mut both = [message(Kind::Send, (rank + 1) % ranks), message(Kind::Receive, before)];
    comm.run_messages(&mut both, 3).unwrap();
    let mut got = [0i32];
    both[1].output.fetch(&mut got).unwrap();
    assert_eq!(got, [before as i32]);
}

/// One calls something else, and all are told.
fn disagree(comm: &Background) {
    comm.barrier().unwrap();
    let mut data = [1.0f32; 9];
    let error = match comm.rank() {
        1 => comm.all_gather(&[1u8], &mut vec![0; comm.size() as usize]).unwrap_err(),
        _ => comm.all_reduce(&mut data, ReduceOp::Sum).unwrap_err(),
    };
    let error = error.to_string();
    assert!(error.contains("all-gather of") && error.contains("all-reduce of 9 f32"), "{error}");
}

/// One calls nothing, and the other is told.
fn silent(comm: &Background) {
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        return std::thread::sleep(Duration::from_secs(8));
    }
    let error = comm.all_reduce(&mut [1.0f32; 9], ReduceOp::Sum).unwrap_err().to_string();
    assert!(error.contains("rank 1 on"), "{error}");
}

/// One gives up instead of calling, and the others are told why.
fn aborts(comm: &Background) {
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        return comm.abort("no more data");
    }
    let mut data = vec![1.0f32; 1 << 20];
    let error = comm.all_reduce(&mut data, ReduceOp::Sum).unwrap_err().to_string();
    assert!(error.contains("rank 1 on") && error.contains("no more data"), "{error}");
    assert!(comm.is_over());
}

/// Rank 1 dies after it said that it has a device, and before it connects it.
fn loses_one_early(meeting: Background) {
    if meeting.rank() == 1 {
        meeting.all_gather(&[1u8], &mut vec![0; meeting.size() as usize]).unwrap();
        meeting.broadcast(&mut [0u8; 128], 0).unwrap();
        std::process::abort();
    }
    let error = nccl::over(Box::new(meeting), settings(600)).map(drop).unwrap_err().to_string();
    assert!(error.contains("rank 1 on"), "{error}");
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
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("rank 1 on"), "{error}");
}

#[test]
fn any_combination_is_right() {
    if here() {
        [1, 2, 3, 4].into_iter().for_each(|ranks| all_well(ranks, "product"));
    }
}

#[test]
fn any_session_is_right() {
    if here() {
        [2, 3].into_iter().for_each(|ranks| all_well(ranks, "sessions"));
    }
}

#[test]
fn any_messages_arrive() {
    if here() {
        all_well(3, "messages");
    }
}

#[test]
fn ranks_that_disagree_are_told_by_name() {
    if here() {
        all_well(2, "disagree");
        all_well(2, "silent");
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
    for work in ["lose", "early"] {
        for (rank, mut child) in start(3, work).into_iter().enumerate() {
            assert_eq!(child.wait().unwrap().success(), rank != 1, "rank {rank}, {work}");
        }
    }
}

#[test]
fn a_rank_that_gives_up_is_an_error_of_the_others() {
    if here() {
        all_well(3, "abort");
    }
}
