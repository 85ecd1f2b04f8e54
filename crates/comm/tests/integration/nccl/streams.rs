//! Stream semantics on a device: patterns that deadlock with one stream for all communicators, and
//! calls that depend on work of the caller's streams.

use std::ffi::c_void;
use std::ptr::null_mut;

use regatta_comm::gpu_runtime::{MEMCPY_DEFAULT, Runtime, STREAM_NON_BLOCKING, Stream};
use regatta_comm::nccl::{Gpu, Vendor};
use regatta_comm::{
    Buffer, CallKind, Comm, Communicator, Counts, DType, OwnedCall, Pending, ReduceOp,
};

/// Too large to be sent before the receive is posted.
const ELEMENTS: usize = 4 << 20;

/// A chain of copies that takes some hundred milliseconds.
const CHAIN_BYTES: usize = 1 << 30;
const CHAIN_COPIES: usize = 700;

/// Pipeline and ring steps complete, and so does a collective between a kernel and a copy.
pub fn on_rank(comm: &Communicator) {
    let device = Device::open();
    if comm.size() == 2 {
        pipeline(comm, &device);
        group(comm, &device);
    }
    ring(comm, &device);
    dependent_all_reduce(comm, &device);
}

/// The device as a training engine uses it: streams and memory of its own.
struct Device {
    runtime: Runtime,
    gpu: Gpu,
}

impl Device {
    fn open() -> Self {
        let gpu = Gpu::open(Vendor::Nvidia, 0).unwrap();
        Self { runtime: Runtime::open(Vendor::Nvidia).unwrap(), gpu }
    }

    fn stream(&self) -> Stream {
        let mut stream = null_mut();
        // SAFETY: the function writes one pointer.
        let code = unsafe {
            (self.runtime.stream_create_with_priority)(&mut stream, STREAM_NON_BLOCKING, 0)
        };
        assert_eq!(code, 0);
        stream
    }

    /// A buffer of equal elements.
    fn filled(&self, value: f32) -> Buffer {
        let mut buffer = self.gpu.buffer(ELEMENTS * 4).unwrap();
        buffer.copy_from_host(&vec![value; ELEMENTS]).unwrap();
        buffer
    }

    fn copy(&self, stream: Stream, to: &Buffer, from: &Buffer) {
        let address = |buffer: &Buffer| buffer.address().as_ptr().cast::<c_void>();
        let (to_address, from_address) = (address(to), address(from));
        let memcpy = self.runtime.memcpy_async;
        // SAFETY: both buffers live until the caller has waited for the stream.
        let code = unsafe { memcpy(to_address, from_address, to.len(), MEMCPY_DEFAULT, stream) };
        assert_eq!(code, 0, "{}", self.runtime.error_string(code));
    }
}

fn message(kind: CallKind, peer: u32, buffer: Buffer) -> OwnedCall {
    let call = OwnedCall::new(kind, DType::F32, Counts::Equal(ELEMENTS), buffer);
    OwnedCall { root: peer, ..call }
}

fn all_reduce(buffer: Buffer) -> OwnedCall {
    OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, buffer)
}

/// The first and the last element.
fn ends(buffer: &Buffer) -> [f32; 2] {
    let mut values = vec![0f32; buffer.len() / 4];
    buffer.copy_to_host(&mut values).unwrap();
    [values[0], values[values.len() - 1]]
}

fn received(pending: Pending) -> [f32; 2] {
    ends(&pending.wait().unwrap().output)
}

/// 1F1B with early-posted receives: the first stage posts its receive of a gradient before it sends
/// the activation that the gradient depends on. The two directions have a communicator each.
fn pipeline(comm: &Communicator, device: &Device) {
    let [forward, backward] = [0, 1].map(|_| comm.split(Some(0), 0).unwrap().unwrap());
    let values = [0.0, 1.0, 2.0, 3.0];
    let buffers =
        values.map(|value| (device.filled(value), device.filled(value + 0.5), device.filled(-1.0)));
    let mut pending = Vec::new();
    for (value, (activation, gradient, empty)) in values.into_iter().zip(buffers) {
        if comm.rank() == 0 {
            let receive = message(CallKind::Receive, 1, empty);
            pending.push((backward.start(receive), value + 0.5));
            drop(forward.start(message(CallKind::Send, 1, activation)));
        } else {
            let arrived = forward.start(message(CallKind::Receive, 0, empty));
            let send = message(CallKind::Send, 0, gradient);
            drop(backward.enqueue(vec![send], &[arrived.event()]));
            pending.push((arrived, value));
        }
    }
    for (pending, expected) in pending {
        assert_eq!(received(pending), [expected; 2]);
    }
}

