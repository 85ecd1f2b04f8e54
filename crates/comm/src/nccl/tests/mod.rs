//! Stream semantics on a simulated device ([`fake`]).

mod fake;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use proptest::prelude::*;

use super::sys::{NcclApi, RawComm, RawConfig, UniqueId};
use super::{Gpu, NcclConfig, NcclEngine, Vendor};
use crate::gpu_runtime::{MEMCPY_DEFAULT, Stream};
use crate::{
    Buffer, CallKind, Collectives, Comm, CommError, Communicator, Counts, DType, Event, OwnedCall,
    ReduceOp, Result, in_process, one_node,
};

/// One rank on a simulated device.
struct Rank {
    comm: Communicator,
    gpu: Gpu,
    /// The handle of its simulated communicator.
    raw: usize,
}

/// Runs `work` on `ranks` ranks with this timeout, and returns their results in order.
fn run_ranks<R: Send + 'static>(
    ranks: u32,
    desync_after: Duration,
    work: impl Fn(Rank) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let config = NcclConfig {
        vendor: Vendor::Nvidia,
        device: 0,
        desync_after,
        debug: false,
        blocking: false,
    };
    let spawn = |bootstrap: Communicator| {
        let (work, (sender, result)) = (work.clone(), channel());
        std::thread::spawn(move || {
            let gpu = Gpu::with_runtime(Arc::new(fake::runtime()), 0).unwrap();
            let api = Arc::new(fake::api());
            let engine =
                NcclEngine::join(Ok(gpu.clone()), api, Arc::new(bootstrap), config).unwrap();
            let raw = engine.raw as usize;
            let comm = Communicator::new(Box::new(engine));
            drop(sender.send(work(Rank { comm, gpu, raw })));
        });
        result
    };
    let results: Vec<_> = one_node::world(ranks).into_iter().map(spawn).collect();
    // A call that waits forever would leave its thread behind.
    let limit = Duration::from_secs(60);
    let received = results.into_iter().map(|result| result.recv_timeout(limit));
    received.map(|result| result.expect("a rank hangs or panics")).collect()
}

const LONG: Duration = Duration::from_secs(600);

impl Rank {
    fn buffer(&self, values: &[f32]) -> Buffer {
        let mut buffer = self.gpu.buffer(size_of_val(values)).unwrap();
        buffer.copy_from_host(values).unwrap();
        buffer
    }

    fn record(&self, stream: Stream) -> Event {
        // SAFETY: the stream is valid.
        unsafe { self.gpu.record(stream) }.unwrap()
    }
}

fn all_reduce(buffer: Buffer) -> OwnedCall {
    OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, buffer)
}

fn message(kind: CallKind, peer: u32, buffer: Buffer) -> OwnedCall {
    let counts = Counts::Equal(buffer.len() / 4);
    OwnedCall { root: peer, ..OwnedCall::new(kind, DType::F32, counts, buffer) }
}

fn values(buffer: &Buffer) -> Vec<f32> {
    let mut values = vec![0.0; buffer.len() / 4];
    buffer.copy_to_host(&mut values).unwrap();
    values
}

fn copy(stream: Stream, to: &Buffer, from: &Buffer) {
    let address = |buffer: &Buffer| buffer.address().as_ptr().cast::<c_void>();
    let memcpy = fake::runtime().memcpy_async;
    // SAFETY: both buffers live until the stream is idle.
    unsafe { memcpy(address(to), address(from), to.len(), MEMCPY_DEFAULT, stream) };
}

#[test]
fn streams_and_calls_wait_for_each_other_without_the_host() {
    let got = run_ranks(2, LONG, |rank| {
        let (producer, consumer) = (fake::new_stream(), fake::new_stream());
        let written = rank.buffer(&[1.0, rank.comm.rank() as f32]);
        let (arena, result) = (rank.buffer(&[0.0; 6]), rank.buffer(&[0.0; 2]));
        let shard = || arena.device_range(8..16).unwrap();
        // A kernel writes the shard, a collective reduces it, and a copy reads it.
        let gate = fake::close_gate(producer);
        copy(producer, &shard(), &written);
        let ready = rank.record(producer);
        let pending = rank.comm.enqueue(vec![all_reduce(shard())], &[ready]);
        let reduced = pending.event();
        // SAFETY: the stream is valid.
        unsafe { reduced.wait_on_stream(consumer) }.unwrap();
        copy(consumer, &result, &shard());
        let copied = rank.record(consumer);
        // The host is here although the kernel has not ended.
        assert_eq!((reduced.is_complete(), copied.is_complete()), (Ok(false), Ok(false)));
        assert_eq!(copied.wait_timeout(Duration::from_millis(20)), Ok(false));
        fake::open_gate(gate);
        copied.wait().unwrap();
        assert_eq!(reduced.is_complete(), Ok(true));
        assert_eq!(pending.wait().unwrap().output.len(), 8);
        assert_eq!(values(&arena), [0.0, 0.0, 2.0, 1.0, 0.0, 0.0]);
        values(&result)
    });
    assert_eq!(got, [[2.0, 1.0], [2.0, 1.0]]);
}

