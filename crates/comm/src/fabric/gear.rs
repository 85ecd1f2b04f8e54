//! Operations on the endpoint, with the memory that they need until they are over.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::abi::Context;
use super::opening::{Kind, OPENING, Opening};
use super::port::{Facts, Port};
use super::tag::Tags;
use crate::buffer::Buffer;

/// Bytes of an opening with its short message, unless the provider would rather have fewer: what
/// most of them send without asking first.
const SHORT: usize = 16 << 10;

/// Bytes of a part, unless the provider takes fewer: what is reduced then is still in the cache.
const PART: usize = 256 << 10;

/// Parts begin at multiples of this, so that no element is cut.
const GRAIN: usize = 64;

/// So many openings may come before one is looked at.
const OPENINGS: usize = 64;

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// An opening may come.
    Hear,
    /// An opening goes to a rank.
    Open(u32),
    /// A part of the message of this number goes out.
    Out(u64),
    /// A part of the message of this number comes: where it begins, and its bytes.
    In(u64, usize, usize),
}

/// An operation that goes on.
pub struct Flight {
    pub work: Work,
    /// Our memory, if it is of ours.
    pub stage: Option<Stage>,
    /// The communicator whose memory it is, if it is of a caller.
    pub lent: Option<u64>,
}

/// Memory of our own, which the provider knows.
pub struct Stage {
    buffer: Buffer,
    region: *mut c_void,
}

impl Stage {
    pub fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }
}

/// Memory of a caller, and of which communicator.
#[derive(Clone, Copy)]
pub struct Lent {
    pub start: *mut u8,
    pub channel: u64,
}

// SAFETY: the memory is only touched by whoever holds the lock of the mesh; that it is valid is
// promised where it was posted.
unsafe impl Send for Lent {}

/// The endpoint and what is under way on it.
pub struct Gear {
    port: Port,
    slots: Vec<Slot>,
    free: Vec<usize>,
    short: Vec<Stage>,
    long: Vec<Stage>,
    tags: Tags,
    job: u64,
    me: u32,
    hearing: usize,
    /// Bytes of an opening and its short message.
    short_bytes: usize,
    /// Bytes of a part.
    pub part: usize,
    /// Something could not be posted, and must be tried again.
    pub stuck: bool,
}

struct Slot {
    context: NonNull<Context>,
    flight: Option<Flight>,
}

// SAFETY: all memory is owned, or lent as `Transport` says; regions may be used by any thread.
unsafe impl Send for Gear {}

impl Gear {
    pub fn new(port: Port, tags: Tags, job: u64, me: u32) -> Self {
        let facts = port.facts();
        // What a provider takes at once has left when it says so; what it only refers to, as shm
        // does from 4 KiB on, has not, and this rank may be gone before it is fetched.
        let short = if facts.inject >= 1024 { facts.inject.min(SHORT) } else { SHORT };
        let short_bytes = short.min(facts.longest);
        let part = PART.min(facts.longest / GRAIN * GRAIN).max(GRAIN);
        Self {
            port,
            slots: Vec::new(),
            free: Vec::new(),
            short: Vec::new(),
            long: Vec::new(),
            tags,
            job,
            me,
            hearing: 0,
            short_bytes,
            part,
            stuck: false,
        }
    }

    pub fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    pub fn facts(&self) -> &Facts {
        self.port.facts()
    }

    /// The longest message that goes with its opening.
    pub fn longest_short(&self) -> usize {
        self.short_bytes.saturating_sub(OPENING)
    }

    /// Whether callers' memory may be used as it is.
    fn is_direct(&self) -> bool {
        !self.port.facts().registered
    }

