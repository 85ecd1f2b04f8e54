//! A libfabric endpoint: addresses, tagged messages and completions. Never blocks.

mod close;
mod connected;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

use crate::FiResult;
use crate::abi::{self, Av, AvAttr, Context, Cq, CqAttr, CqEntry, CqError, Domain, Ep, Fabric};
use crate::abi::{Eq, Fid, Mr, Pep};
use crate::library::InfoList;
use crate::memory::{Memory, MemoryKind, Region};
use close::close;

pub use connected::{ConnectRequest, ConnectedEp, ConnectionEvent, MAX_REQUEST_DATA};

/// Upper limit of an address in bytes.
pub const MAX_ADDRESS_BYTES: usize = 512;

/// Providers that only make progress when polled. shm does as well, but leaks segments if it is not
/// closed.
const MANUAL_PROGRESS: [&str; 3] = ["tcp", "net", "udp"];

/// The provider's handle of a peer's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(u64);

/// The properties of an opened provider.
#[derive(Debug, Clone)]
pub struct ProviderInfo {
    /// The name, with utility layers.
    pub provider: String,
    /// The domain, usually a NIC.
    pub domain: String,
    /// The largest message.
    pub max_msg_size: usize,
    /// The largest injected message, whose buffer may be reused at once.
    pub inject: usize,
    /// The number of usable tag bits.
    pub tag_bits: u32,
    /// The size of the receive queue.
    pub rx_size: usize,
    /// Whether local buffers must be registered.
    pub needs_registration: bool,
    /// Whether the address of memory that a peer reads is virtual, not an offset.
    pub virtual_addresses: bool,
    /// Whether it only makes progress when polled, without threads or hardware of its own.
    pub manual_progress: bool,
    /// Whether each connection has an endpoint of its own (`FI_EP_MSG`).
    pub is_connection_oriented: bool,
}

impl ProviderInfo {
    /// Whether memory must be registered, which peers may read or not.
    pub fn needs_region(&self, memory: &Memory, peers_read: bool) -> bool {
        self.needs_registration || peers_read || memory.kind != MemoryKind::Host
    }
}

/// The result of polling the completion queue.
pub enum PollResult {
    /// The queue is empty.
    Empty,
    /// This many requests completed.
    Done(usize),
    /// A request failed: its context and the reason; `None` if it was cancelled.
    Failed(*mut c_void, Option<String>),
    /// The queue failed.
    Broken(String),
}

/// How to sleep until a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitObject {
    /// The provider has no descriptor to poll.
    None,
    /// Completions are pending.
    Ready,
    /// Becomes readable.
    Fd(RawFd),
}

/// How completions are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// By polling only: some providers make system calls for each completion to wake up others.
    Poll,
    /// With a descriptor to sleep on, if the provider has one.
    Sleep,
}

/// An endpoint and its objects, which are null until they are opened.
pub struct Endpoint {
    /// The fi_info of the provider, whose attributes are never null.
    info_list: InfoList,
    /// The properties of the provider.
    pub info: ProviderInfo,
    fabric: *mut Fabric,
    domain: *mut Domain,
    av: *mut Av,
    cq: *mut Cq,
    ep: *mut Ep,
    /// Of connection-oriented endpoints.
    eq: *mut Eq,
    pep: *mut Pep,
    connected: HashSet<ConnectedEp>,
    /// Whether one of them was not closed, so that its memory may be accessed.
    has_busy_connection: bool,
    wait_mode: WaitMode,
    /// Whether posting is disabled.
    closing: bool,
    /// Becomes readable on a completion, if the provider supports it.
    fd: Option<RawFd>,
    regions: HashSet<Region>,
    last_key: u64,
}

// SAFETY: libfabric objects may be used from any thread, one at a time as requested
// (FI_THREAD_DOMAIN); mutating methods take `&mut self`.
unsafe impl Send for Endpoint {}

/// Calls a libfabric function and converts its error code.
macro_rules! fi_call {
    ($endpoint:expr, $what:literal, $call:expr) => {
        // SAFETY: the objects are open, and the arguments live long enough.
        match unsafe { $call } {
            0 => Ok(()),
            code => Err($endpoint.error($what, code)),
        }
    };
}
use fi_call;