/// A send or receive of one direction of a link, which is a communicator of two ranks.
type Message = (usize, CallKind);

/// Whether the messages of two ranks complete, each on the stream of its link, or all of a rank on one
/// stream.
fn completes(ranks: [&[Message]; 2], one_stream: bool) -> bool {
    let api: NcclApi = fake::api();
    let mut enqueued = Vec::new();
    let mut memory = null_mut();
    // SAFETY: the function writes one pointer.
    unsafe { (fake::runtime().malloc)(&mut memory, 4) };
    let comms: Vec<[RawComm; 2]> = (0..2).map(|_| connect(&api)).collect();
    let mut streams = Vec::new();
    for (rank, messages) in ranks.into_iter().enumerate() {
        let own = [fake::new_stream(), fake::new_stream()];
        for &(link, kind) in messages {
            let (raw, stream) = (comms[link][rank], own[if one_stream { 0 } else { link }]);
            let peer = 1 - rank as i32;
            // SAFETY: the memory holds the message.
            unsafe {
                (api.group_start)();
                match kind {
                    CallKind::Send => (api.send)(memory, 4, 1, peer, raw, stream),
                    _ => (api.recv)(memory, 4, 1, peer, raw, stream),
                };
                (api.group_end)();
            }
            enqueued.push(raw);
        }
        streams.extend(own);
    }
    for raw in enqueued {
        // SAFETY: the function writes one integer.
        unsafe { (api.comm_get_async_error)(raw, &mut 0) };
    }
    streams.into_iter().all(fake::is_idle)
}

/// A communicator of two ranks.
fn connect(api: &NcclApi) -> [RawComm; 2] {
    let (mut id, mut config) = (UniqueId([0; 128]), RawConfig::new(false));
    // SAFETY: the functions write an id and a pointer.
    unsafe {
        (api.get_unique_id)(&mut id);
        [0, 1].map(|rank| {
            let mut raw = null_mut();
            (api.comm_init_rank_config)(&mut raw, 2, id, rank, &mut config);
            raw
        })
    }
}

#[test]
fn one_stream_for_all_communicators_would_deadlock() {
    use CallKind::{Receive, Send};
    let (forward, backward) = (0, 1);
    // 1F1B: the first stage posts its receive of a gradient before it sends the activation.
    let pipeline: [&[Message]; 2] =
        [&[(backward, Receive), (forward, Send)], &[(forward, Receive), (backward, Send)]];
    // Context parallelism: each rank sends to the next and receives from the previous one.
    let ring: [&[Message]; 2] =
        [&[(forward, Send), (backward, Receive)], &[(backward, Send), (forward, Receive)]];
    for pattern in [pipeline, ring] {
        assert!(!completes(pattern, true));
        assert!(completes(pattern, false));
    }
}

/// The communicators of the two directions between two ranks.
fn links(rank: &Rank) -> [Box<dyn Comm>; 2] {
    [0, 1].map(|_| rank.comm.split(Some(0), 0).unwrap().unwrap())
}

#[test]
fn a_pipeline_with_early_posted_receives_completes() {
    const MICRO_BATCHES: usize = 4;
    let got = run_ranks(2, LONG, |rank| {
        let [forward, backward] = links(&rank);
        let mut received = Vec::new();
        for micro_batch in 0..MICRO_BATCHES {
            let activation = rank.buffer(&[micro_batch as f32]);
            let empty = || rank.buffer(&[-1.0]);
            if rank.comm.rank() == 0 {
                received.push(backward.start(message(CallKind::Receive, 1, empty())));
                drop(forward.start(message(CallKind::Send, 1, activation)));
            } else {
                let arrived = forward.start(message(CallKind::Receive, 0, empty()));
                // The gradient is sent when the activation has arrived, and the stage does not wait.
                let gradient = rank.buffer(&[micro_batch as f32 + 0.5]);
                let call = message(CallKind::Send, 0, gradient);
                drop(backward.enqueue(vec![call], &[arrived.event()]));
                received.push(arrived);
            }
        }
        let wait = |pending: crate::Pending| values(&pending.wait().unwrap().output)[0];
        received.into_iter().map(wait).collect::<Vec<_>>()
    });
    assert_eq!(got, [[0.5, 1.5, 2.5, 3.5], [0.0, 1.0, 2.0, 3.0]]);
}

