//! NCCL and RCCL, loaded at run time.
//!
//! Calls on device buffers ([`Comm::device_buffer`], [`Gpu`]) run in place on the stream of the
//! communicator, after events of other streams and with an event of their own; the host waits for
//! neither ([`Comm::enqueue`]). Host buffers are staged through the device. A bootstrap communicator
//! distributes the unique id; its control plane decides on faults.
//!
//! Every communicator has its own stream and its own queue, so a message that waits for its peer
//! blocks no other communicator. The device must have room for the kernels of all communicators that
//! wait at a time; docs/comm.md has the settings.
//!
//! Differences from the other communicators:
//! - A call mismatch may go undetected and produce wrong results; only [`NcclConfig::debug`] detects
//!   every mismatch. Without it, those that hang are detected.
//! - NCCL has no tags: messages between two ranks must be received in the order in which they were
//!   sent; within a group, they are ordered by tag.
//! - Min and max may drop a NaN.
//! - On the device, an average divides each contribution before the sum and may differ in the last
//!   bits from the sum divided once, which all others compute, including calls on host memory here.
//! - NCCL has no 16-bit integers, and not all versions average signed integers. Those reductions run
//!   via host memory.

mod call;
mod device;
mod device_buffer;
mod enqueue;
mod fault;
mod gpu_event;
mod in_flight;
mod sys;
#[cfg(test)]
mod tests;
mod wait;

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_wire::clock;

use crate::buffer::{Buffer, MemorySpace};
use crate::comm::SharedCalls;
use crate::control::CommMonitor;
use crate::engine::{
    AbortFn, Allocator, BoxEngine, Engine, OnStreamFn, first_device_buffer, run_on_host,
};
use crate::error::Peer;
use crate::gpu_runtime::{Runtime, SUCCESS};
use crate::{Call, CallKind, Collectives, Comm, CommError, Communicator, Event, OwnedCall, Result};
use device::GpuDevice;
use in_flight::{Group, InFlight, Issued, MAX_IN_FLIGHT};
use sys::{IN_PROGRESS, NcclApi, RawComm, RawConfig, UniqueId};

pub use crate::gpu_runtime::Vendor;
pub use device_buffer::Gpu;

/// Configuration of a communicator.
#[derive(Debug, Clone, Copy)]
pub struct NcclConfig {
    /// The GPU vendor.
    pub vendor: Vendor,
    /// This rank's device, by its index among those visible to the runtime.
    pub device: u32,
    /// Timeout of a collective.
    pub desync_after: Duration,
    /// Compare signatures before each collective. Must be equal on all ranks.
    pub debug: bool,
    /// Use NCCL in blocking mode. Saves about 20 µs per call, because NCCL needs no helper thread,
    /// but a peer that dies before it is connected blocks this rank for about a minute, and a
    /// stopped peer blocks it until it continues.
    pub blocking: bool,
}

/// One rank.
struct NcclEngine {
    api: Arc<NcclApi>,
    rank: u32,
    peers: Vec<Peer>,
    raw: RawComm,
    device: Arc<GpuDevice>,
    /// Device memory for host data, for copies and for barriers.
    staging: Buffer,
    config: NcclConfig,
    /// Allocates device buffers for the caller.
    gpu: Gpu,
    /// Counts the collectives and decides on faults.
    monitor: Arc<CommMonitor>,
    /// The calls on the stream, in order.
    in_flight: VecDeque<InFlight>,
    /// When the calls in flight are next checked for faults.
    next_fault_check: Instant,
    /// Distributes unique ids, splits communicators and compares calls in debug mode.
    bootstrap: Arc<dyn Comm>,
}

// SAFETY: the raw communicator may be used by any one thread at a time; `&mut self` ensures that.
unsafe impl Send for NcclEngine {}

/// Creates a device communicator for the ranks of `bootstrap`, which it keeps.
pub fn init(bootstrap: Box<dyn Comm>, config: NcclConfig) -> Result<Communicator> {
    let (runtime, api) = open(config.vendor)?;
    let gpu = Gpu::with_runtime(Arc::new(runtime), config.device);
    let engine = NcclEngine::join(gpu, Arc::new(api), bootstrap.into(), config)?;
    Ok(Communicator::new(Box::new(engine)))
}

/// Loads the runtime first: NCCL needs it, and may not find it by itself.
fn open(vendor: Vendor) -> Result<(Runtime, NcclApi)> {
    let runtime = Runtime::open(vendor)?;
    Ok((runtime, NcclApi::open(vendor)?))
}

/// Number of devices visible to the runtime.
pub fn device_count(vendor: Vendor) -> Result<u32> {
    let (runtime, _api) = open(vendor)?;
    let mut count = 0;
    // SAFETY: the function writes one integer.
    let code = unsafe { (runtime.get_device_count)(&mut count) };
    device::check(&runtime, "counting the devices", code)?;
    Ok(count.unsigned_abs())
}