impl Endpoint {
    /// Opens an endpoint of the first provider in a list.
    pub fn open(
        info_list: InfoList,
        (provider, domain): (&str, &str),
        wait_mode: WaitMode,
    ) -> FiResult<Self> {
        let mut endpoint = Self {
            info: provider_info(&info_list, provider, domain),
            info_list,
            fabric: std::ptr::null_mut(),
            domain: std::ptr::null_mut(),
            av: std::ptr::null_mut(),
            cq: std::ptr::null_mut(),
            ep: std::ptr::null_mut(),
            eq: std::ptr::null_mut(),
            pep: std::ptr::null_mut(),
            connected: HashSet::new(),
            has_busy_connection: false,
            wait_mode,
            closing: false,
            fd: None,
            regions: HashSet::new(),
            last_key: 0,
        };
        // After an error, dropping the endpoint closes the objects opened so far.
        serialized(|| endpoint.open_objects()).map(|()| endpoint)
    }

    fn open_objects(&mut self) -> FiResult {
        let InfoList { library, first: info } = self.info_list;
        let (fabric, domain, none) =
            (&raw mut self.fabric, &raw mut self.domain, std::ptr::null_mut());
        fi_call!(self, "fi_fabric", (library.fabric)((*info).fabric_attr, fabric, none))?;
        let fabric = self.fabric;
        fi_call!(self, "fi_domain", ((*(*fabric).ops).domain)(fabric, info, domain, none))?;
        self.open_queue()?;
        if self.info.is_connection_oriented {
            return self.open_listener();
        }
        let domain = self.domain;
        let (av, ep) = (&raw mut self.av, &raw mut self.ep);
        // SAFETY: the attributes of an fi_info are never null.
        let kind = match unsafe { (*(*info).domain_attr).av_type } {
            abi::AV_UNSPEC => abi::AV_TABLE,
            only => only,
        };
        let mut attributes = AvAttr { kind, rx_ctx_bits: 0, rest: [0; 9] };
        let a = &raw mut attributes;
        fi_call!(self, "fi_av_open", ((*(*domain).ops).av_open)(domain, a, av, none))?;
        fi_call!(self, "fi_endpoint", ((*(*domain).ops).endpoint)(domain, info, ep, none))?;
        self.bind(self.av.cast(), 0)?;
        self.bind(self.cq.cast(), abi::SEND | abi::RECV)?;
        self.forbid_cuda_calls();
        let ep: *mut Fid = self.ep.cast();
        fi_call!(self, "fi_enable", ((*(*ep).ops).control)(ep, abi::ENABLE, none))
    }

    /// Keeps the provider from calls of CUDA: those in NCCL's thread wait for its kernels, which wait for that
    /// thread. Providers without such calls do not know the option.
    fn forbid_cuda_calls(&self) {
        let (ep, is_permitted) = (self.ep, false);
        let value: *const c_void = (&raw const is_permitted).cast();
        let (level, name) = (abi::OPT_ENDPOINT, abi::OPT_CUDA_API_PERMITTED);
        // SAFETY: the endpoint and its attributes are open, and the value has the type of the option.
        unsafe {
            if (*self.info_list.first).caps & abi::HMEM != 0 {
                ((*(*ep).ops).setopt)(ep.cast(), level, name, value, size_of::<bool>());
            }
        }
    }

    fn bind(&self, object: *mut Fid, flags: u64) -> FiResult {
        let ep: *mut Fid = self.ep.cast();
        fi_call!(self, "fi_ep_bind", ((*(*ep).ops).bind)(ep, object, flags))
    }

    /// Opens the completion queue, with a wait descriptor if it is wanted and the provider has one.
    fn open_queue(&mut self) -> FiResult {
        let (info, none) = (self.info_list.first, std::ptr::null_mut());
        let (domain, cq) = (self.domain, &raw mut self.cq);
        // SAFETY: the attributes of an fi_info are never null.
        let size = unsafe { (*(*info).tx_attr).size + (*(*info).rx_attr).size };
        let mut opened = Err(String::new());
        let polls = self.wait_mode == WaitMode::Poll;
        for wait_obj in [abi::WAIT_FD, abi::WAIT_NONE].into_iter().skip(usize::from(polls)) {
            let format = abi::CQ_FORMAT_MSG;
            let mut attributes = CqAttr { size, flags: 0, format, wait_obj, rest: [0; 8] };
            let a = &raw mut attributes;
            opened = fi_call!(self, "fi_cq_open", ((*(*domain).ops).cq_open)(domain, a, cq, none));
            if opened.is_ok() {
                self.fd = (wait_obj == abi::WAIT_FD).then(|| self.get_wait_fd()).flatten();
                break;
            }
        }
        opened
    }

