//! A rank's endpoint of libfabric: addresses, messages, completions. Nothing here waits.

mod closing;

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

use super::abi::{self, Av, AvAttr, Context, Cq, CqAttr, CqEntry, CqError, Domain, Ep, Fabric};
use super::abi::{Fid, Mr};
use super::library::{Library, Offer};

/// An address is not longer than this.
pub const LONGEST_ADDRESS: usize = 512;

/// Providers that are nothing but functions. So is shm, but it leaves memory behind if not closed.
const PASSIVE: [&str; 3] = ["tcp", "net", "udp"];

/// Why nothing goes any more.
const SHUT: &str = "the endpoint is shut";

/// What a provider can do.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, with the layers upon it.
    pub provider: String,
    /// Of which network card or the like.
    pub domain: String,
    /// The longest message.
    pub longest: usize,
    /// What it takes at once, without looking at the memory later.
    pub inject: usize,
    /// How many bits of a tag count.
    pub tag_bits: u32,
    /// How many receives may be posted.
    pub receives: usize,
    /// Whether memory must be registered.
    pub registered: bool,
    /// Whether it does nothing unless it is asked what is done: no thread and no card of its own.
    pub passive: bool,
}

/// What became of operations.
pub enum Completed {
    /// Nothing is new.
    Nothing,
    /// So many are done.
    Some(usize),
    /// One failed: which, and why. `None`: it was cancelled.
    Failed(*mut c_void, Option<String>),
    /// Nothing works any more.
    Broken(String),
}

/// An endpoint and what belongs to it. Objects are null until they are opened.
pub struct Port {
    library: &'static Library,
    offer: Offer,
    facts: Facts,
    fabric: *mut Fabric,
    domain: *mut Domain,
    av: *mut Av,
    cq: *mut Cq,
    ep: *mut Ep,
    /// Whether nothing is posted any more.
    over: bool,
    /// Tells when something is done, if the provider can.
    fd: Option<RawFd>,
    /// By rank.
    addresses: Vec<u64>,
    regions: Vec<*mut Mr>,
    /// How the endpoint is closed, while it only seems that it cannot be.
    #[cfg(test)]
    closing: Option<*const abi::Ops>,
}

// SAFETY: libfabric's objects may be used by any thread, one at a time as was asked for; this one is
// only used with `&mut`, or by reading what stays.
unsafe impl Send for Port {}

/// Turns a result of libfabric's into ours.
macro_rules! ask {
    ($library:expr, $what:literal, $call:expr) => {
        // SAFETY: the objects are open, and what is handed over lives long enough.
        match unsafe { $call } {
            0 => Ok(()),
            code => Err(format!(concat!($what, ": {}"), $library.explain(code))),
        }
    };
}

impl Port {
    /// Opens an offer.
    pub fn open(offer: Offer) -> Result<Self, String> {
        let facts = facts(&offer);
        let none = std::ptr::null_mut;
        let mut port = Self {
            library: offer.library(),
            offer,
            facts,
            fabric: none(),
            domain: std::ptr::null_mut(),
            av: std::ptr::null_mut(),
            cq: std::ptr::null_mut(),
            ep: std::ptr::null_mut(),
            over: false,
            fd: None,
            addresses: Vec::new(),
            regions: Vec::new(),
            #[cfg(test)]
            closing: None,
        };
        let opened = alone(|| port.open_objects());
        // What was opened before something failed is closed with the port.
        opened.map(|()| port)
    }

    fn open_objects(&mut self) -> Result<(), String> {
        let (library, info, none) = (self.library, self.offer.raw(), std::ptr::null_mut());
        // SAFETY: an offer has all its parts.
        self.fabric = unsafe { library.open_fabric((*info).fabric_attr) }
            .map_err(|why| format!("fi_fabric: {why}"))?;
        let fabric = self.fabric;
        let domain = &raw mut self.domain;
        ask!(library, "fi_domain", ((*(*fabric).ops).domain)(fabric, info, domain, none))?;
        let domain = self.domain;
        let (av, ep) = (&raw mut self.av, &raw mut self.ep);
        // SAFETY: an offer has all its parts.
        let kind = match unsafe { (*(*info).domain_attr).av_type } {
            abi::AV_UNSPEC => abi::AV_TABLE,
            only => only,
        };
        let mut attributes = AvAttr { kind, rx_ctx_bits: 0, count: 0, rest: [0; 8] };
        let a = &raw mut attributes;
        ask!(library, "fi_av_open", ((*(*domain).ops).av_open)(domain, a, av, none))?;
        self.open_queue()?;
        ask!(library, "fi_endpoint", ((*(*domain).ops).endpoint)(domain, info, ep, none))?;
        self.bind(self.av.cast(), 0)?;
        self.bind(self.cq.cast(), abi::SEND | abi::RECV)?;
        let ep: *mut Fid = self.ep.cast();
        ask!(library, "fi_enable", ((*(*ep).ops).control)(ep, abi::ENABLE, none))
    }

