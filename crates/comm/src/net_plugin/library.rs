//! Opens a net plug-in and selects one of its tables.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use regatta_plugin_abi::net::{v8, v9, v10, v11};

use super::table::{NetError, Table};

/// The versions of the interface that are supported, newest first.
pub const SUPPORTED_VERSIONS: [u32; 4] = [11, 10, 9, 8];

/// Longest name of a plug-in.
const MAX_NAME_BYTES: usize = 128;

/// The functions of all tables, in order, after the name. Those in brackets may be NULL.
const FUNCTIONS: [&str; 21] = [
    "init",
    "devices",
    "getProperties",
    "listen",
    "connect",
    "accept",
    "regMr",
    "[regMrDmaBuf]",
    "deregMr",
    "isend",
    "irecv",
    "iflush",
    "test",
    "closeSend",
    "closeRecv",
    "closeListen",
    "[getDeviceMr]",
    "[irecvConsumed]",
    "[makeVDevice]",
    "finalize",
    "[setNetAttr]",
];

/// Why a plug-in cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum LoadError {
    #[error("cannot load the net plug-in {}: {why}", .path.display())]
    Open { path: PathBuf, why: String },
    #[error("{} exports no ncclNetPlugin_v8, v9, v10 or v11; `regatta plugin check {}` shows what it exports",
            .path.display(), .path.display())]
    NoTable { path: PathBuf },
    #[error("{} exports no ncclNetPlugin_v{version}; `regatta plugin check {}` shows what it exports",
            .path.display(), .path.display())]
    NoVersion { path: PathBuf, version: u32 },
    #[error("the table ncclNetPlugin_v{version} of {} has no function {function}", .path.display())]
    NoFunction { path: PathBuf, version: u32, function: &'static str },
    #[error(transparent)]
    Call(#[from] NetError),
}

impl LoadError {
    /// What the user can do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Open { .. } | Self::NoTable { .. } | Self::NoFunction { .. } => {
                "`regatta plugin check PATH` explains why a plug-in cannot be loaded"
            }
            Self::Call(NetError::NoDevice { .. } | NetError::Device { .. }) => {
                "REGATTA_FABRIC names a libfabric provider for the plug-in of regatta, such as tcp or shm; \
                 others have variables of their own"
            }
            Self::NoVersion { .. } => {
                "REGATTA_NET_PLUGIN_VERSION selects a version of the interface, 8 to 11; without it, the newest \
                 of the plug-in is used"
            }
            Self::Call(NetError::Call { .. }) => {
                "REGATTA_FABRIC names a libfabric provider for the plug-in of regatta, others have variables of \
                 their own; REGATTA_NET_PLUGIN_VERSION selects another version of the interface"
            }
        }
    }
}

/// Libraries that are open, which are never closed: their threads may run until the process exits.
static OPEN: Mutex<Vec<(PathBuf, &'static Library)>> = Mutex::new(Vec::new());

/// Opens a plug-in as NCCL does and selects the newest table, or the one of the version. Returns its name, too.
pub fn open(path: &Path, only: Option<u32>) -> Result<(Table, String), LoadError> {
    let library = library(path)?;
    let versions = SUPPORTED_VERSIONS.into_iter();
    for version in versions.filter(|version| only.is_none_or(|only| only == *version)) {
        let symbol = format!("ncclNetPlugin_v{version}\0");
        // SAFETY: the symbol is only taken as an address here.
        let Ok(symbol) = (unsafe { library.get::<*const c_void>(symbol.as_bytes()) }) else {
            continue;
        };
        let address = symbol.into_raw().cast_const();
        // SAFETY: the library exports a table of this version under its name and is never closed.
        return unsafe { table(path, version, address) };
    }
    let path = path.to_owned();
    Err(match only {
        Some(version) => LoadError::NoVersion { path, version },
        None => LoadError::NoTable { path },
    })
}

fn library(path: &Path) -> Result<&'static Library, LoadError> {
    let unusable = |why: String| LoadError::Open { path: path.to_owned(), why };
    // A path without a slash would be searched for elsewhere.
    let path = path.canonicalize().map_err(|error| unusable(error.to_string()))?;
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, library)) = open.iter().find(|(opened, _)| *opened == path) {
        return Ok(library);
    }
    // SAFETY: the user selects a plug-in, whose initialisers NCCL would run, too.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    let library = &*Box::leak(Box::new(library.map_err(|error| unusable(error.to_string()))?));
    open.push((path, library));
    Ok(library)
}