    fn get_wait_fd(&self) -> Option<RawFd> {
        let (cq, mut fd): (*mut Fid, c_int) = (self.cq.cast(), -1);
        let into: *mut c_void = (&raw mut fd).cast();
        let got = fi_call!(self, "fi_control", ((*(*cq).ops).control)(cq, abi::GETWAIT, into));
        (got.is_ok() && fd >= 0).then_some(fd)
    }

    /// The version of libfabric.
    pub fn library_version(&self) -> (u32, u32) {
        self.info_list.library.version()
    }

    /// The address of this endpoint, or of the one that listens.
    pub fn address(&self) -> FiResult<Vec<u8>> {
        let mut address = vec![0u8; MAX_ADDRESS_BYTES];
        let (into, mut length) = (address.as_mut_ptr().cast(), MAX_ADDRESS_BYTES);
        let (fid, cm): (*mut Fid, _) = match self.info.is_connection_oriented {
            // SAFETY: open.
            true => (self.pep.cast(), unsafe { (*self.pep).cm }),
            // SAFETY: open.
            false => (self.ep.cast(), unsafe { (*self.ep).cm }),
        };
        fi_call!(self, "fi_getname", ((*cm).getname)(fid, into, &mut length))?;
        address.truncate(length);
        Ok(address)
    }

    /// Inserts the address of a peer.
    pub fn insert_address(&mut self, address: &[u8]) -> FiResult<Address> {
        let (av, none) = (self.av, std::ptr::null_mut());
        if address.len() > MAX_ADDRESS_BYTES {
            return Err(format!("fi_av_insert: the address has {} bytes", address.len()));
        }
        // Some providers expect a NUL-terminated string, others read the maximum length.
        let mut padded = [0u8; MAX_ADDRESS_BYTES + 1];
        padded[..address.len()].copy_from_slice(address);
        let mut handle = abi::ADDR_UNSPEC;
        // SAFETY: the address vector is open, and the address was obtained from this provider.
        let inserted =
            unsafe { ((*(*av).ops).insert)(av, padded.as_ptr().cast(), 1, &mut handle, 0, none) };
        if inserted != 1 {
            let why = self.info_list.library.error_text(inserted);
            return Err(format!("fi_av_insert: address rejected: {why}"));
        }
        Ok(Address(handle))
    }

    /// Registers memory, until the endpoint is closed at the latest. Memory of the host is only registered
    /// if the provider requires it, or if peers may read it.
    pub fn register(&mut self, memory: Memory, peers_read: bool) -> FiResult<Region> {
        if !self.info.needs_region(&memory, peers_read) {
            return Ok(Region::NONE);
        }
        self.last_key += 1;
        let remote = if peers_read { abi::READ | abi::REMOTE_READ } else { 0 };
        let access = abi::SEND | abi::RECV | remote;
        let mr = match (memory.kind, memory.dma_buf) {
            (MemoryKind::Host, None) => self.register_host(memory, access)?,
            _ => self.register_gpu(memory, access)?,
        };
        self.regions.insert(Region(mr));
        // SAFETY: the attributes of an fi_info are never null.
        if unsafe { (*(*self.info_list.first).domain_attr).mr_mode } & abi::MR_ENDPOINT != 0 {
            let (mr, ep): (*mut Fid, *mut Fid) = (mr.cast(), self.ep.cast());
            let none = std::ptr::null_mut();
            fi_call!(self, "fi_mr_bind", ((*(*mr).ops).bind)(mr, ep, 0))?;
            fi_call!(self, "fi_mr_enable", ((*(*mr).ops).control)(mr, abi::ENABLE, none))?;
        }
        Ok(Region(mr))
    }