/// PCI bus id of a device, such as `0000:07:00.0`, by its runtime index.
pub fn pci_bus_id(vendor: Vendor, device: u32) -> Result<String> {
    let (runtime, _api) = open(vendor)?;
    let mut text = [0 as c_char; PCI_BUS_ID_BYTES];
    let query = runtime.device_get_pci_bus_id;
    // SAFETY: the function writes at most this many bytes, including the terminating 0.
    let code = unsafe { query(text.as_mut_ptr(), PCI_BUS_ID_BYTES as c_int, device as c_int) };
    device::check(&runtime, &format!("PCI bus id of device {device}"), code)?;
    let bytes = text.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8);
    Ok(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).to_lowercase())
}

/// Buffer size for a PCI bus id.
pub const PCI_BUS_ID_BYTES: usize = 32;

/// Version of the library.
pub fn version(vendor: Vendor) -> Result<String> {
    let (_runtime, api) = open(vendor)?;
    let mut version = 0;
    // SAFETY: the function writes one integer.
    check(&api, "library version", unsafe { (api.get_version)(&mut version) })?;
    // Versions before 2.9 are encoded with one digit less for the minor version.
    let major = if version < 10_000 { 1000 } else { 10_000 };
    let (minor, patch) = (version % major / 100, version % 100);
    Ok(format!("{}.{minor}.{patch}", version / major))
}

impl NcclEngine {
    fn join(
        gpu: Result<Gpu>,
        api: Arc<NcclApi>,
        bootstrap: Arc<dyn Comm>,
        config: NcclConfig,
    ) -> Result<Self> {
        let opened = gpu.and_then(|gpu| {
            let stream = GpuDevice::open(gpu.runtime(), config.device)?;
            Ok((gpu, Arc::new(stream)))
        });
        let (gpu, device) = all_ranks_have_devices(bootstrap.as_ref(), opened)?;
        Self::connect(gpu, api, device, bootstrap.clone(), config)
            .inspect_err(|error| bootstrap.abort(&error.to_string()))
    }

    /// Initialises the communicator once all ranks have opened their devices.
    fn connect(
        gpu: Gpu,
        api: Arc<NcclApi>,
        device: Arc<GpuDevice>,
        bootstrap: Arc<dyn Comm>,
        config: NcclConfig,
    ) -> Result<Self> {
        let _guard = device.make_current()?;
        let mut id = UniqueId([0; 128]);
        if bootstrap.rank() == 0 {
            // SAFETY: the function writes one id.
            check(&api, "creating a unique id", unsafe { (api.get_unique_id)(&mut id) })?;
        }
        bootstrap.broadcast(&mut id.0, 0)?;
        let monitor = bootstrap.monitor().ok_or_else(|| {
            let what = "the bootstrap communicator has no control plane";
            CommError::bootstrap(what, "create it with hierarchical::join or bootstrap::join")
        })?;
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let mut engine = Self {
            api,
            rank,
            peers: (0..size).map(|r| bootstrap.peer(r)).collect(),
            raw: null_mut(),
            staging: Buffer::default(),
            gpu,
            device,
            config,
            monitor: monitor.derive(2 * MAX_IN_FLIGHT),
            in_flight: VecDeque::new(),
            next_fault_check: clock::now(),
            bootstrap,
        };
        engine.reserve_staging(0)?;
        let (size, rank) = (size as c_int, rank as c_int);
        let mut raw_config = RawConfig::new(config.blocking);
        let init_rank = engine.api.comm_init_rank_config;
        // SAFETY: the function writes one pointer; all ranks pass the same id and size.
        let code = unsafe { init_rank(&mut engine.raw, size, id, rank, &mut raw_config) };
        let checked = engine.check("communicator initialisation", code);
        let connected =
            checked.and_then(|()| engine.wait_init()).and_then(|()| engine.connect_pair());
        connected.map_err(|error| engine.fail(error)).map(|()| engine)
    }

    /// Rejects a send to or receive from this rank itself, which would deadlock outside a group.
    fn check_not_self(&self, kind: CallKind, peer: u32) -> Result {
        if !kind.is_p2p() || peer != self.rank {
            return Ok(());
        }
        let what = "send to and receive from this rank itself in one group (Comm::run_group)";
        Err(CommError::invalid_call(kind.name(), what))
    }

    /// Checks that calls can run on this rank's device.
    fn check_on_device(&self, calls: &[OwnedCall]) -> Result {
        if let [call] = calls {
            self.check_not_self(call.kind, call.root)?;
        }
        let own = MemorySpace::Device(self.config.device);
        for call in calls {
            let space = call.space()?;
            if space != own {
                let what = format!("the buffers are in {space}, but this rank uses {own}");
                return Err(CommError::invalid_call(call.kind.name(), what));
            }
        }
        Ok(())
    }

    /// Issues calls; a failure aborts the communicator.
    fn issue<R>(
        &mut self,
        group: Group,
        work: impl FnOnce(&mut Self, &Issued) -> Result<R>,
    ) -> Result<R> {
        self.monitor.check_not_failed()?;
        let _guard = self.device.make_current()?;
        let issued = Issued::new(&group, self.monitor.calls() + 1);
        let mut collectives = group.into_iter().filter(|(call, _)| !call.kind.is_p2p());
        let compared = collectives.try_for_each(|(call, _)| {
            self.monitor.begin(&call);
            match self.config.debug {
                true => self.compare_signatures(call, self.monitor.calls()),
                false => Ok(()),
            }
        });
        let done = compared.and_then(|()| work(self, &issued));
        done.map_err(|error| self.fail_with_diagnosis(error, &issued))
    }

