//! Opens the library as NCCL does, and calls the table of one version.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Mutex;

use nccl_tuner_regatta::abi::{v3, v4, v5};
use regatta_plugin_abi::SUCCESS;
use regatta_plugin_abi::log::Logger;

/// Messages of the plug-in, with their levels.
pub static MESSAGES: Mutex<Vec<(c_int, String)>> = Mutex::new(Vec::new());

/// Copies what the plug-in passes to a variadic logger: both conventions pass the first six integers in
/// registers.
unsafe extern "C" fn collect(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    message: *const c_char,
) {
    // SAFETY: the plug-in passes C strings.
    let (format, message) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(message)) };
    assert_eq!(format, c"%s");
    MESSAGES.lock().unwrap().push((level, message.to_str().unwrap().to_owned()));
}

fn logger() -> Logger {
    // SAFETY: see `collect`.
    unsafe { std::mem::transmute::<*const (), Logger>(collect as *const ()) }
}

/// The library that NCCL would open, beside this program.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libnccl_tuner_regatta.so")
}

/// A pointer that NCCL keeps for the plug-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context(pub *mut c_void);

impl Context {
    pub const NULL: Self = Self(null_mut());
}

// SAFETY: NCCL passes contexts between threads, too, and never follows them.
unsafe impl Send for Context {}

/// What NCCL asks for a collective.
#[derive(Debug, Clone)]
pub struct Request {
    pub function: c_int,
    pub bytes: usize,
    pub pipe_ops: c_int,
    pub costs: Vec<f32>,
    pub algorithms: c_int,
    pub protocols: c_int,
    pub registered: c_int,
}

/// The opened library and the table of one version.
pub struct Plugin {
    library: *mut c_void,
    pub version: u32,
    table: *const c_void,
}

// SAFETY: the library's functions may be called by any thread.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Opens the library as NCCL does.
    pub fn open(version: u32) -> Self {
        let path = CString::new(library().to_str().unwrap()).unwrap();
        let symbol = CString::new(format!("ncclTunerPlugin_v{version}")).unwrap();
        // SAFETY: the library's initialisation has no effects.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null(), "cannot open {path:?}");
            let table = libc::dlsym(library, symbol.as_ptr());
            assert!(!table.is_null(), "no {symbol:?}");
            let name = CStr::from_ptr(*table.cast::<*const c_char>());
            assert_eq!(name, c"Regatta");
            Self { library, version, table }
        }
    }

    /// Closes the library as NCCL does.
    pub fn close(self) {
        // SAFETY: nothing uses the table any more.
        assert_eq!(unsafe { libc::dlclose(self.library) }, 0);
    }

    /// Opens a communicator.
    pub fn init(&self, ranks: usize, nodes: usize) -> Context {
        // The plug-in must set it.
        let mut context = std::ptr::dangling_mut();
        let result = match self.version {
            // SAFETY: the library exports tables of these types, and all arguments are valid.
            3 => unsafe {
                ((*self.table.cast::<v3::Tuner>()).init)(ranks, nodes, logger(), &mut context)
            },
            // SAFETY: as above.
            4 => unsafe {
                ((*self.table.cast::<v4::Tuner>()).init)(ranks, nodes, logger(), &mut context)
            },
            _ => {
                // NVLink domains, and the least and most ranks of one.
                let mut domains = [1, 1, ranks as c_int];
                // The constants of NCCL's cost model.
                let mut constants = [0.0f64; 144];
                // SAFETY: as above.
                unsafe {
                    let init = (*self.table.cast::<v5::Tuner>()).init;
                    let domains = (&raw mut domains).cast();
                    let constants = (&raw mut constants).cast();
                    init(&mut context, 1, ranks, nodes, logger(), domains, constants)
                }
            }
        };
        assert_eq!(result, SUCCESS);
        Context(context)
    }

    /// Asks for a collective. Returns the number of channels, which is -7 before.
    pub fn get_coll_info(&self, context: Context, request: &mut Request) -> c_int {
        let mut channels = -7;
        let costs = request.costs.as_mut_ptr();
        // SAFETY: the costs have as many entries as the request says.
        unsafe { self.get(context, request, costs, &mut channels) };
        channels
    }

    /// Asks with any pointers.
    ///
    /// # Safety
    /// As for NCCL's function.
    pub unsafe fn get(
        &self,
        Context(context): Context,
        request: &Request,
        costs: *mut f32,
        channels: *mut c_int,
    ) {
        let Request { function, bytes, pipe_ops, algorithms, protocols, registered, .. } = *request;
        let costs: *mut *mut f32 = costs.cast();
        // SAFETY: by the caller's contract.
        let result = unsafe {
            match self.version {
                3 => {
                    let get = (*self.table.cast::<v3::Tuner>()).get_coll_info;
                    get(context, function, bytes, pipe_ops, costs, algorithms, protocols, channels)
                }
                version => {
                    let get = match version {
                        4 => (*self.table.cast::<v4::Tuner>()).get_coll_info,
                        _ => (*self.table.cast::<v5::Tuner>()).get_coll_info,
                    };
                    get(
                        context, function, bytes, pipe_ops, costs, algorithms, protocols,
                        registered, channels,
                    )
                }
            }
        };
        assert_eq!(result, SUCCESS);
    }

    /// Closes a communicator.
    pub fn destroy(&self, Context(context): Context) {
        // SAFETY: the library exports tables of these types.
        let result = unsafe {
            match self.version {
                3 => ((*self.table.cast::<v3::Tuner>()).destroy)(context),
                4 => ((*self.table.cast::<v4::Tuner>()).destroy)(context),
                _ => ((*self.table.cast::<v5::Tuner>()).destroy)(context),
            }
        };
        assert_eq!(result, SUCCESS);
    }
}