#[test]
fn a_ring_step_with_two_communicators_in_flight_completes() {
    const RANKS: u32 = 3;
    let got = run_ranks(RANKS, LONG, |rank| {
        let own = rank.comm.rank();
        let before = (own + RANKS - 1) % RANKS;
        // A communicator per link: its sender is its rank 0.
        let split = |link: u32| {
            let member = link == own || link == before;
            rank.comm.split(member.then_some(0), i64::from(link != own)).unwrap()
        };
        let links: Vec<_> = (0..RANKS).map(split).collect();
        let link = |number: u32| links[number as usize].as_ref().unwrap();
        let sent = rank.buffer(&[own as f32]);
        let sent = link(own).start(message(CallKind::Send, 1, sent));
        let received = link(before).start(message(CallKind::Receive, 0, rank.buffer(&[-1.0])));
        // The next communicator's collective is in flight at the same time.
        let sum = rank.comm.start(all_reduce(rank.buffer(&[1.0])));
        sent.wait().unwrap();
        assert_eq!(values(&sum.wait().unwrap().output), [RANKS as f32]);
        values(&received.wait().unwrap().output)[0]
    });
    assert_eq!(got, [2.0, 0.0, 1.0]);
}

#[test]
fn a_group_is_one_launch() {
    let got = run_ranks(2, LONG, |rank| {
        let peer = 1 - rank.comm.rank();
        let before = fake::launches(rank.raw);
        let group = vec![
            message(CallKind::Send, peer, rank.buffer(&[peer as f32])),
            all_reduce(rank.buffer(&[3.0])),
            message(CallKind::Receive, peer, rank.buffer(&[-1.0])),
            all_reduce(rank.buffer(&[4.0])),
        ];
        let calls = rank.comm.enqueue(group, &[]).wait_group().unwrap();
        assert_eq!(fake::launches(rank.raw) - before, 1);
        calls.iter().skip(1).map(|call| values(&call.output)[0]).collect::<Vec<_>>()
    });
    assert_eq!(got, [[6.0, 0.0, 8.0], [6.0, 1.0, 8.0]]);
}

#[test]
fn repeated_groups_are_enqueued_back_to_back() {
    let got = run_ranks(2, LONG, |rank| {
        let mut call = [all_reduce(rank.buffer(&[1.0]))];
        rank.comm.run_owned(&mut call, 5).unwrap();
        // Host memory is staged through the same stream.
        let mut host = [1.0f32];
        rank.comm.all_reduce(&mut host, ReduceOp::Sum).unwrap();
        rank.comm.barrier().unwrap();
        (values(&call[0].output)[0], host[0])
    });
    assert_eq!(got, [(32.0, 2.0); 2]);
}

#[test]
fn memory_lives_until_the_call_has_completed() {
    run_ranks(2, LONG, |rank| {
        let stream = fake::new_stream();
        let gate = fake::close_gate(stream);
        let arena = rank.buffer(&[1.0; 4]);
        let address = arena.address().as_ptr().cast::<c_void>().cast_const();
        let call = all_reduce(arena.device_range(4..12).unwrap());
        let event = rank.comm.enqueue(vec![call], &[rank.record(stream)]).event();
        drop(arena);
        assert!(fake::is_allocated(address));
        fake::open_gate(gate);
        event.wait().unwrap();
        rank.comm.barrier().unwrap();
        assert!(!fake::is_allocated(address));
    });
    assert_eq!(fake::invalid_accesses(), 0);
}

