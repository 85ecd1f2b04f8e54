//! Collectives of NCCL or RCCL, which are opened at run time.
//!
//! Calls on buffers of the device ([`Comm::device_buffer`], [`Gpu`]) are done where they lie, on a
//! stream of the communicator; what lies in host memory goes through the device and back. Ranks
//! meet through another communicator, which tells them where, and by which they find out what is
//! wrong.
//!
//! All communicators that are split off one stand in one line with it, and their calls are done one after the
//! other: the library does not promise more. So all ranks must call them in the same order, whichever
//! communicator they are of.
//!
//! Where the library differs from other communicators:
//! - Ranks that call different things may all be done, with wrong numbers: only
//!   [`Settings::debug`] finds all of them. Of the rest those are found that do not end.
//! - It has no tags: messages between two ranks must be received in the order in which they were
//!   sent; in a group, they go in the order of their tags.
//! - Its least and greatest of what is not a number may be a number.
//! - On the device, an average of floats is the sum of what each rank has, divided first: it may
//!   differ in the last bits from the sum divided once, which all others give, and so do calls on
//!   host memory here.
//! - It has no 16-bit integers, and not all versions average signed ones. Those reductions go
//!   through host memory wherever the buffers lie.

mod call;
mod device;
mod fault;
mod gpu;
mod queue;
mod sys;
mod wait;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::background::{Abort, Background, Engine, Memory, Over, apart, elsewhere};
use crate::buffer::{Buffer, Space};
use crate::error::Peer;
use crate::{Call, Collectives, Comm, CommError, Kind, OwnedCall, Signature};
use device::{Device, DeviceMemory};
use sys::{Config, Functions, IN_PROGRESS, OK, RawComm, UniqueId};

pub use gpu::Gpu;
pub use sys::Vendor;

/// How ranks use their devices.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Whose library.
    pub vendor: Vendor,
    /// The device of this rank, as the runtime counts those that it sees.
    pub device: u32,
    /// How long a collective may take when others do not come.
    pub desync_after: Duration,
    /// Whether all ranks compare what they call before any data moves. The same for all ranks.
    pub debug: bool,
    /// Whether the library may keep this rank waiting. Each call is then about 20 µs shorter, as the
    /// library needs no thread for it; but a rank that dies before it is connected with another
    /// keeps that one for as long as the library tries, about a minute, or, if it is only stopped,
    /// until it goes on.
    pub blocking: bool,
}

/// One rank.
struct Nccl {
    rank: u32,
    peers: Vec<Peer>,
    raw: RawComm,
    device: Arc<Device>,
    /// Room on the device for what goes in and what comes out.
    input: DeviceMemory,
    output: DeviceMemory,
    settings: Settings,
    /// Where buffers come from.
    gpu: Gpu,
    /// How many collectives were begun.
    calls: u64,
    /// Why it is to give up.
    aborted: Arc<OnceLock<String>>,
    /// After an error there is nothing but that error.
    failed: Option<CommError>,
    /// How the ranks met, how their parts meet, and how they find out what is wrong.
    meeting: Arc<dyn Comm>,
}

// SAFETY: the library's communicator may be used by any thread, one at a time, as `&mut` sees to.
unsafe impl Send for Nccl {}

/// A communicator on devices for the ranks of another one, which it keeps.
pub fn over(meeting: Box<dyn Comm>, settings: Settings) -> Result<Background, CommError> {
    let functions = Arc::new(Functions::open(settings.vendor)?);
    Ok(Background::new(Box::new(Nccl::join(functions, meeting.into(), settings)?)))
}

/// How many devices the runtime sees.
pub fn devices(vendor: Vendor) -> Result<u32, CommError> {
    let functions = Functions::open(vendor)?;
    let mut count = 0;
    // SAFETY: the function writes one number.
    match unsafe { (functions.device_count)(&mut count) } {
        OK => Ok(count.unsigned_abs()),
        code => Err(CommError::System {
            what: "the number of devices".to_owned(),
            why: functions.explain_runtime(code),
        }),
    }
}

