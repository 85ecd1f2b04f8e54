//! Opens the library as NCCL does, and calls the table of one version.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use regatta_plugin_abi::log::Logger;
use regatta_plugin_abi::net::{self, CommConfig, HANDLE_BYTES, MAX_GROUPED_RECVS, PTR_HOST};
use regatta_plugin_abi::net::{v8, v9, v10, v11};
use regatta_plugin_abi::{NcclResult, SUCCESS};

pub const VERSIONS: [u32; 4] = [8, 9, 10, 11];

/// Messages of the plug-in, with their levels.
static MESSAGES: Mutex<Vec<(c_int, String)>> = Mutex::new(Vec::new());

/// The messages so far, also after a test has failed.
pub fn messages() -> MutexGuard<'static, Vec<(c_int, String)>> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    messages().push((level, message.to_str().unwrap().to_owned()));
}

fn logger() -> Logger {
    // SAFETY: see `collect`.
    unsafe { std::mem::transmute::<*const (), Logger>(collect as *const ()) }
}

/// The error code of a function.
pub type Outcome<T = ()> = Result<T, NcclResult>;
pub type HandleBytes = [u8; HANDLE_BYTES];

/// A connection, a listener, a registration or a request; `None` where the plug-in returns NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object(pub *mut c_void);

// SAFETY: NCCL passes objects between its threads, and never follows them.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    pub const NULL: Self = Self(null_mut());

    fn given(self) -> Option<Self> {
        (!self.0.is_null()).then_some(self)
    }
}

/// A receive of a group.
#[derive(Debug, Clone, Copy)]
pub struct Recv {
    pub start: *mut u8,
    pub length: usize,
    pub tag: c_int,
    pub registration: Object,
}

