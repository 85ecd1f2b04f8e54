//! Collectives of NCCL or RCCL, which are opened at run time.
//!
//! What lies in host memory goes through the device and back. Ranks meet through another
//! communicator, which tells them where. The library has no tags: messages between two ranks must be
//! received in the order in which they were sent. Its least and greatest of what is not a number may
//! be a number.

mod call;
mod device;
mod sys;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::background::{Abort, Background, Engine};
use crate::error::Peer;
use crate::{Call, Collectives, Comm, CommError};
use device::{Device, DeviceMemory};
use sys::{Functions, IN_PROGRESS, OK, RawComm, UniqueId};

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
}

/// One rank.
struct Nccl {
    rank: u32,
    peers: Vec<Peer>,
    raw: RawComm,
    device: Device,
    /// Room on the device for what goes in and what comes out.
    input: DeviceMemory,
    output: DeviceMemory,
    settings: Settings,
    aborted: Arc<AtomicBool>,
    failed: bool,
    /// How the ranks met, and how their parts meet.
    meeting: Box<dyn Comm>,
}

// SAFETY: the library's communicator may be used by any thread, one at a time, as `&mut` sees to.
unsafe impl Send for Nccl {}

/// A communicator on devices for the ranks of another one, which it keeps.
pub fn over(meeting: Box<dyn Comm>, settings: Settings) -> Result<Background, CommError> {
    let functions = Arc::new(Functions::open(settings.vendor)?);
    Ok(Background::new(Box::new(Nccl::join(functions, meeting, settings)?)))
}

impl Nccl {
    fn join(
        functions: Arc<Functions>,
        meeting: Box<dyn Comm>,
        settings: Settings,
    ) -> Result<Self, CommError> {
        let device = Device::open(functions.clone(), settings.device)?;
        let mut id = UniqueId([0; 128]);
        if meeting.rank() == 0 {
            // SAFETY: the function writes one id.
            explain(&functions, "a meeting place", unsafe { (functions.unique_id)(&mut id) })?;
        }
        meeting.broadcast(&mut id.0, 0)?;
        let (rank, size) = (meeting.rank(), meeting.size());
        let mut raw = null_mut();
        // SAFETY: the function writes one pointer; all ranks give the same id and size.
        let code = unsafe { (functions.init)(&mut raw, size as c_int, id, rank as c_int) };
        explain(&functions, "a communicator", code)?;
        Ok(Self {
            rank,
            peers: (0..size).map(|r| meeting.peer(r)).collect(),
            raw,
            input: device.memory(1)?,
            output: device.memory(1)?,
            device,
            settings,
            aborted: Arc::default(),
            failed: false,
            meeting,
        })
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

    /// Waits until the device has done what is queued; not for ever, and not if the library knows
    /// of a failure.
    fn settle(&self, call: &str) -> Result<(), CommError> {
        let start = Instant::now();
        self.device.settle(|| {
            let mut code = OK;
            // SAFETY: the communicator is ours; the function writes one number.
            unsafe { (self.device.functions.async_error)(self.raw, &mut code) };
            if code != OK && code != IN_PROGRESS {
                explain(&self.device.functions, call, code)?;
            }
            if self.aborted.load(Ordering::Relaxed) {
                let by = self.peers[self.rank as usize].clone();
                return Err(CommError::Aborted { by, why: "it was asked to".to_owned() });
            }
            let limit = self.settings.desync_after;
            let others = || self.peers.iter().filter(|p| p.rank != self.rank).cloned();
            match start.elapsed() < limit {
                true => Ok(()),
                false => Err(CommError::Late {
                    call: call.to_owned(),
                    seconds: limit.as_secs(),
                    missing: others().collect(),
                }),
            }
        })
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
        self.device.select()?;
        let done = self.staged(call);
        self.failed |= done.is_err();
        done
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError> {
        let Some(part) = self.meeting.split(colour, key)? else { return Ok(None) };
        let functions = self.device.functions.clone();
        Ok(Some(Box::new(Self::join(functions, part, self.settings)?)))
    }

    fn abort(&self) -> Abort {
        let aborted = self.aborted.clone();
        Arc::new(move |_| aborted.store(true, Ordering::Relaxed))
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let functions = &self.device.functions;
        // To destroy it sees to it that the others get what was sent to them; where that will never
        // be, it is aborted.
        let end = if self.failed { functions.abort } else { functions.destroy };
        // SAFETY: the communicator is ours, and nobody uses it any more.
        unsafe { end(self.raw) };
    }
}
