//! [`Engine`]: what runs the calls of a communicator.

use std::sync::Arc;

use crate::buffer::{Buffer, MemorySpace};
use crate::comm::SharedCalls;
use crate::control::CommMonitor;
use crate::error::Peer;
use crate::transports::Transports;
use crate::{Call, CallKind, CommError, Counts, DType, Event, OwnedCall, Result};

/// Aborts an engine from any thread, with a reason.
pub type AbortFn = Arc<dyn Fn(&str) + Send + Sync>;

/// Returns, without blocking, whether an engine is known to have failed.
pub type HasFailedFn = Arc<dyn Fn() -> bool + Send + Sync>;

/// Whether an engine runs a call on a device stream.
pub type OnStreamFn = Arc<dyn Fn(&OwnedCall) -> bool + Send + Sync>;

/// Allocates buffers for an engine, even while it is running a call.
#[derive(Clone)]
pub struct Allocator {
    /// Allocates host memory that the engine accesses most efficiently.
    pub host: Arc<dyn Fn(usize) -> Buffer + Send + Sync>,
    /// Allocates memory on its device, if it has one.
    pub device: Option<DeviceAlloc>,
}

/// Allocates device memory.
pub type DeviceAlloc = Arc<dyn Fn(usize) -> Result<Buffer> + Send + Sync>;

/// Allocates on the heap.
impl Default for Allocator {
    fn default() -> Self {
        Self { host: Arc::new(Buffer::zeroed), device: None }
    }
}

/// An engine of any type.
pub type BoxEngine = Box<dyn Engine>;

/// Runs collectives, one at a time.
pub trait Engine: Send {
    /// This rank.
    fn rank(&self) -> u32;

    /// All ranks, in order.
    fn peers(&self) -> Vec<Peer>;

    /// Runs a collective.
    fn run(&mut self, call: Call<'_>) -> Result;

    /// Runs a group of calls whose buffers may be in device memory `times` times, as
    /// [`Comm::run_owned`](crate::Comm::run_owned). Most engines support host memory only.
    fn run_owned(&mut self, calls: &mut [OwnedCall], times: u32) -> Result {
        match first_device_buffer(calls)? {
            Some((kind, space)) => Err(unsupported_memory(kind.name(), space)),
            None => run_on_host(self, calls, times),
        }
    }

    /// Whether a call runs on a device stream by [`Engine::enqueue`]; `None`: none does.
    fn on_stream_fn(&self) -> Option<OnStreamFn> {
        None
    }

    /// Enqueues a group of calls on the device stream, as [`Comm::enqueue`](crate::Comm::enqueue),
    /// and keeps their memory alive until they have completed.
    fn enqueue(&mut self, calls: &SharedCalls, _after: &[Event]) -> Result<Event> {
        let kind = calls.lock().first().map_or("group", |call| call.kind.name());
        Err(CommError::invalid_call(kind, "this communicator has no device stream"))
    }

    /// Checks enqueued calls for completion, faults and timeouts, without waiting; whether some are
    /// in flight.
    fn poll(&mut self) -> bool {
        false
    }

    /// Runs point-to-point messages concurrently. An engine whose sends block until they are received
    /// must override this.
    fn run_p2p(&mut self, messages: Vec<Call<'_>>) -> Result {
        messages.into_iter().try_for_each(|call| self.run(call))
    }

    /// Runs a group of calls, as [`Comm::run_group`](crate::Comm::run_group).
    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result {
        let (messages, collectives): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|call| call.kind.is_p2p());
        self.run_p2p(messages)?;
        collectives.into_iter().try_for_each(|call| self.run(call))
    }

    /// The engine of a sub-communicator, as [`Comm::split`](crate::Comm::split).
    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>>;

    /// Names its communicator, for recorded events.
    fn set_name(&mut self, _name: &str) {}

    /// The allocator for its buffers.
    fn allocator(&self) -> Allocator {
        Allocator::default()
    }

    /// A function that aborts it.
    fn abort_fn(&self) -> AbortFn;

    /// A function that tells whether it has failed, which its monitor knows, if it has one.
    fn has_failed_fn(&self) -> HasFailedFn {
        let monitor = self.monitor();
        Arc::new(move || monitor.as_ref().is_some_and(|monitor| monitor.has_failed()))
    }

    /// The transports in use, as far as the engine names them.
    fn transports(&self) -> Transports {
        Transports::default()
    }

    /// The control plane's view of its communicator, if it has a control plane.
    fn monitor(&self) -> Option<Arc<CommMonitor>> {
        None
    }
}

/// All-gathers the same number of bytes from every rank.
pub(crate) fn all_gather_bytes(engine: &mut dyn Engine, own: &[u8]) -> Result<Vec<u8>> {
    let mut all = vec![0; own.len() * engine.peers().len()];
    let call = Call::new(CallKind::AllGather, DType::U8, Counts::Equal(own.len()), &mut all);
    engine.run(Call { input: Some(own), ..call })?;
    Ok(all)
}

/// All-gathers two words per rank.
pub(crate) fn all_gather_words(engine: &mut dyn Engine, own: [u64; 2]) -> Result<Vec<[u64; 2]>> {
    let bytes: Vec<u8> = own.into_iter().flat_map(u64::to_le_bytes).collect();
    let all = all_gather_bytes(engine, &bytes)?;
    let (words, _) = all.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    Ok(pairs.iter().map(|pair| pair.map(u64::from_le_bytes)).collect())
}

/// All-gathers the arguments of [`Engine::split`].
pub fn all_gather_split_args(
    engine: &mut dyn Engine,
    colour: Option<u32>,
    key: i64,
) -> Result<Vec<(Option<u32>, i64)>> {
    let own = [colour.map_or(u64::MAX, u64::from), key.cast_unsigned()];
    let args = |[colour, key]: [u64; 2]| (u32::try_from(colour).ok(), key.cast_signed());
    Ok(all_gather_words(engine, own)?.into_iter().map(args).collect())
}

/// Runs a group of calls on host memory `times` times.
pub(crate) fn run_on_host<E: Engine + ?Sized>(
    engine: &mut E,
    calls: &mut [OwnedCall],
    times: u32,
) -> Result {
    (0..times).try_for_each(|_| match &mut *calls {
        [call] => engine.run(call.as_call()),
        calls => engine.run_group(calls.iter_mut().map(OwnedCall::as_call).collect()),
    })
}

/// The first call with buffers in device memory.
pub(crate) fn first_device_buffer(calls: &[OwnedCall]) -> Result<Option<(CallKind, MemorySpace)>> {
    let mut spaces = calls.iter().map(|call| Ok((call.kind, call.space()?)));
    spaces.find(|space| !matches!(space, Ok((_, MemorySpace::Host)))).transpose()
}

fn unsupported_memory(call: &'static str, space: MemorySpace) -> CommError {
    let fix = "copy them to host memory (Buffer::copy_to_host), or create the communicator with \
               nccl::init";
    let what =
        format!("the buffers are in {space}, which this communicator does not support: {fix}");
    CommError::invalid_call(call, what)
}