/// A ring step of context parallelism, with a communicator per link, while a collective of all ranks
/// is in flight.
fn ring(comm: &Communicator, device: &Device) {
    let (own, ranks) = (comm.rank(), comm.size());
    let before = (own + ranks - 1) % ranks;
    // The sender of a link is its rank 0. All ranks create the links in the same order.
    let split = |link: u32| {
        let member = link == own || link == before;
        comm.split(member.then_some(0), i64::from(link != own)).unwrap()
    };
    let links: Vec<_> = (0..ranks).map(split).collect();
    let link = |number: u32| links[number as usize].as_ref().unwrap();
    for _ in 0..3 {
        let sent = link(own).start(message(CallKind::Send, 1, device.filled(own as f32)));
        let receive = message(CallKind::Receive, 0, device.filled(-1.0));
        let arrived = link(before).start(receive);
        let sum = comm.start(all_reduce(device.filled(1.0)));
        assert_eq!(received(arrived), [before as f32; 2]);
        assert_eq!(received(sum), [ranks as f32; 2]);
        sent.wait().unwrap();
    }
}

/// Messages and collectives in one group.
fn group(comm: &Communicator, device: &Device) {
    let peer = 1 - comm.rank();
    let calls = vec![
        message(CallKind::Send, peer, device.filled(peer as f32)),
        message(CallKind::Receive, peer, device.filled(-1.0)),
        all_reduce(device.filled(3.0)),
    ];
    let calls = comm.enqueue(calls, &[]).wait_group().unwrap();
    assert_eq!(ends(&calls[1].output), [comm.rank() as f32; 2]);
    assert_eq!(ends(&calls[2].output), [6.0; 2]);
}

/// A collective on a range of an allocation, after work on one stream and before work on another. The
/// host waits only at the end.
fn dependent_all_reduce(comm: &Communicator, device: &Device) {
    let (producer, consumer) = (device.stream(), device.stream());
    let chain = [(); 2].map(|()| device.gpu.buffer(CHAIN_BYTES).unwrap());
    let (ones, result) = (device.filled(1.0), device.filled(0.0));
    let arena = device.gpu.buffer(3 * ELEMENTS * 4).unwrap();
    let shard = || arena.device_range(ELEMENTS * 4..2 * ELEMENTS * 4).unwrap();
    // The first call connects the ranks.
    comm.start(all_reduce(shard())).wait().unwrap();
    for _ in 0..CHAIN_COPIES {
        device.copy(producer, &chain[0], &chain[1]);
    }
    device.copy(producer, &shard(), &ones);
    // SAFETY: the stream is valid.
    let ready = unsafe { device.gpu.record(producer) }.unwrap();
    let reduced = comm.enqueue(vec![all_reduce(shard())], std::slice::from_ref(&ready)).event();
    // SAFETY: the stream is valid.
    unsafe { reduced.wait_on_stream(consumer) }.unwrap();
    device.copy(consumer, &result, &shard());
    // SAFETY: the stream is valid.
    let copied = unsafe { device.gpu.record(consumer) }.unwrap();
    // Everything is enqueued, and the chain of copies is still running.
    let state = [&ready, &reduced, &copied].map(|event| event.is_complete().unwrap());
    assert_eq!(state, [false; 3], "the host waited for the device, or the chain is too short");
    copied.wait().unwrap();
    assert_eq!((ready.is_complete(), reduced.is_complete()), (Ok(true), Ok(true)));
    assert_eq!(ends(&result), [comm.size() as f32; 2]);
}
