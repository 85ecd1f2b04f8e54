//! NCCL and RCCL, loaded at run time.
//!
//! Calls on device buffers ([`Comm::device_buffer`], [`Gpu`]) run in place on a stream of the
//! communicator; host buffers are staged through the device. A bootstrap communicator distributes
//! the unique id and diagnoses faults.
//!
//! All communicators split off one share its ticket queue, and their calls run one after the other,
//! because NCCL does not guarantee more. All ranks must therefore issue their calls in the same
//! order across these communicators.
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
mod sys;
mod wait;

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::buffer::{Buffer, MemorySpace};
use crate::engine::{AbortFn, Allocator, BoxEngine, Engine, HasFailedFn, first_device_buffer};
use crate::error::Peer;
use crate::gpu_runtime::{Runtime, SUCCESS};
use crate::{
    Call, CallKind, Collectives, Comm, CommError, Communicator, OwnedCall, Result, Signature,
};
use device::{DeviceMemory, GpuDevice};
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
    /// Staging buffers on the device.
    input: DeviceMemory,
    output: DeviceMemory,
    config: NcclConfig,
    /// Allocates device buffers for the caller.
    gpu: Gpu,
    /// Sequence number of the last collective.
    calls: u64,
    /// Why this rank aborted.
    aborted: Arc<OnceLock<String>>,
    /// The error that every further call returns.
    failed: Option<CommError>,
    /// Distributes unique ids, splits communicators and diagnoses faults.
    bootstrap: Arc<dyn Comm>,
}

// SAFETY: the raw communicator may be used by any one thread at a time; `&mut self` ensures that.
unsafe impl Send for NcclEngine {}