/// The table of a version, or the functions that it begins with.
#[derive(Clone, Copy)]
pub enum Table {
    V8(&'static v8::Net),
    V9(&'static v9::Functions),
    V10(&'static v10::Functions),
    V11(&'static v11::Net),
}

/// Evaluates an expression with the table of any version.
macro_rules! with_table {
    ($table:expr, $net:ident => $value:expr) => {
        match $table {
            $crate::plugin::Table::V8($net) => $value,
            $crate::plugin::Table::V9($net) => $value,
            $crate::plugin::Table::V10($net) => $value,
            $crate::plugin::Table::V11(regatta_plugin_abi::net::v11::Net {
                functions: $net,
                ..
            }) => $value,
        }
    };
}
pub(crate) use with_table;

/// The opened library, the table of one version, and the context of a communicator.
pub struct Plugin {
    library: Object,
    pub table: Table,
    context: Object,
}

fn outcome(code: NcclResult) -> Outcome {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

impl Plugin {
    /// Opens the library as NCCL does.
    pub fn open(version: u32) -> Self {
        let path = std::env::current_exe().unwrap().with_file_name("libnccl_net_regatta.so");
        let path = CString::new(PathBuf::from(&path).to_str().unwrap()).unwrap();
        let symbol = CString::new(format!("ncclNetPlugin_v{version}")).unwrap();
        // SAFETY: the library's initialisation has no effects; it exports tables of these types, which stay,
        // as the library cannot be unloaded.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null(), "cannot open {path:?}");
            let found = libc::dlsym(library, symbol.as_ptr());
            assert!(!found.is_null(), "no {symbol:?}");
            assert_eq!(CStr::from_ptr(*found.cast::<*const c_char>()), c"Regatta");
            let table = match version {
                8 => Table::V8(&*found.cast()),
                9 => Table::V9(&*found.cast()),
                10 => Table::V10(&*found.cast()),
                _ => Table::V11(&*found.cast()),
            };
            Self { library: Object(library), table, context: Object::NULL }
        }
    }

    /// `init`, in version 11 of a communicator.
    pub fn init(&mut self) -> Outcome {
        let mut context = null_mut();
        let mut config = CommConfig { traffic_class: -1 };
        // SAFETY: all arguments are valid.
        let code = unsafe {
            match self.table {
                Table::V8(net) => (net.init)(logger()),
                Table::V9(net) => (net.init)(logger()),
                Table::V10(net) => (net.init)(logger(), null_mut()),
                Table::V11(net) => {
                    (net.functions.init)(&mut context, 7, &mut config, logger(), null_mut())
                }
            }
        };
        self.context = Object(context);
        outcome(code)
    }

    /// Ends the communicator, and closes the library as NCCL does.
    pub fn close(self) {
        if let Table::V11(net) = self.table {
            // SAFETY: the context of `init`.
            assert_eq!(unsafe { (net.finalize)(self.context.0) }, SUCCESS);
        }
        // SAFETY: nothing uses the table any more.
        assert_eq!(unsafe { libc::dlclose(self.library.0) }, 0);
    }

    pub fn devices(&self) -> Outcome<c_int> {
        let mut count = -1;
        // SAFETY: valid for writes.
        outcome(with_table!(self.table, net => unsafe { (net.devices)(&mut count) }))?;
        Ok(count)
    }

    /// The properties of a NIC; those of version 8 are a part of them.
    pub fn properties(&self, device: c_int) -> Outcome<net::Properties> {
        // SAFETY: numbers, and pointers that may be NULL.
        let mut all: v11::Properties = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut old: v8::Properties = unsafe { std::mem::zeroed() };
        // SAFETY: valid for writes.
        outcome(unsafe {
            match self.table {
                Table::V8(net) => (net.get_properties)(device, &mut old),
                Table::V9(net) => (net.get_properties)(device, &mut all.common),
                Table::V10(net) => (net.get_properties)(device, &mut all.common),
                Table::V11(net) => (net.functions.get_properties)(device, &mut all),
            }
        })?;
        if let Table::V8(_) = self.table {
            all.common.name = old.name;
            all.common.pci_path = old.pci_path;
            all.common.speed = old.speed;
            all.common.pointer_support = old.pointer_support;
            all.common.max_recvs = old.max_recvs;
            all.common.max_comms = old.max_comms;
        }
        Ok(all.common)
    }

    pub fn listen(&self, device: c_int) -> Outcome<(Object, HandleBytes)> {
        let (mut listener, mut handle) = (null_mut(), [0xa5; HANDLE_BYTES]);
        let into = handle.as_mut_ptr().cast();
        // SAFETY: valid for writes.
        outcome(unsafe {
            match self.table {
                Table::V8(net) => (net.listen)(device, into, &mut listener),
                Table::V9(net) => (net.listen)(device, into, &mut listener),
                Table::V10(net) => (net.listen)(device, into, &mut listener),
                Table::V11(net) => {
                    (net.functions.listen)(self.context.0, device, into, &mut listener)
                }
            }
        })?;
        Ok((Object(listener), handle))
    }

    /// `connect`, to be called again with the same handle until there is a connection.
    pub fn connect(&self, device: c_int, handle: &mut HandleBytes) -> Outcome<Option<Object>> {
        let (mut send, mut offload) = (null_mut(), null_mut());
        let mut config = CommConfig { traffic_class: -1 };
        let from = handle.as_mut_ptr().cast();
        let (to, other) = (&raw mut send, &raw mut offload);
        // SAFETY: valid for writes.
        outcome(unsafe {
            match self.table {
                Table::V8(net) => (net.connect)(device, from, to, other),
                Table::V9(net) => (net.connect)(device, from, to, other),
                Table::V10(net) => (net.connect)(device, &mut config, from, to, other),
                Table::V11(net) => (net.functions.connect)(self.context.0, device, from, to, other),
            }
        })?;
        Ok(Object(send).given())
    }

    /// `accept`, to be called again until there is a connection.
    pub fn accept(&self, listener: Object) -> Outcome<Option<Object>> {
        let (mut recv, mut offload) = (null_mut(), null_mut());
        // SAFETY: valid for writes, and an open listener.
        let code = with_table!(self.table, net => unsafe {
            (net.accept)(listener.0, &mut recv, &mut offload)
        });
        outcome(code).map(|()| Object(recv).given())
    }

    pub fn reg_mr(&self, comm: Object, start: *mut u8, length: usize) -> Outcome<Object> {
        let mut registration = null_mut();
        // SAFETY: an open connection, and memory that the caller owns.
        let code = with_table!(self.table, net => unsafe {
            (net.reg_mr)(comm.0, start.cast(), length, PTR_HOST, &mut registration)
        });
        outcome(code).map(|()| Object(registration))
    }

    pub fn dereg_mr(&self, comm: Object, registration: Object) -> Outcome {
        // SAFETY: an open connection, and its registration.
        outcome(with_table!(self.table, net => unsafe { (net.dereg_mr)(comm.0, registration.0) }))
    }

    /// `isend`; `None` if it has to be tried again.
    pub fn isend(&self, comm: Object, message: Recv) -> Outcome<Option<Object>> {
        let Recv { start, length, tag, registration: Object(registration) } = message;
        let (mut request, data) = (null_mut(), start.cast());
        let (small, into) = (length as c_int, &raw mut request);
        // SAFETY: an open connection, and memory that lives until the request is complete or given back.
        outcome(unsafe {
            match self.table {
                Table::V8(net) => (net.isend)(comm.0, data, small, tag, registration, into),
                Table::V9(net) => (net.isend)(comm.0, data, length, tag, registration, into),
                Table::V10(v10::Functions { isend, .. })
                | Table::V11(v11::Net { functions: v11::Functions { isend, .. }, .. }) => {
                    isend(comm.0, data, length, tag, registration, null_mut(), into)
                }
            }
        })?;
        Ok(Object(request).given())
    }

    /// `irecv`; `None` if it has to be tried again. From version 9 on, the completion may be optional.
    pub fn irecv(&self, comm: Object, group: &[Recv], optional: bool) -> Outcome<Option<Object>> {
        let count = group.len() as c_int;
        let mut data: Vec<*mut c_void> = group.iter().map(|one| one.start.cast()).collect();
        let mut sizes: Vec<usize> = group.iter().map(|one| one.length).collect();
        let mut small: Vec<c_int> = sizes.iter().map(|size| *size as c_int).collect();
        let mut tags: Vec<c_int> = group.iter().map(|one| one.tag).collect();
        let mut registrations: Vec<_> = group.iter().map(|one| one.registration.0).collect();
        let is_marked = optional && !matches!(self.table, Table::V8(_));
        let mut request = if is_marked { net::OPTIONAL_RECV_COMPLETION } else { null_mut() };
        let (data, tags, into) = (data.as_mut_ptr(), tags.as_mut_ptr(), &raw mut request);
        let (sizes, registered) = (sizes.as_mut_ptr(), registrations.as_mut_ptr());
        // SAFETY: an open connection, arrays of `count` elements, and memory as for `isend`.
        outcome(unsafe {
            match self.table {
                Table::V8(net) => {
                    (net.irecv)(comm.0, count, data, small.as_mut_ptr(), tags, registered, into)
                }
                Table::V9(net) => (net.irecv)(comm.0, count, data, sizes, tags, registered, into),
                Table::V10(v10::Functions { irecv, .. })
                | Table::V11(v11::Net { functions: v11::Functions { irecv, .. }, .. }) => {
                    irecv(comm.0, count, data, sizes, tags, registered, null_mut(), into)
                }
            }
        })?;
        Ok(Object(request).given())
    }

    /// `iflush` of one receive; `None` if nothing has to be done.
    pub fn iflush(&self, comm: Object, recv: Recv) -> Outcome<Option<Object>> {
        let (mut data, mut size) = (recv.start.cast(), recv.length as c_int);
        let (mut registration, mut request) = (recv.registration.0, null_mut());
        // SAFETY: an open connection, and arrays of one element.
        let code = with_table!(self.table, net => unsafe {
            (net.iflush)(comm.0, 1, &mut data, &mut size, &mut registration, &mut request)
        });
        outcome(code).map(|()| Object(request).given())
    }

    /// `test`, with or without sizes.
    pub fn test(
        &self,
        request: Object,
        sizes: Option<&mut [c_int; MAX_GROUPED_RECVS]>,
    ) -> Outcome<bool> {
        let mut done = -1;
        let sizes = sizes.map_or(null_mut(), |sizes| sizes.as_mut_ptr());
        let test = with_table!(self.table, net => net.test);
        // SAFETY: a request that is not complete, and NULL or room for all sizes.
        outcome(unsafe { test(request.0, &mut done, sizes) })?;
        assert!(done == 0 || done == 1, "{done}");
        Ok(done == 1)
    }

    pub fn close_send(&self, comm: Object) -> Outcome {
        // SAFETY: an open connection, which is not used any more.
        outcome(with_table!(self.table, net => unsafe { (net.close_send)(comm.0) }))
    }

    pub fn close_recv(&self, comm: Object) -> Outcome {
        // SAFETY: as above.
        outcome(with_table!(self.table, net => unsafe { (net.close_recv)(comm.0) }))
    }

    pub fn close_listen(&self, listener: Object) -> Outcome {
        // SAFETY: an open listener, which is not used any more.
        outcome(with_table!(self.table, net => unsafe { (net.close_listen)(listener.0) }))
    }
}