#[test]
fn an_asynchronous_error_fails_events_that_nobody_waits_for() {
    let errors = run_ranks(2, LONG, |rank| {
        if rank.comm.rank() == 1 {
            // It makes no call until the other rank has failed.
            while !rank.comm.has_failed() {
                std::thread::yield_now();
            }
            return rank.comm.barrier().unwrap_err();
        }
        let stream = fake::new_stream();
        let pending = rank.comm.start(message(CallKind::Receive, 1, rank.buffer(&[1.0])));
        // SAFETY: the stream is valid.
        unsafe { pending.event().wait_on_stream(stream) }.unwrap();
        fake::set_async_error(rank.raw);
        // A stream of the caller continues, because the communicator is aborted.
        while !fake::is_idle(stream) {
            std::thread::yield_now();
        }
        let error = pending.wait().unwrap_err();
        assert_eq!(rank.comm.barrier().unwrap_err(), error);
        error
    });
    assert!(errors.iter().all(|error| error.to_string().contains("remote process")), "{errors:?}");
    assert_eq!(errors[1].failed_rank(), Some(0));
}

#[test]
fn an_abort_fails_events_in_flight_and_not_completed_ones() {
    run_ranks(2, LONG, |rank| {
        let completed = rank.comm.start(all_reduce(rank.buffer(&[1.0]))).event();
        completed.wait().unwrap();
        if rank.comm.rank() == 1 {
            return rank.comm.abort("no more data");
        }
        let start = || rank.comm.start(all_reduce(rank.buffer(&[1.0])));
        let in_flight = [start(), start()];
        for pending in in_flight {
            let error = pending.wait().unwrap_err();
            assert_eq!(error.failed_rank(), Some(1), "{error}");
            assert!(error.to_string().contains("no more data"), "{error}");
        }
        assert_eq!(completed.is_complete(), Ok(true));
    });
}

#[test]
fn a_late_rank_is_named_after_the_timeout() {
    for in_message in [false, true] {
        let departed = Arc::new(Barrier::new(3));
        let errors = run_ranks(3, Duration::from_millis(200), move |rank| {
            let error = (rank.comm.rank() == 0).then(|| {
                let receive = message(CallKind::Receive, 1, rank.buffer(&[1.0]));
                let reduce = all_reduce(rank.buffer(&[1.0]));
                rank.comm.start(if in_message { receive } else { reduce }).wait().unwrap_err()
            });
            departed.wait();
            error
        });
        let Some(CommError::Timeout { missing, .. }) = &errors[0] else { panic!("{errors:?}") };
        let late: Vec<u32> = missing.iter().map(|peer| peer.rank).collect();
        assert_eq!(late, if in_message { vec![1] } else { vec![1, 2] });
    }
}

