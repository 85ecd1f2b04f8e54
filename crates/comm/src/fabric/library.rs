//! libfabric's library, opened at run time, and what its providers offer.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Symbol;

use super::abi::{self, Fabric, FabricAttr, Info};
use super::leaving;

/// Names another library than the system finds.
const VARIABLE: &str = "REGATTA_LIBFABRIC";
const NAME: &str = "libfabric.so.1";

/// The functions that the library exports; all others are in the objects it makes.
pub struct Library {
    getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const Info,
        *mut *mut Info,
    ) -> c_int,
    freeinfo: unsafe extern "C" fn(*mut Info),
    dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut Fabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    // Never closed: providers leave threads and handlers behind.
    _library: libloading::Library,
}

/// The library, opened once. In words why not.
pub fn library() -> Result<&'static Library, String> {
    static OPENED: OnceLock<Result<Library, String>> = OnceLock::new();
    OPENED.get_or_init(|| undisturbed(Library::open)).as_ref().map_err(Clone::clone)
}

/// Which offers are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Of which provider.
    pub provider: Option<&'a str>,
    /// At which address of this node.
    pub source: Option<IpAddr>,
    /// Also of those that want memory to be registered, even what is only sent.
    pub registered: bool,
}

impl Library {
    fn open() -> Result<Self, String> {
        let path = std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(NAME), PathBuf::from);
        // SAFETY: a library of the system, whose constructors we clean up after.
        let library = unsafe { libloading::Library::new(&path) };
        let library = library.map_err(|error| {
            format!(
                "{NAME} cannot be opened ({error}); install libfabric, or name it by {VARIABLE}"
            )
        })?;
        leaving::watch_the_end();
        Ok(Self {
            getinfo: symbol(&library, c"fi_getinfo")?,
            freeinfo: symbol(&library, c"fi_freeinfo")?,
            dupinfo: symbol(&library, c"fi_dupinfo")?,
            fabric: symbol(&library, c"fi_fabric")?,
            strerror: symbol(&library, c"fi_strerror")?,
            _library: library,
        })
    }

    /// What an error's number means.
    pub fn explain(&self, code: impl TryInto<c_int>) -> String {
        let code: c_int = code.try_into().unwrap_or(c_int::MAX);
        // SAFETY: the function takes any number, and returns a text that stays.
        let text = unsafe { (self.strerror)(code.wrapping_abs()) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: it is a text.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// What there is of reliable, unconnected endpoints with tagged messages.
    pub fn offers(&'static self, wanted: Wanted<'_>) -> Result<Offers, String> {
        let hints = self.hints(wanted)?;
        let node = wanted.source.and_then(|ip| CString::new(ip.to_string()).ok());
        let (node, flags) = match &node {
            Some(node) => (node.as_ptr(), abi::SOURCE),
            None => (std::ptr::null(), 0),
        };
        let mut first = std::ptr::null_mut();
        let code = undisturbed(|| {
            // SAFETY: all pointers are valid or null, as the function allows.
            unsafe {
                (self.getinfo)(abi::API, node, std::ptr::null(), flags, hints.first, &mut first)
            }
        });
        match code {
            0 => Ok(Offers { library: self, first }),
            code => Err(self.explain(code)),
        }
    }

    fn hints(&'static self, wanted: Wanted<'_>) -> Result<Offers, String> {
        // SAFETY: of nothing it makes an empty one.
        let first = unsafe { (self.dupinfo)(std::ptr::null()) };
        let hints = Offers { library: self, first };
        // SAFETY: it is ours alone, and if there is one, it has all its parts.
        let Some(info) = (unsafe { first.as_mut() }) else {
            return Err("there is no memory for a question to libfabric".to_owned());
        };
        info.caps = abi::TAGGED;
        info.mode = abi::MODE_CONTEXT | abi::MODE_CONTEXT2;
        let local = if wanted.registered { abi::MR_LOCAL } else { 0 };
        let modes = abi::MR_VIRT_ADDR | abi::MR_ALLOCATED | abi::MR_PROV_KEY | abi::MR_ENDPOINT;
        // SAFETY: as above.
        unsafe {
            (*info.ep_attr).kind = abi::EP_RDM;
            (*info.domain_attr).mr_mode = modes | local;
            (*info.domain_attr).threading = abi::THREAD_DOMAIN;
            (*info.domain_attr).data_progress = abi::PROGRESS_MANUAL;
            if let Some(name) = wanted.provider.and_then(|name| CString::new(name).ok()) {
                // The library frees it.
                (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
        Ok(hints)
    }

    /// Opens the fabric of an offer.
    ///
    /// # Safety
    /// The attributes must be those of an offer.
    pub unsafe fn open_fabric(&self, attributes: *mut FabricAttr) -> Result<*mut Fabric, String> {
        let mut fabric = std::ptr::null_mut();
        // SAFETY: promised by the caller.
        match unsafe { (self.fabric)(attributes, &mut fabric, std::ptr::null_mut()) } {
            0 => Ok(fabric),
            code => Err(self.explain(code)),
        }
    }
}

fn symbol<F: Copy>(library: &libloading::Library, name: &CStr) -> Result<F, String> {
    // SAFETY: the types are those of the library's headers.
    let found: Result<Symbol<'_, F>, _> = unsafe { library.get(name.to_bytes_with_nul()) };
    found.map(|f| *f).map_err(|error| format!("{NAME} is none: {error}"))
}

/// A list of offers, freed when dropped.
pub struct Offers {
    library: &'static Library,
    first: *mut Info,
}

// SAFETY: a list that nobody else has.
unsafe impl Send for Offers {}

impl Offers {
    /// Provider and domain of each.
    pub fn names(&self) -> Vec<(String, String)> {
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: a text of the library's, which lives as long as the list.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        // SAFETY: what the library gives has all its parts.
        let name = |info: &Info| unsafe {
            (text((*info.fabric_attr).prov_name), text((*info.domain_attr).name))
        };
        self.iter().map(name).collect()
    }

    fn iter(&self) -> impl Iterator<Item = &Info> {
        // SAFETY: a list that ends with null, and lives as long as we.
        let mut next = unsafe { self.first.as_ref() };
        std::iter::from_fn(move || {
            let this = next?;
            // SAFETY: as above.
            next = unsafe { this.next.as_ref() };
            Some(this)
        })
    }

    /// One of them, alone.
    pub fn take(&self, index: usize) -> Option<Offer> {
        let info = self.iter().nth(index)?;
        // SAFETY: it is one of the library's; the copy has no next.
        let first = unsafe { (self.library.dupinfo)(info) };
        let offer = Offers { library: self.library, first };
        (!first.is_null()).then_some(Offer(offer))
    }
}

impl Drop for Offers {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: the library made it, and nobody has it any more.
            unsafe { (self.library.freeinfo)(self.first) };
        }
    }
}

/// One offer.
pub struct Offer(Offers);

impl Offer {
    /// The library it is of.
    pub fn library(&self) -> &'static Library {
        self.0.library
    }

    /// As the library's functions want it; never null.
    pub fn raw(&self) -> *mut Info {
        self.0.first
    }

    /// Its provider and domain.
    pub fn name(&self) -> (String, String) {
        self.0.names().into_iter().next().unwrap_or_default()
    }
}

/// Does something of libfabric's, after which signals are handled and the thread is bound as before:
/// libraries that come with it take over the one and change the other when they are opened.
fn undisturbed<R>(work: impl FnOnce() -> R) -> R {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bound = rustix::thread::sched_getaffinity(None);
    let handled: Vec<(c_int, libc::sigaction)> =
        (1..=64).filter_map(|signal| Some((signal, handler(signal)?))).collect();
    let result = work();
    for (signal, before) in handled {
        // SAFETY: it was so before. It fails for those that cannot be handled, which are as before.
        unsafe { libc::sigaction(signal, &before, std::ptr::null_mut()) };
    }
    if let Ok(bound) = bound {
        // If it fails the thread runs elsewhere, as it may.
        let _ = rustix::thread::sched_setaffinity(None, &bound);
    }
    result
}

fn handler(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: a structure of numbers and pointers, which may be null.
    let mut handler: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: it only reads how the signal is handled.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut handler) };
    (asked == 0).then_some(handler)
}