/// The table at an address and its name with the version, if no required function is missing.
///
/// # Safety
/// The address is that of a table of this version, which is valid until the process exits.
unsafe fn table(
    path: &Path,
    version: u32,
    address: *const c_void,
) -> Result<(Table, String), LoadError> {
    let functions = match version {
        8 => 18,
        9 | 10 => 19,
        _ => FUNCTIONS.len(),
    };
    for (at, function) in FUNCTIONS[..functions].iter().copied().enumerate() {
        // SAFETY: all fields of the table are pointers.
        let is_null = unsafe { address.cast::<*const c_void>().add(1 + at).read() }.is_null();
        if is_null && !function.starts_with('[') {
            return Err(LoadError::NoFunction { path: path.to_owned(), version, function });
        }
    }
    // SAFETY: every function that must not be NULL is not, and the name is the first field.
    unsafe {
        let name = name(address.cast::<*const c_char>().read());
        let table = match version {
            8 => Table::V8(&*address.cast::<v8::Net>()),
            9 => Table::V9(&*address.cast::<v9::Functions>()),
            10 => Table::V10(&*address.cast::<v10::Functions>()),
            _ => Table::V11(&*address.cast::<v11::Net>()),
        };
        Ok((table, format!("{name} (v{version})")))
    }
}

/// A name of the plug-in, truncated.
///
/// # Safety
/// NULL or a C string.
pub unsafe fn name(text: *const c_char) -> String {
    if text.is_null() {
        return "unnamed".to_owned();
    }
    // SAFETY: by the caller's contract.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text[..text.floor_char_boundary(MAX_NAME_BYTES)].to_owned()
}

/// Runs `init` once per process for each table, as NCCL does for versions before 11.
pub fn init_once(
    table: *const c_void,
    init: impl FnOnce() -> Result<(), NetError>,
) -> Result<(), NetError> {
    static INITIALISED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let mut initialised = INITIALISED.lock().unwrap_or_else(PoisonError::into_inner);
    if !initialised.contains(&table.addr()) {
        init()?;
        initialised.push(table.addr());
    }
    Ok(())
}

/// A number of NCCL's results, by its name.
pub fn result_name(code: c_int) -> &'static str {
    match code {
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        _ => "unknown result",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_without_a_required_function_is_rejected() {
        let mut words = [std::ptr::dangling::<c_void>(); 22];
        (words[0], words[8], words[17], words[18]) =
            (c"x".as_ptr().cast(), std::ptr::null(), std::ptr::null(), std::ptr::null());
        let load = |words: &[*const c_void]| {
            let address = Box::leak(words.to_vec().into_boxed_slice()).as_ptr().cast();
            // SAFETY: as many pointers as a table has, of which none is called.
            unsafe { table(Path::new("libx.so"), 8, address) }
        };
        assert_eq!(load(&words).map(|(_, name)| name).unwrap(), "x (v8)");
        words[10] = std::ptr::null();
        let error = load(&words).err().unwrap().to_string();
        assert_eq!(error, "the table ncclNetPlugin_v8 of libx.so has no function isend");
    }

    #[test]
    fn a_library_without_tables_is_named() {
        let error = open(Path::new("/nonexistent/libnccl-net.so"), None).err().unwrap().to_string();
        assert!(
            error.starts_with("cannot load the net plug-in /nonexistent/libnccl-net.so: "),
            "{error}"
        );
        let libc = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc =
            libc.split_whitespace().find(|word| word.contains("/libc.so")).unwrap().to_owned();
        for (version, wanted) in [(None, "v8, v9, v10 or v11;"), (Some(9), "v9;")] {
            let error = open(Path::new(&libc), version).err().unwrap();
            assert!(error.to_string().contains(&format!("ncclNetPlugin_{wanted}")), "{error}");
        }
    }
}