    fn bind(&self, object: *mut Fid, flags: u64) -> Result<(), String> {
        let ep: *mut Fid = self.ep.cast();
        ask!(self.library, "fi_ep_bind", ((*(*ep).ops).bind)(ep, object, flags))
    }

    /// With a file to wait on if the provider has such.
    fn open_queue(&mut self) -> Result<(), String> {
        let (library, info) = (self.library, self.offer.raw());
        let (domain, cq, none) = (self.domain, &raw mut self.cq, std::ptr::null_mut());
        // SAFETY: an offer has all its parts.
        let size = unsafe { (*(*info).tx_attr).size + (*(*info).rx_attr).size };
        let mut opened = Err(String::new());
        for wait_obj in [abi::WAIT_FD, abi::WAIT_NONE] {
            let format = abi::CQ_FORMAT_MSG;
            let mut attributes = CqAttr { size, flags: 0, format, wait_obj, rest: [0; 8] };
            let a = &raw mut attributes;
            opened = ask!(library, "fi_cq_open", ((*(*domain).ops).cq_open)(domain, a, cq, none));
            if opened.is_ok() {
                self.fd = (wait_obj == abi::WAIT_FD).then(|| self.wait_file()).flatten();
                break;
            }
        }
        opened
    }

    fn wait_file(&self) -> Option<RawFd> {
        let (cq, mut fd): (*mut Fid, c_int) = (self.cq.cast(), -1);
        let into: *mut c_void = (&raw mut fd).cast();
        let told = ask!(self.library, "fi_control", ((*(*cq).ops).control)(cq, abi::GETWAIT, into));
        (told.is_ok() && fd >= 0).then_some(fd)
    }

    /// What the provider can do.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// As if the provider wanted memory to be registered, for which a test finds none that does.
    #[cfg(test)]
    pub fn want_registration(&mut self) {
        self.facts.registered = true;
    }

    /// Where other ranks reach this one.
    pub fn address(&self) -> Result<Vec<u8>, String> {
        let (ep, mut address) = (self.ep, vec![0u8; LONGEST_ADDRESS]);
        let (into, mut length) = (address.as_mut_ptr().cast(), LONGEST_ADDRESS);
        let fid = ep.cast();
        ask!(self.library, "fi_getname", ((*(*ep).cm).getname)(fid, into, &mut length))?;
        address.truncate(length);
        Ok(address)
    }

    /// Where all ranks are, in their order.
    pub fn reach(&mut self, addresses: &[Vec<u8>]) -> Result<(), String> {
        let (av, none) = (self.av, std::ptr::null_mut());
        for (rank, address) in addresses.iter().enumerate() {
            // Some are texts, which end with a zero; some are read up to the longest there is.
            let mut room = [0u8; LONGEST_ADDRESS + 1];
            room[..address.len()].copy_from_slice(address);
            let mut known = abi::ADDR_UNSPEC;
            // SAFETY: the table is open, and the address is one of this provider's.
            let inserted =
                unsafe { ((*(*av).ops).insert)(av, room.as_ptr().cast(), 1, &mut known, 0, none) };
            if inserted != 1 {
                let why = self.library.explain(inserted);
                return Err(format!("fi_av_insert: the address of rank {rank} is refused: {why}"));
            }
            self.addresses.push(known);
        }
        Ok(())
    }

    /// Makes memory known to the provider, if it wants that. It stays so until the port is closed.
    pub fn register(&mut self, start: *mut u8, length: usize) -> Result<*mut c_void, String> {
        if !self.facts.registered {
            return Ok(std::ptr::null_mut());
        }
        let (domain, none) = (self.domain, std::ptr::null_mut());
        let (access, key) = (abi::SEND | abi::RECV, self.regions.len() as u64 + 1);
        let mut region: *mut Mr = std::ptr::null_mut();
        let (fid, start) = (domain.cast(), start.cast_const().cast());
        let into = &raw mut region;
        ask!(
            self.library,
            "fi_mr_reg",
            ((*(*domain).mr).reg)(fid, start, length, access, 0, key, 0, into, none)
        )?;
        self.regions.push(region);
        // SAFETY: an offer has all its parts.
        if unsafe { (*(*self.offer.raw()).domain_attr).mr_mode } & abi::MR_ENDPOINT != 0 {
            let (mr, ep): (*mut Fid, *mut Fid) = (region.cast(), self.ep.cast());
            ask!(self.library, "fi_mr_bind", ((*(*mr).ops).bind)(mr, ep, 0))?;
            ask!(self.library, "fi_mr_enable", ((*(*mr).ops).control)(mr, abi::ENABLE, none))?;
        }
        // SAFETY: it is open.
        Ok(unsafe { (*region).mem_desc })
    }