    /// Sends an opening, and with it a short message. False: not now.
    pub fn open(&mut self, to: u32, kind: Kind, message: &[u8]) -> Result<bool, String> {
        let mut stage = self.stage(false)?;
        let opening = Opening { job: self.job, from: self.me, kind };
        let bytes = stage.buffer.bytes_mut();
        opening.encode(bytes);
        bytes[OPENING..OPENING + message.len()].copy_from_slice(message);
        let length = OPENING + message.len();
        let tag = self.tags.opening();
        self.fly(Work::Open(to), Some(stage), None, |port, start, region, context| {
            // SAFETY: the stage and the context stay with the flight.
            unsafe { port.send(to, (start, length), region, tag, context) }
        })
    }

    /// Sends a part: of a caller's memory, or if that is taken back, anything. False: not now.
    pub fn send_part(
        &mut self,
        message: u64,
        to: u32,
        number: u64,
        from: Option<Lent>,
        size: usize,
    ) -> Result<bool, String> {
        let (stage, lent) = match from {
            Some(lent) if self.is_direct() => (None, Some(lent)),
            from => {
                let mut stage = self.stage(true)?;
                if let Some(from) = from {
                    // SAFETY: it is lent, and there is room for a part.
                    let bytes = unsafe { std::slice::from_raw_parts(from.start, size) };
                    stage.buffer.bytes_mut()[..size].copy_from_slice(bytes);
                }
                (Some(stage), None)
            }
        };
        let tag = self.tags.part(self.me, number);
        self.fly(Work::Out(message), stage, lent, |port, start, region, context| {
            // SAFETY: what is lent is so until the flight is over, and the rest stays with it.
            unsafe { port.send(to, (start, size), region, tag, context) }
        })
    }

    /// Receives a part: into a caller's memory, or for us to put it where it belongs. False: not
    /// now.
    pub fn receive_part(
        &mut self,
        work: Work,
        (from, number): (u32, u64),
        into: Option<Lent>,
        size: usize,
    ) -> Result<bool, String> {
        let lent = into.filter(|_| self.is_direct());
        let stage = if lent.is_some() { None } else { Some(self.stage(true)?) };
        let tag = self.tags.part(from, number);
        self.fly(work, stage, lent, |port, start, region, context| {
            // SAFETY: as for what is sent.
            unsafe { port.receive((start, size), region, tag, context) }
        })
    }

    /// Sees to it that openings can come.
    pub fn listen(&mut self) -> Result<(), String> {
        let wanted = OPENINGS.min(self.facts().receives / 2).max(1);
        while self.hearing < wanted {
            let (stage, length, tag) = (self.stage(false)?, self.short_bytes, self.tags.opening());
            let posted =
                self.fly(Work::Hear, Some(stage), None, |port, start, region, context| {
                    // SAFETY: the stage and the context stay with the flight.
                    unsafe { port.receive((start, length), region, tag, context) }
                })?;
            if !posted {
                break;
            }
            self.hearing += 1;
        }
        Ok(())
    }

    /// Begins an operation on a stage, or on what is lent.
    fn fly(
        &mut self,
        work: Work,
        mut stage: Option<Stage>,
        lent: Option<Lent>,
        post: impl FnOnce(&mut Port, *mut u8, *mut c_void, *mut Context) -> Result<bool, String>,
    ) -> Result<bool, String> {
        let (start, region) = match (&mut stage, lent) {
            (Some(stage), _) => (stage.buffer.bytes_mut().as_mut_ptr(), stage.region),
            (None, Some(lent)) => (lent.start, std::ptr::null_mut()),
            (None, None) => (std::ptr::null_mut(), std::ptr::null_mut()),
        };
        let number = self.slot();
        let context = self.slots[number].context.as_ptr();
        let posted = post(&mut self.port, start, region, context);
        if matches!(posted, Ok(true)) {
            let lent = lent.map(|lent| lent.channel);
            self.slots[number].flight = Some(Flight { work, stage, lent });
        } else {
            self.stuck = true;
            self.free.push(number);
            self.keep(stage);
        }
        posted
    }