/// The library's version.
pub fn version(vendor: Vendor) -> Result<String, CommError> {
    let functions = Functions::open(vendor)?;
    let mut number = 0;
    // SAFETY: the function writes one number.
    explain(&functions, "the version", unsafe { (functions.version)(&mut number) })?;
    // Before 2.9 a part less was in the number.
    let (major, rest) = if number < 10_000 { (1000, 100) } else { (10_000, 100) };
    let (minor, patch) = (number % major / rest, number % rest);
    Ok(format!("{}.{minor}.{patch}", number / major))
}

impl Nccl {
    fn join(
        functions: Arc<Functions>,
        meeting: Arc<dyn Comm>,
        settings: Settings,
    ) -> Result<Self, CommError> {
        let device = all_ready(meeting.as_ref(), Device::open(functions.clone(), settings.device))?;
        Self::connect(Arc::new(device), meeting.clone(), settings)
            .inspect_err(|error| meeting.abort(&error.to_string()))
    }

    /// Connects the devices of ranks that all have one.
    fn connect(
        device: Arc<Device>,
        meeting: Arc<dyn Comm>,
        settings: Settings,
    ) -> Result<Self, CommError> {
        let functions = device.functions.clone();
        let _selected = device.select()?;
        let mut id = UniqueId([0; 128]);
        if meeting.rank() == 0 {
            // SAFETY: the function writes one id.
            explain(&functions, "a meeting place", unsafe { (functions.unique_id)(&mut id) })?;
        }
        meeting.broadcast(&mut id.0, 0)?;
        let (rank, size) = (meeting.rank(), meeting.size());
        let mut nccl = Self {
            rank,
            peers: (0..size).map(|r| meeting.peer(r)).collect(),
            raw: null_mut(),
            input: device.memory(1)?,
            output: device.memory(1)?,
            device,
            settings,
            gpu: Gpu::with(functions.clone(), settings.device)?,
            calls: 0,
            aborted: Arc::default(),
            failed: None,
            meeting,
        };
        let (count, mut config) = (size as c_int, Config::new(settings.blocking));
        // SAFETY: the function writes one pointer; all ranks give the same id and size.
        let code =
            unsafe { (functions.init)(&mut nccl.raw, count, id, rank as c_int, &mut config) };
        let joined = explain(&functions, "a communicator", code).and_then(|()| nccl.awaken());
        joined.map_err(|error| nccl.end(error)).map(|()| nccl)
    }

    /// Makes room for a call.
    fn make_room(&mut self, input: usize, output: usize) -> Result<(), CommError> {
        if self.input.bytes < input {
            self.input = self.device.memory(input.next_power_of_two())?;
        }
        if self.output.bytes < output {
            self.output = self.device.memory(output.next_power_of_two())?;
        }
        Ok(())
    }

    /// A rank that sends to itself waits for itself, unless it does both at once.
    fn not_alone(&self, kind: Kind, other: u32) -> Result<(), CommError> {
        let message = matches!(kind, Kind::Send | Kind::Receive);
        if !message || other != self.rank {
            return Ok(());
        }
        let what = "to oneself one sends and receives in one group (Comm::run_group)".to_owned();
        Err(CommError::Shape { call: kind.name(), what })
    }

    /// What says that buffers lie where this rank does not work.
    fn not_ours(&self, kind: Kind, space: Space) -> CommError {
        let own = Space::Device(self.settings.device);
        let what = format!("its buffers lie in {space}, this rank works in {own}");
        CommError::Shape { call: kind.name(), what }
    }

    /// Does something with the device, and if it fails, ends the communicator.
    fn attempt(
        &mut self,
        call: Signature,
        work: impl FnOnce(&mut Self) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.calls += u64::from(!matches!(call.kind, Kind::Send | Kind::Receive));
        let _selected = self.device.select()?;
        let compared = if self.settings.debug { self.compare(call) } else { Ok(()) };
        compared.and_then(|()| work(self)).map_err(|error| self.give_up(error, call))
    }
}