    fn register_host(&self, memory: Memory, access: u64) -> FiResult<*mut Mr> {
        let (domain, none, key) = (self.domain, std::ptr::null_mut(), self.last_key);
        let mut region: *mut Mr = std::ptr::null_mut();
        let (fid, start, into) = (domain.cast(), memory.start.cast_const().cast(), &raw mut region);
        fi_call!(
            self,
            "fi_mr_reg",
            ((*(*domain).mr).reg)(fid, start, memory.length, access, 0, key, 0, into, none)
        )?;
        Ok(region)
    }

    fn register_gpu(&self, memory: Memory, access: u64) -> FiResult<*mut Mr> {
        let Memory { start, length, kind, dma_buf } = memory;
        let (iface, device) = match kind {
            MemoryKind::Host => (abi::HMEM_SYSTEM, 0),
            MemoryKind::Cuda(device) => (abi::HMEM_CUDA, device),
            MemoryKind::Rocr => (abi::HMEM_ROCR, 0),
        };
        let segment = libc::iovec { iov_base: start.cast(), iov_len: length };
        let descriptor = dma_buf.map(|dma_buf| abi::MrDmaBuf {
            fd: dma_buf.fd,
            offset: dma_buf.offset,
            len: length,
            // The memory starts at the offset from this address.
            base_addr: start.wrapping_sub(dma_buf.offset as usize).cast(),
        });
        let (memory, flags): (*const c_void, _) = match &descriptor {
            Some(descriptor) => ((&raw const *descriptor).cast(), abi::MR_DMABUF),
            None => ((&raw const segment).cast(), 0),
        };
        let attributes = abi::MrAttr {
            memory,
            count: 1,
            access,
            offset: 0,
            requested_key: self.last_key,
            context: std::ptr::null_mut(),
            auth_key_size: 0,
            auth_key: std::ptr::null_mut(),
            iface,
            device: device as u64,
            rest: [0; 8],
        };
        let (domain, mut region): (_, *mut Mr) = (self.domain, std::ptr::null_mut());
        let (fid, a, into) = (domain.cast(), &raw const attributes, &raw mut region);
        fi_call!(self, "fi_mr_regattr", ((*(*domain).mr).regattr)(fid, a, flags, into))?;
        Ok(region)
    }

    /// Posts a tagged send to a peer, or a tagged receive from any sender. Returns false if the caller
    /// must retry.
    ///
    /// # Safety
    /// The bytes and the context must stay valid until the request completes or the endpoint is
    /// closed.
    pub unsafe fn post(
        &mut self,
        to: Option<Address>,
        bytes: *mut [u8],
        region: Region,
        tag: u64,
        context: *mut Context,
    ) -> FiResult<bool> {
        self.check_open()?;
        let (ep, start, length, context) = (self.ep, bytes.cast(), bytes.len(), context.cast());
        let (any_source, region) = (abi::ADDR_UNSPEC, region.descriptor());
        // SAFETY: guaranteed by the caller.
        let (what, code) = unsafe {
            let ops = (*ep).tagged;
            match to {
                Some(Address(to)) => {
                    ("fi_tsend", ((*ops).send)(ep, start, length, region, to, tag, context))
                }
                None => {
                    let recv = (*ops).recv;
                    let code = recv(ep, start, length, region, any_source, tag, 0, context);
                    // So shm says that its receive queue is full.
                    ("fi_trecv", if code == -abi::ENOMEM { -abi::EAGAIN } else { code })
                }
            }
        };
        self.accepted(what, code)
    }

    /// Sends a small message, whose bytes may be reused at once, and which does not complete. Returns false
    /// if the caller must retry.
    pub fn inject(&mut self, Address(to): Address, bytes: &[u8], tag: u64) -> FiResult<bool> {
        self.check_open()?;
        let ep = self.ep;
        let (start, length) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the endpoint is open, and copies the bytes.
        let code = unsafe { ((*(*ep).tagged).inject)(ep, start, length, to, tag) };
        self.accepted("fi_tinject", code)
    }