#[test]
fn ranks_that_hang_in_different_calls_report_both() {
    let departed = Arc::new(Barrier::new(3));
    let errors = run_ranks(3, Duration::from_millis(200), move |rank| {
        let error = (rank.comm.rank() < 2).then(|| {
            let buffer = rank.buffer(&vec![1.0; 5 + rank.comm.rank() as usize]);
            rank.comm.start(all_reduce(buffer)).wait().unwrap_err()
        });
        departed.wait();
        error
    });
    for (rank, error) in errors[..2].iter().flatten().enumerate() {
        let CommError::CallMismatch { sequence, ours_by, ours, theirs, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((*sequence, ours_by.rank as usize), (1, rank), "{error}");
        assert_eq!((ours.count, theirs.count), (5 + rank as u64, 6 - rank as u64), "{error}");
    }
}

#[test]
fn the_timeout_excludes_the_work_that_a_call_depends_on() {
    let timeout = Duration::from_millis(200);
    run_ranks(1, timeout, move |rank| {
        let stream = fake::new_stream();
        let gate = fake::close_gate(stream);
        let pending =
            rank.comm.enqueue(vec![all_reduce(rank.buffer(&[1.0]))], &[rank.record(stream)]);
        assert_eq!(pending.event().wait_timeout(2 * timeout), Ok(false));
        fake::open_gate(gate);
        pending.wait().unwrap();
    });
}

#[test]
fn calls_depend_on_host_events_and_fail_with_them() {
    run_ranks(1, LONG, |rank| -> Result {
        let host = in_process::world(1).remove(0);
        let reduced = host.start(all_reduce(Buffer::from_slice(&[1.0f32]))).event();
        let call = || vec![all_reduce(rank.buffer(&[1.0]))];
        rank.comm.enqueue(call(), &[reduced]).wait()?;
        // Host work depends on device events, too.
        let device = rank.comm.enqueue(call(), &[]).event();
        host.enqueue(Vec::new(), &[device]).wait_group()?;
        let failed = Event::ended(Err(CommError::system("host call", "it failed")));
        let error = rank.comm.enqueue(call(), &[failed]).wait().unwrap_err();
        assert_eq!(error.to_string(), "host call: it failed");
        assert!(rank.comm.has_failed());
        Ok(())
    })
    .remove(0)
    .unwrap();
}

#[test]
fn invalid_calls_are_rejected_without_failing_the_communicator() {
    run_ranks(1, LONG, |rank| {
        let host_input =
            OwnedCall { input: Some(Buffer::zeroed(4)), ..all_reduce(rank.buffer(&[1.0])) };
        let error = rank.comm.start(host_input).wait().unwrap_err().to_string();
        assert!(error.contains("the input is in host memory"), "{error}");
        let to_self = message(CallKind::Send, 0, rank.buffer(&[1.0]));
        let error = rank.comm.start(to_self).wait().unwrap_err().to_string();
        assert!(error.contains("in one group"), "{error}");
        rank.comm.barrier().unwrap();
    });
}

const BUFFERS: usize = 3;

/// A step of a random session.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// An all-reduce of a buffer on one of three communicators.
    Reduce { comm: usize, buffer: usize },
    /// A copy on one of two streams of the caller.
    Copy { stream: usize, to: usize, from: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let buffer = 0..BUFFERS;
    let reduce =
        (0..3usize, buffer.clone()).prop_map(|(comm, buffer)| Step::Reduce { comm, buffer });
    let copy = (0..2usize, buffer.clone(), buffer);
    let copy = copy.prop_map(|(stream, to, from)| Step::Copy { stream, to, from });
    proptest::collection::vec(prop_oneof![reduce, copy], 1..16)
}

fn initial(rank: u32, buffer: usize) -> f32 {
    (1 + buffer + 4 * rank as usize) as f32
}

/// The values of two ranks after steps in order.
fn expected(steps: &[Step]) -> [[f32; BUFFERS]; 2] {
    let mut values = [0, 1].map(|rank| std::array::from_fn(|buffer| initial(rank, buffer)));
    for step in steps {
        match *step {
            Step::Reduce { buffer, .. } => {
                let sum = values[0][buffer] + values[1][buffer];
                values.iter_mut().for_each(|rank: &mut [f32; BUFFERS]| rank[buffer] = sum);
            }
            Step::Copy { to, from, .. } => {
                values.iter_mut().for_each(|rank| rank[to] = rank[from]);
            }
        }
    }
    values
}

/// Enqueues all steps behind a kernel that has not ended, each after the last ones that use its
/// buffers, and returns the values at the end.
fn run_steps(rank: &Rank, steps: &[Step]) -> [f32; BUFFERS] {
    let splits = [0, 1].map(|_| rank.comm.split(Some(0), 0).unwrap().unwrap());
    let comms: [&dyn Comm; 3] = [&rank.comm, splits[0].as_ref(), splits[1].as_ref()];
    let streams = [fake::new_stream(), fake::new_stream()];
    let start: Vec<f32> = (0..BUFFERS).map(|at| initial(rank.comm.rank(), at)).collect();
    let arena = rank.buffer(&start);
    let buffer = |at: usize| arena.device_range(at * 4..at * 4 + 4).unwrap();
    let kernel = fake::new_stream();
    let gate = fake::close_gate(kernel);
    let mut last: Vec<Event> = (0..BUFFERS).map(|_| rank.record(kernel)).collect();
    for step in steps {
        match *step {
            Step::Reduce { comm, buffer: at } => {
                let call = all_reduce(buffer(at));
                last[at] = comms[comm].enqueue(vec![call], &[last[at].clone()]).event();
            }
            Step::Copy { stream, to, from } => {
                for event in [&last[to], &last[from]] {
                    // SAFETY: the stream is valid.
                    unsafe { event.wait_on_stream(streams[stream]) }.unwrap();
                }
                copy(streams[stream], &buffer(to), &buffer(from));
                let copied = rank.record(streams[stream]);
                (last[to], last[from]) = (copied.clone(), copied);
            }
        }
        assert!(last.iter().all(|event| event.is_complete() == Ok(false)));
    }
    fake::open_gate(gate);
    last.iter().for_each(|event| event.wait().unwrap());
    let got = values(&arena);
    std::array::from_fn(|at| got[at])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn work_on_any_streams_runs_in_the_order_of_its_events(steps in steps()) {
        let all = expected(&steps);
        let got = run_ranks(2, LONG, move |rank| run_steps(&rank, &steps));
        prop_assert_eq!(got, all);
    }
}
