//! libfabric, loaded at run time, and the providers it offers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Symbol;

use crate::FiResult;
use crate::abi::{self, Fabric, FabricAttr, Info, Out};
use crate::atexit_guard;

/// The environment variable with the path of another libfabric.
const VARIABLE: &str = "REGATTA_LIBFABRIC";
const NAME: &str = "libfabric.so.1";

/// `fi_getinfo`.
type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, Out<Info>) -> c_int;

/// The exported functions. All others are reached through the objects they create.
pub struct Library {
    getinfo: GetInfo,
    /// `fi_freeinfo`.
    pub freeinfo: unsafe extern "C" fn(*mut Info),
    dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    /// `fi_fabric`.
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, Out<Fabric>, *mut c_void) -> c_int,
    version: unsafe extern "C" fn() -> u32,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    // Never closed, because providers leave threads and handlers behind.
    _library: libloading::Library,
}

/// The library, loaded once, or why it cannot be loaded.
pub fn library() -> FiResult<&'static Library> {
    static OPENED: OnceLock<FiResult<Library>> = OnceLock::new();
    OPENED.get_or_init(|| preserving_process_state(Library::open)).as_ref().map_err(Clone::clone)
}

impl Library {
    fn open() -> FiResult<Self> {
        let path = std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(NAME), PathBuf::from);
        // SAFETY: a system library; `preserving_process_state` undoes what its constructors change.
        let library = unsafe { libloading::Library::new(&path) };
        let fix = format!("install libfabric, or set {VARIABLE} to its path");
        let library = library.map_err(|error| format!("cannot load {NAME} ({error}); {fix}"))?;
        atexit_guard::install();
        Ok(Self {
            getinfo: symbol(&library, c"fi_getinfo")?,
            freeinfo: symbol(&library, c"fi_freeinfo")?,
            dupinfo: symbol(&library, c"fi_dupinfo")?,
            fabric: symbol(&library, c"fi_fabric")?,
            version: symbol(&library, c"fi_version")?,
            strerror: symbol(&library, c"fi_strerror")?,
            _library: library,
        })
    }

    /// The message of an error code.
    pub fn error_text(&self, code: impl TryInto<c_int>) -> String {
        let code: c_int = code.try_into().unwrap_or(c_int::MAX);
        // SAFETY: the function accepts any code and returns a static string.
        let text = unsafe { (self.strerror)(code.wrapping_abs()) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: a non-null NUL-terminated string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The version: major and minor.
    pub fn version(&self) -> (u32, u32) {
        // SAFETY: the function has no arguments and no effects.
        let version = unsafe { (self.version)() };
        (version >> 16, version & 0xffff)
    }

    /// Whether memory can be registered by a dma-buf descriptor.
    pub fn has_dma_buf(&self) -> bool {
        self.version() >= (abi::API_DMABUF >> 16, abi::API_DMABUF & 0xffff)
    }

    /// Providers of reliable datagram endpoints (`FI_EP_RDM`) with tagged messages, or of connection-oriented
    /// ones (`FI_EP_MSG`).
    pub fn infos(&'static self, query: &Query<'_>) -> FiResult<InfoList> {
        let hints = self.hints(query)?;
        let node = query.source.and_then(|ip| CString::new(ip.to_string()).ok());
        let (node, flags) = match &node {
            Some(node) => (node.as_ptr(), abi::SOURCE),
            None => (std::ptr::null(), 0),
        };
        let dma_buf = query.gpu_memory && self.has_dma_buf();
        let api = if dma_buf { abi::API_DMABUF } else { abi::API };
        let mut first = std::ptr::null_mut();
        let code = preserving_process_state(|| {
            // SAFETY: all pointers are valid or null, which the function allows.
            unsafe { (self.getinfo)(api, node, std::ptr::null(), flags, hints.first, &mut first) }
        });
        match code {
            0 => Ok(InfoList { library: self, first }),
            code => Err(self.error_text(code)),
        }
    }

    fn hints(&'static self, query: &Query<'_>) -> FiResult<InfoList> {
        // SAFETY: with null, the function allocates an empty fi_info.
        let first = unsafe { (self.dupinfo)(std::ptr::null()) };
        let hints = InfoList { library: self, first };
        // SAFETY: exclusively owned, and its attributes are never null.
        let Some(info) = (unsafe { first.as_mut() }) else {
            return Err("out of memory for the libfabric hints".to_owned());
        };
        let (caps, kind) = match query.connection_oriented {
            true => (abi::MSG, abi::EP_MSG),
            false => (abi::TAGGED, abi::EP_RDM),
        };
        info.caps = caps;
        let mut modes = abi::MR_VIRT_ADDR | abi::MR_ALLOCATED | abi::MR_PROV_KEY | abi::MR_ENDPOINT;
        if query.registration {
            modes |= abi::MR_LOCAL;
        }
        if query.remote_read {
            info.caps |= abi::RMA | abi::READ | abi::REMOTE_READ | abi::SEND | abi::RECV;
        }
        if query.gpu_memory {
            info.caps |= abi::HMEM;
            modes |= abi::MR_HMEM;
        }
        info.mode = abi::MODE_CONTEXT | abi::MODE_CONTEXT2;
        // SAFETY: as above.
        unsafe {
            (*info.ep_attr).kind = kind;
            (*info.domain_attr).mr_mode = modes;
            (*info.domain_attr).threading = abi::THREAD_DOMAIN;
            (*info.domain_attr).data_progress = abi::PROGRESS_MANUAL;
            if let Some(name) = query.provider.and_then(|name| CString::new(name).ok()) {
                // Freed by fi_freeinfo.
                (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
        Ok(hints)
    }
}

/// Which providers are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Query<'a> {
    /// Only this one.
    pub provider: Option<&'a str>,
    /// The source address of endpoints.
    pub source: Option<IpAddr>,
    /// Also those that need registration of local buffers (`FI_MR_LOCAL`).
    pub registration: bool,
    /// Only those that access memory of GPUs (`FI_HMEM`).
    pub gpu_memory: bool,
    /// Only those that read memory of a peer (`FI_RMA`).
    pub remote_read: bool,
    /// Connection-oriented endpoints (`FI_EP_MSG`) instead of reliable datagram endpoints.
    pub connection_oriented: bool,
}

fn symbol<F: Copy>(library: &libloading::Library, name: &CStr) -> FiResult<F> {
    // SAFETY: the types match the library's headers.
    let found: Result<Symbol<'_, F>, _> = unsafe { library.get(name.to_bytes_with_nul()) };
    found.map(|f| *f).map_err(|error| format!("{NAME} is incompatible: {error}"))
}

/// A list of fi_info structures, freed when dropped.
pub struct InfoList {
    /// Their library.
    pub library: &'static Library,
    /// The first entry.
    pub first: *mut Info,
}

// SAFETY: exclusively owned.
unsafe impl Send for InfoList {}

impl InfoList {
    /// The provider and domain of each entry.
    pub fn names(&self) -> Vec<(String, String)> {
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: a string owned by the list.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        // SAFETY: the attributes of an fi_info are never null.
        let name = |info: &Info| unsafe {
            (text((*info.fabric_attr).prov_name), text((*info.domain_attr).name))
        };
        self.iter().map(name).collect()
    }

    /// The entries, whose attributes are never null.
    pub fn iter(&self) -> impl Iterator<Item = &Info> {
        // SAFETY: a null-terminated list that lives as long as `self`.
        let mut next = unsafe { self.first.as_ref() };
        std::iter::from_fn(move || {
            let this = next?;
            // SAFETY: as above.
            next = unsafe { this.next.as_ref() };
            Some(this)
        })
    }

    /// A copy of one entry.
    pub fn get(&self, index: usize) -> Option<Self> {
        let info = self.iter().nth(index)?;
        // SAFETY: a valid entry; the copy has no successor.
        let first = unsafe { (self.library.dupinfo)(info) };
        (!first.is_null()).then_some(Self { library: self.library, first })
    }
}

impl Drop for InfoList {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: allocated by the library, and not referenced any more.
            unsafe { (self.library.freeinfo)(self.first) };
        }
    }
}

/// Runs `work` and restores signal handlers and the thread's CPU affinity afterwards. Libraries
/// loaded with libfabric change both when they are opened.
fn preserving_process_state<R>(work: impl FnOnce() -> R) -> R {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let affinity = rustix::thread::sched_getaffinity(None);
    let handlers: Vec<(c_int, libc::sigaction)> =
        (1..=64).filter_map(|signal| Some((signal, handler(signal)?))).collect();
    let result = work();
    for (signal, before) in handlers {
        // SAFETY: restores a previous handler. Fails for signals that cannot be handled at all.
        unsafe { libc::sigaction(signal, &before, std::ptr::null_mut()) };
    }
    if let Ok(affinity) = affinity {
        // Best effort: on failure the thread keeps the changed affinity.
        let _ = rustix::thread::sched_setaffinity(None, &affinity);
    }
    result
}

fn handler(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: all fields are integers or pointers, for which zero is valid.
    let mut handler: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the current handler.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &mut handler) };
    (result == 0).then_some(handler)
}