    /// What errors need to know of calls.
    fn describe<'c>(&self, calls: impl IntoIterator<Item = &'c Call<'c>>) -> Group {
        let each = |call: &Call| (call.signature(self.peers.len()), call.root);
        calls.into_iter().map(each).collect()
    }

    fn describe_owned(&self, calls: &[OwnedCall]) -> Group {
        let calls: Vec<_> = calls.iter().map(OwnedCall::without_buffers).collect();
        self.describe(&calls)
    }

    /// Fails because work that a call depends on failed: no diagnosis is needed.
    fn fail_dependent(&mut self, error: CommError) -> CommError {
        match error {
            CommError::InvalidCall { .. } => error,
            error => self.fail(error),
        }
    }

    fn check(&self, what: &str, code: c_int) -> Result {
        check(&self.api, what, code)
    }
}

/// Checks that every rank has opened its device: NCCL would wait forever for a missing rank.
fn all_ranks_have_devices<T>(bootstrap: &dyn Comm, opened: Result<T>) -> Result<T> {
    let mut all = vec![0u8; bootstrap.size() as usize];
    bootstrap.all_gather(&[u8::from(opened.is_ok())], &mut all)?;
    let device = opened?;
    match (0..).zip(&all).find(|(_, ready)| **ready == 0) {
        Some((rank, _)) => {
            let why = format!("{} has no device", bootstrap.peer(rank));
            Err(CommError::system("device communicator", why))
        }
        None => Ok(device),
    }
}

/// Converts an NCCL result.
fn check(api: &NcclApi, what: &str, code: c_int) -> Result {
    if matches!(code, SUCCESS | IN_PROGRESS) {
        return Ok(());
    }
    let why = format!("{}; set NCCL_DEBUG=WARN for details", api.error_string(code));
    Err(CommError::system(what, why))
}

impl Engine for NcclEngine {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn peers(&self) -> Vec<Peer> {
        self.peers.clone()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        self.check_not_self(call.kind, call.root)?;
        let group = self.describe([&call]);
        self.issue(group, |engine, issued| engine.run_one_via_host(call, issued))
    }

    fn run_p2p(&mut self, messages: Vec<Call<'_>>) -> Result {
        if messages.is_empty() {
            return Ok(());
        }
        let group = self.describe(&messages);
        self.issue(group, |engine, issued| engine.run_via_host(messages, issued))
    }

    fn run_owned(&mut self, calls: &mut [OwnedCall], times: u32) -> Result {
        if first_device_buffer(calls)?.is_none() {
            return run_on_host(self, calls, times);
        }
        self.check_on_device(calls)?;
        let group = self.describe_owned(calls);
        for _ in 0..times {
            self.issue(group.clone(), |engine, issued| engine.run_on_device(calls, issued))?;
        }
        let _guard = self.device.make_current()?;
        self.wait_idle()
    }

    fn on_stream_fn(&self) -> Option<OnStreamFn> {
        let own = MemorySpace::Device(self.config.device);
        Some(Arc::new(move |owned| owned.space() == Ok(own) && !call::needs_host(owned)))
    }

    fn enqueue(&mut self, calls: &SharedCalls, after: &[Event]) -> Result<Event> {
        let memory = calls.clone();
        let calls = calls.lock();
        self.check_on_device(&calls)?;
        let all: Vec<&OwnedCall> = calls.iter().collect();
        self.issue(self.describe_owned(&calls), |engine, issued| {
            engine.enqueue_group(&all, after, issued, Some(memory))
        })
    }

    fn poll(&mut self) -> bool {
        let guard = self.device.make_current();
        // The events in flight and all further calls return the error.
        let _ = guard.and_then(|_guard| self.poll_in_flight());
        !self.in_flight.is_empty()
    }

    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>> {
        let Some(bootstrap) = self.bootstrap.split(colour, key)? else { return Ok(None) };
        let (gpu, api) = (Ok(self.gpu.clone()), self.api.clone());
        Ok(Some(Box::new(Self::join(gpu, api, bootstrap.into(), self.config)?)))
    }

    fn allocator(&self) -> Allocator {
        let gpu = self.gpu.clone();
        let device = Arc::new(move |bytes| gpu.buffer(bytes));
        Allocator { host: Arc::new(Buffer::zeroed), device: Some(device) }
    }

    fn abort_fn(&self) -> AbortFn {
        let (abort, bootstrap) = (self.monitor.abort_fn(), self.bootstrap.clone());
        Arc::new(move |why| {
            abort(why);
            bootstrap.abort(why);
        })
    }

    fn monitor(&self) -> Option<Arc<CommMonitor>> {
        Some(self.monitor.clone())
    }
}

impl Drop for NcclEngine {
    fn drop(&mut self) {
        let _guard = self.device.make_current();
        self.finalize();
        self.monitor.close(Vec::new());
    }
}