/// Whether all ranks have their devices: the library would wait for one that does not come for ever.
fn all_ready<T>(meeting: &dyn Comm, opened: Result<T, CommError>) -> Result<T, CommError> {
    let mut all = vec![0u8; meeting.size() as usize];
    meeting.all_gather(&[u8::from(opened.is_ok())], &mut all)?;
    let device = opened?;
    match (0..).zip(&all).find(|(_, ready)| **ready == 0) {
        Some((rank, _)) => Err(CommError::System {
            what: "a communicator on devices".to_owned(),
            why: format!("{} has no device", meeting.peer(rank)),
        }),
        None => Ok(device),
    }
}

/// What a result of the library means.
fn explain(functions: &Functions, what: &str, code: c_int) -> Result<(), CommError> {
    match code {
        OK | IN_PROGRESS => Ok(()),
        code => {
            let why = format!("{}; NCCL_DEBUG=WARN tells more", functions.explain(code));
            Err(CommError::System { what: what.to_owned(), why })
        }
    }
}

impl Engine for Nccl {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn peers(&self) -> Vec<Peer> {
        self.peers.clone()
    }

    fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        self.not_alone(call.kind, call.root)?;
        let signature = call.signature(self.peers.len());
        self.attempt(signature, |nccl| nccl.staged(call))
    }

    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        let (messages, collectives) = apart(calls);
        if let Some(first) = messages.first() {
            let signature = first.signature(self.peers.len());
            self.attempt(signature, |nccl| nccl.staged_messages(messages))?;
        }
        collectives.into_iter().try_for_each(|call| self.run(call))
    }

    fn run_owned(&mut self, call: &mut OwnedCall) -> Result<(), CommError> {
        let own = Space::Device(self.settings.device);
        match call.space()? {
            Space::Host => self.run(call.as_call()),
            space if space == own => self.repeat(call, 1),
            other => Err(self.not_ours(call.kind, other)),
        }
    }

    fn repeat(&mut self, call: &mut OwnedCall, times: u32) -> Result<(), CommError> {
        if call.space()? != Space::Device(self.settings.device) {
            return (0..times).try_for_each(|_| self.run_owned(call));
        }
        self.not_alone(call.kind, call.root)?;
        let signature = call.described().signature(self.peers.len());
        self.attempt(signature, |nccl| nccl.on_device(call, times))
    }

    fn repeat_messages(&mut self, messages: &mut [OwnedCall], times: u32) -> Result<(), CommError> {
        if elsewhere(messages)?.is_none() {
            return (0..times).try_for_each(|_| {
                self.run_group(messages.iter_mut().map(OwnedCall::as_call).collect())
            });
        }
        let own = Space::Device(self.settings.device);
        if let Some(other) = messages.iter().find(|message| message.output.space() != own) {
            return Err(self.not_ours(other.kind, other.output.space()));
        }
        let Some(first) = messages.first() else { return Ok(()) };
        let signature = first.described().signature(self.peers.len());
        self.attempt(signature, |nccl| nccl.messages_on_device(messages, times))
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError> {
        let Some(part) = self.meeting.split(colour, key)? else { return Ok(None) };
        let functions = self.device.functions.clone();
        Ok(Some(Box::new(Self::join(functions, part.into(), self.settings)?)))
    }

    fn memory(&self) -> Memory {
        let gpu = self.gpu.clone();
        let device = Arc::new(move |bytes| gpu.buffer(bytes));
        Memory { host: Arc::new(Buffer::zeroed), device: Some(device) }
    }

    fn in_one_line(&self) -> bool {
        true
    }

    fn close(&mut self) {
        if let Some(raw) = self.given_out() {
            self.farewell(raw);
        }
    }

    fn abort(&self) -> Abort {
        let (aborted, meeting) = (self.aborted.clone(), self.meeting.clone());
        Arc::new(move |why| {
            // The first reason counts.
            let _ = aborted.set(why.to_owned());
            meeting.abort(why);
        })
    }

    fn over(&self) -> Over {
        let meeting = self.meeting.clone();
        Arc::new(move || meeting.is_over())
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.close();
    }
}