/// Creates a device communicator for the ranks of `bootstrap`, which it keeps.
pub fn init(bootstrap: Box<dyn Comm>, config: NcclConfig) -> Result<Communicator> {
    let (runtime, api) = open(config.vendor)?;
    let engine = NcclEngine::join(Arc::new(runtime), Arc::new(api), bootstrap.into(), config)?;
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
        runtime: Arc<Runtime>,
        api: Arc<NcclApi>,
        bootstrap: Arc<dyn Comm>,
        config: NcclConfig,
    ) -> Result<Self> {
        let device = GpuDevice::open(runtime, config.device);
        let device = all_ranks_have_devices(bootstrap.as_ref(), device)?;
        Self::connect(api, Arc::new(device), bootstrap.clone(), config)
            .inspect_err(|error| bootstrap.abort(&error.to_string()))
    }

    /// Initialises the communicator once all ranks have opened their devices.
    fn connect(
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
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let mut engine = Self {
            api,
            rank,
            peers: (0..size).map(|r| bootstrap.peer(r)).collect(),
            raw: null_mut(),
            input: device.alloc(1)?,
            output: device.alloc(1)?,
            gpu: Gpu::with_runtime(device.runtime.clone(), config.device)?,
            device,
            config,
            calls: 0,
            aborted: Arc::default(),
            failed: None,
            bootstrap,
        };
        let (size, rank) = (size as c_int, rank as c_int);
        let mut raw_config = RawConfig::new(config.blocking);
        let init_rank = engine.api.comm_init_rank_config;
        // SAFETY: the function writes one pointer; all ranks pass the same id and size.
        let code = unsafe { init_rank(&mut engine.raw, size, id, rank, &mut raw_config) };
        let checked = engine.check("communicator initialisation", code);
        let connected = checked.and_then(|()| engine.wait_init());
        connected.map_err(|error| engine.fail(error)).map(|()| engine)
    }

    /// Grows the staging buffers to these sizes.
    fn reserve_staging(&mut self, input: usize, output: usize) -> Result {
        if self.input.bytes < input {
            self.input = self.device.alloc(input.next_power_of_two())?;
        }
        if self.output.bytes < output {
            self.output = self.device.alloc(output.next_power_of_two())?;
        }
        Ok(())
    }

    /// Rejects a send to or receive from this rank itself, which would deadlock outside a group.
    fn check_not_self(&self, kind: CallKind, peer: u32) -> Result {
        if !kind.is_p2p() || peer != self.rank {
            return Ok(());
        }
        let what = "send to and receive from this rank itself in one group (Comm::run_group)";
        Err(CommError::invalid_call(kind.name(), what))
    }

    fn wrong_memory_space(&self, kind: CallKind, space: MemorySpace) -> CommError {
        let own = MemorySpace::Device(self.config.device);
        let what = format!("the buffers are in {space}, but this rank uses {own}");
        CommError::invalid_call(kind.name(), what)
    }

    /// Runs device work; a failure aborts the communicator.
    fn run_guarded(&mut self, call: Signature, work: impl FnOnce(&mut Self) -> Result) -> Result {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.calls += u64::from(!call.kind.is_p2p());
        let _guard = self.device.make_current()?;
        let compared = if self.config.debug { self.compare_signatures(call) } else { Ok(()) };
        compared.and_then(|()| work(self)).map_err(|error| self.fail_with_diagnosis(error, call))
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
        let signature = call.signature(self.peers.len());
        self.run_guarded(signature, |engine| engine.run_via_host(call))
    }

    fn run_p2p(&mut self, messages: Vec<Call<'_>>) -> Result {
        let Some(first) = messages.first() else { return Ok(()) };
        let signature = first.signature(self.peers.len());
        self.run_guarded(signature, |engine| engine.run_p2p_via_host(messages))
    }

    fn run_owned(&mut self, call: &mut OwnedCall) -> Result {
        let own = MemorySpace::Device(self.config.device);
        match call.space()? {
            MemorySpace::Host => self.run(call.as_call()),
            space if space == own => self.repeat(call, 1),
            other => Err(self.wrong_memory_space(call.kind, other)),
        }
    }

    fn repeat(&mut self, call: &mut OwnedCall, times: u32) -> Result {
        if call.space()? != MemorySpace::Device(self.config.device) {
            return (0..times).try_for_each(|_| self.run_owned(call));
        }
        self.check_not_self(call.kind, call.root)?;
        let signature = call.without_buffers().signature(self.peers.len());
        self.run_guarded(signature, |engine| engine.run_on_device(call, times))
    }

    fn repeat_p2p(&mut self, messages: &mut [OwnedCall], times: u32) -> Result {
        if first_device_buffer(messages)?.is_none() {
            return (0..times).try_for_each(|_| {
                self.run_p2p(messages.iter_mut().map(OwnedCall::as_call).collect())
            });
        }
        let own = MemorySpace::Device(self.config.device);
        if let Some(other) = messages.iter().find(|message| message.output.space() != own) {
            return Err(self.wrong_memory_space(other.kind, other.output.space()));
        }
        let Some(first) = messages.first() else { return Ok(()) };
        let signature = first.without_buffers().signature(self.peers.len());
        self.run_guarded(signature, |engine| engine.run_p2p_on_device(messages, times))
    }

    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>> {
        let Some(bootstrap) = self.bootstrap.split(colour, key)? else { return Ok(None) };
        let (runtime, api) = (self.device.runtime.clone(), self.api.clone());
        Ok(Some(Box::new(Self::join(runtime, api, bootstrap.into(), self.config)?)))
    }

    fn allocator(&self) -> Allocator {
        let gpu = self.gpu.clone();
        let device = Arc::new(move |bytes| gpu.buffer(bytes));
        Allocator { host: Arc::new(Buffer::zeroed), device: Some(device) }
    }

    fn serialized(&self) -> bool {
        true
    }

    fn close(&mut self) {
        if let Some(raw) = self.take_raw() {
            self.finalize(raw);
        }
    }

    fn abort_fn(&self) -> AbortFn {
        let (aborted, bootstrap) = (self.aborted.clone(), self.bootstrap.clone());
        Arc::new(move |why| {
            // Only the first reason is kept.
            let _ = aborted.set(why.to_owned());
            bootstrap.abort(why);
        })
    }

    fn has_failed_fn(&self) -> HasFailedFn {
        let bootstrap = self.bootstrap.clone();
        Arc::new(move || bootstrap.has_failed())
    }
}

impl Drop for NcclEngine {
    fn drop(&mut self) {
        self.close();
    }
}