    /// Posts a read of a peer's memory. Returns false if the caller must retry.
    ///
    /// # Safety
    /// As for [`Self::post`].
    pub unsafe fn read(
        &mut self,
        Address(from): Address,
        bytes: *mut [u8],
        region: Region,
        (address, key): (u64, u64),
        context: *mut Context,
    ) -> FiResult<bool> {
        self.check_open()?;
        let (ep, start, length, context) = (self.ep, bytes.cast(), bytes.len(), context.cast());
        let region = region.descriptor();
        // SAFETY: guaranteed by the caller.
        let code =
            unsafe { ((*(*ep).rma).read)(ep, start, length, region, from, address, key, context) };
        self.accepted("fi_read", code)
    }

    fn check_open(&self) -> FiResult {
        if self.closing { Err("the endpoint is closed".to_owned()) } else { Ok(()) }
    }

    /// Whether an operation was posted, or has to be tried again.
    fn accepted(&self, what: &str, code: isize) -> FiResult<bool> {
        match code {
            0 => Ok(true),
            code if code == -abi::EAGAIN => Ok(false),
            code => Err(self.error(what, code)),
        }
    }

    fn error(&self, what: &str, code: impl TryInto<c_int>) -> String {
        format!("{what}: {}", self.info_list.library.error_text(code))
    }

    /// Makes progress and reads completions.
    pub fn poll_cq(&mut self, entries: &mut [CqEntry]) -> PollResult {
        let cq = self.cq;
        // SAFETY: the queue is open, and `entries` has this many elements.
        let code = unsafe { ((*(*cq).ops).read)(cq, entries.as_mut_ptr().cast(), entries.len()) };
        match code {
            code if code == -abi::EAVAIL => self.read_error(),
            code if code > 0 => PollResult::Done(code as usize),
            code if code == 0 || code == -abi::EAGAIN => PollResult::Empty,
            code => PollResult::Broken(self.error("fi_cq_read", code)),
        }
    }

    fn read_error(&mut self) -> PollResult {
        let cq = self.cq;
        // SAFETY: all fields are integers or pointers, for which zero is valid.
        let mut error: CqError = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open.
        if unsafe { ((*(*cq).ops).readerr)(cq, &mut error, 0) } <= 0 {
            return PollResult::Empty;
        }
        let why =
            (error.err != abi::ECANCELED).then(|| self.info_list.library.error_text(error.err));
        PollResult::Failed(error.context, why)
    }

    /// Requests cancellation of a request, which then completes as cancelled.
    pub fn cancel(&mut self, context: *mut Context) {
        let ep = self.ep;
        if !ep.is_null() {
            // SAFETY: the endpoint is open, and unknown contexts are ignored. A request that cannot
            // be cancelled completes.
            unsafe { ((*(*ep).ops).cancel)(ep.cast(), context.cast()) };
        }
    }

    /// How to sleep until a completion.
    pub fn wait_object(&mut self) -> WaitObject {
        let Some(fd) = self.fd else { return WaitObject::None };
        let (fabric, mut cq): (_, *mut Fid) = (self.fabric, self.cq.cast());
        // SAFETY: both are open.
        match unsafe { ((*(*fabric).ops).trywait)(fabric, &mut cq, 1) } {
            0 => WaitObject::Fd(fd),
            code if code as isize == -abi::EAGAIN => WaitObject::Ready,
            _ => WaitObject::None,
        }
    }
}

fn provider_info(info_list: &InfoList, provider: &str, domain: &str) -> ProviderInfo {
    let layer = provider.split(';').next().unwrap_or_default();
    // SAFETY: the attributes of an fi_info are never null.
    unsafe {
        let info = &*info_list.first;
        let ep = &*info.ep_attr;
        ProviderInfo {
            is_connection_oriented: ep.kind == abi::EP_MSG,
            manual_progress: MANUAL_PROGRESS.contains(&layer),
            provider: provider.to_owned(),
            domain: domain.to_owned(),
            max_msg_size: ep.max_msg_size,
            inject: (*info.tx_attr).inject_size,
            tag_bits: u64::BITS - ep.mem_tag_format.leading_zeros(),
            rx_size: (*info.rx_attr).size,
            virtual_addresses: (*info.domain_attr).mr_mode & abi::MR_VIRT_ADDR != 0,
            needs_registration: (*info.domain_attr).mr_mode & abi::MR_LOCAL != 0,
        }
    }
}

/// Opening and closing modifies state that providers share between endpoints, so it is serialised.
fn serialized<R>(work: impl FnOnce() -> R) -> R {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    work()
}