    fn slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            let number = self.slots.len();
            let context = Context { internal: [std::ptr::null_mut(); 8], number };
            // Not a Box, which the provider must not write behind the back of.
            let context = NonNull::from(Box::leak(Box::new(context)));
            self.slots.push(Slot { context, flight: None });
            number
        })
    }

    /// An operation is over.
    pub fn landed(&mut self, context: *mut c_void) -> Option<Flight> {
        let context = NonNull::new(context.cast::<Context>())?;
        // SAFETY: the provider gives back what it was given.
        let number = unsafe { (*context.as_ptr()).number };
        let flight = self.slots.get_mut(number)?.flight.take()?;
        self.free.push(number);
        if flight.work == Work::Hear {
            self.hearing -= 1;
        }
        Some(flight)
    }

    /// Takes memory back.
    pub fn keep(&mut self, stage: Option<Stage>) {
        if let Some(stage) = stage {
            let long = stage.buffer.bytes().len() > self.short_bytes;
            if long { &mut self.long } else { &mut self.short }.push(stage);
        }
    }

    fn stage(&mut self, long: bool) -> Result<Stage, String> {
        let kept = if long { &mut self.long } else { &mut self.short };
        if let Some(stage) = kept.pop() {
            return Ok(stage);
        }
        let bytes = if long { self.part.max(self.short_bytes + 1) } else { self.short_bytes };
        let mut buffer = Buffer::zeroed(bytes);
        let region = self.port.register(buffer.bytes_mut().as_mut_ptr(), bytes)?;
        Ok(Stage { buffer, region })
    }

    /// Asks that all operations on memory of a communicator be given up. True: there is none any
    /// more.
    pub fn recall(&mut self, channel: u64, ask: bool) -> bool {
        let of = |slot: &&Slot| slot.flight.as_ref().is_some_and(|f| f.lent == Some(channel));
        let contexts: Vec<_> = self.slots.iter().filter(of).map(|s| s.context.as_ptr()).collect();
        if ask {
            contexts.iter().for_each(|context| self.port.cancel(*context));
        }
        contexts.is_empty()
    }

    /// Whether something still goes out.
    pub fn is_sending(&self) -> bool {
        let out = |work: Work| matches!(work, Work::Open(_) | Work::Out(_));
        self.slots.iter().any(|slot| slot.flight.as_ref().is_some_and(|f| out(f.work)))
    }

    /// Closes the endpoint: no memory is touched any more, and nothing more is completed. A provider
    /// that does nothing by itself touches none if it is not asked, which nobody does from now on.
    /// False: it cannot be closed, and may still touch what is under way.
    pub fn shut(&mut self) -> bool {
        if self.facts().passive {
            return true;
        }
        if !self.port.shut() {
            return false;
        }
        let over: Vec<Flight> = self.slots.iter_mut().filter_map(|s| s.flight.take()).collect();
        over.into_iter().for_each(|flight| self.keep(flight.stage));
        true
    }

    /// Whether something may still come into memory of a communicator's caller.
    pub fn may_write(&self, channel: u64) -> bool {
        let comes = |f: &Flight| f.lent == Some(channel) && matches!(f.work, Work::In(..));
        self.slots.iter().any(|slot| slot.flight.as_ref().is_some_and(comes))
    }

    /// At the end. To close an endpoint in the middle of a transfer crashes some versions of
    /// providers; where nothing moves by itself, it is rather left open.
    pub fn leave(self, unfinished: bool) {
        let busy = |slot: &Slot| slot.flight.as_ref().is_some_and(|f| f.work != Work::Hear);
        if self.facts().passive && (unfinished || self.slots.iter().any(busy)) {
            std::mem::forget(self);
        }
    }
}

impl Drop for Gear {
    fn drop(&mut self) {
        if !self.port.close() {
            // What is still open may write to what it was given at any time: that stays for ever.
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(std::mem::take(&mut self.short));
            std::mem::forget(std::mem::take(&mut self.long));
            return;
        }
        for slot in &self.slots {
            // SAFETY: it was leaked from a box, and the endpoint that used it is closed.
            drop(unsafe { Box::from_raw(slot.context.as_ptr()) });
        }
    }
}