    /// Sends a message. False: not now.
    ///
    /// # Safety
    /// The bytes and the context must stay until the operation is completed, or the port is shut.
    pub unsafe fn send(
        &mut self,
        to: u32,
        bytes: (*const u8, usize),
        region: *mut c_void,
        tag: u64,
        context: *mut Context,
    ) -> Result<bool, String> {
        let (ep, (start, length)) = (self.ep, bytes);
        if self.over {
            return Err(SHUT.to_owned());
        }
        let address = self.addresses.get(to as usize).copied().unwrap_or(abi::ADDR_UNSPEC);
        // SAFETY: promised by the caller.
        let code = unsafe {
            let send = (*(*ep).tagged).send;
            send(ep, start.cast(), length, region, address, tag, context.cast())
        };
        self.posted("fi_tsend", code)
    }

    /// Receives a message of a tag, from anybody. False: not now.
    ///
    /// # Safety
    /// As for [`Self::send`].
    pub unsafe fn receive(
        &mut self,
        bytes: (*mut u8, usize),
        region: *mut c_void,
        tag: u64,
        context: *mut Context,
    ) -> Result<bool, String> {
        let (ep, (start, length)) = (self.ep, bytes);
        if self.over {
            return Err(SHUT.to_owned());
        }
        // SAFETY: promised by the caller.
        let code = unsafe {
            let receive = (*(*ep).tagged).recv;
            let anybody = abi::ADDR_UNSPEC;
            receive(ep, start.cast(), length, region, anybody, tag, 0, context.cast())
        };
        self.posted("fi_trecv", code)
    }

    fn posted(&self, what: &str, code: isize) -> Result<bool, String> {
        match code {
            0 => Ok(true),
            code if code == -abi::EAGAIN => Ok(false),
            code => Err(format!("{what}: {}", self.library.explain(code))),
        }
    }

    /// Moves what can be moved, and tells what is done.
    pub fn completed(&mut self, entries: &mut [CqEntry]) -> Completed {
        let cq = self.cq;
        // SAFETY: the queue is open, and there is room for so many.
        let code = unsafe { ((*(*cq).ops).read)(cq, entries.as_mut_ptr().cast(), entries.len()) };
        match code {
            code if code == -abi::EAVAIL => self.failed(),
            code if code > 0 => Completed::Some(code as usize),
            code if code == 0 || code == -abi::EAGAIN => Completed::Nothing,
            code => Completed::Broken(format!("fi_cq_read: {}", self.library.explain(code))),
        }
    }

    fn failed(&mut self) -> Completed {
        let cq = self.cq;
        // SAFETY: numbers and pointers, which may be null.
        let mut error: CqError = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open.
        if unsafe { ((*(*cq).ops).readerr)(cq, &mut error, 0) } <= 0 {
            return Completed::Nothing;
        }
        let why = (error.err != abi::ECANCELED).then(|| self.library.explain(error.err));
        Completed::Failed(error.context, why)
    }

    /// Asks that an operation be given up. It is over when that is completed.
    pub fn cancel(&mut self, context: *mut Context) {
        let ep = self.ep;
        if !ep.is_null() {
            // SAFETY: the endpoint is open; of an unknown context it makes nothing. What cannot be
            // cancelled is completed.
            unsafe { ((*(*ep).ops).cancel)(ep.cast(), context.cast()) };
        }
    }

    /// The file to wait on, if the provider allows it now.
    pub fn wait_on(&mut self) -> Result<Option<RawFd>, ()> {
        let Some(fd) = self.fd else { return Ok(None) };
        let (fabric, mut cq): (_, *mut Fid) = (self.fabric, self.cq.cast());
        // SAFETY: both are open.
        match unsafe { ((*(*fabric).ops).trywait)(fabric, &mut cq, 1) } {
            0 => Ok(Some(fd)),
            code if code as isize == -abi::EAGAIN => Err(()),
            _ => Ok(None),
        }
    }
}

fn facts(offer: &Offer) -> Facts {
    let (provider, domain) = offer.name();
    let info = offer.raw();
    // SAFETY: an offer has all its parts.
    unsafe {
        let (ep, rx) = (&*(*info).ep_attr, &*(*info).rx_attr);
        Facts {
            passive: PASSIVE.contains(&provider.split(';').next().unwrap_or_default()),
            provider,
            domain,
            longest: ep.max_msg_size,
            inject: (*(*info).tx_attr).inject_size,
            tag_bits: u64::BITS - ep.mem_tag_format.leading_zeros(),
            receives: rx.size,
            registered: (*(*info).domain_attr).mr_mode & abi::MR_LOCAL != 0,
        }
    }
}

/// One at a time in a process: opening and closing touch what providers share among endpoints.
fn alone<R>(work: impl FnOnce() -> R) -> R {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    work()
}
