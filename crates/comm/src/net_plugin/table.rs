//! One interface over all versions of the table of a net plug-in. Results become typed errors; a NULL
//! object, which means "call again", becomes `None`.

use std::ffi::{c_int, c_void};
use std::ptr::{from_mut, null_mut};

use regatta_plugin_abi::net::{CommConfig, HANDLE_BYTES, Object, PTR_HOST, v8, v9, v10, v11};
use regatta_plugin_abi::{NcclResult, SUCCESS};

use super::library::result_name;
use super::logger::take_warnings;

/// `ncclInternalError`, for a plug-in that reports success without a result.
const INTERNAL_ERROR: NcclResult = 3;

/// All messages have this tag: tags select only within grouped receives, which are not used.
const TAG: c_int = 0;

/// Why a plug-in cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// A function failed.
    #[error("{function} of the net plug-in {plugin} failed: {} ({code}){}", result_name(*code), shown(warnings))]
    Call {
        plugin: String,
        function: &'static str,
        code: NcclResult,
        /// The last warnings that plug-ins of this process have logged.
        warnings: Vec<String>,
    },
    /// A NIC cannot be used.
    #[error("NIC {device} ({name}) of the net plug-in {plugin} {why}")]
    Device { plugin: String, device: c_int, name: String, why: &'static str },
    /// There is no NIC.
    #[error("the net plug-in {plugin} has no NIC on this node{}", shown(warnings))]
    NoDevice { plugin: String, warnings: Vec<String> },
}

fn shown(warnings: &[String]) -> String {
    match warnings {
        [] => String::new(),
        [only] => format!("; its warning: \"{only}\""),
        all => format!("; its warnings: \"{}\"", all.join("\", \"")),
    }
}

/// The table of a version, or the functions that it begins with.
#[derive(Debug, Clone, Copy)]
pub enum Table {
    V8(&'static v8::Net),
    V9(&'static v9::Functions),
    V10(&'static v10::Functions),
    V11(&'static v11::Net),
}

/// Calls a function that all versions have.
macro_rules! call {
    ($net:ident.$field:ident($($argument:expr),*)) => {
        match $net.table {
            Table::V8(table) => (table.$field)($($argument),*),
            Table::V9(table) => (table.$field)($($argument),*),
            Table::V10(table) => (table.$field)($($argument),*),
            Table::V11(table) => (table.functions.$field)($($argument),*),
        }
    };
}

mod init;

/// The address of a listener, which `connect` may change to keep its state.
pub type Handle = [u8; HANDLE_BYTES];

/// A NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// Largest operation.
    pub max_bytes: usize,
}

/// A plug-in that is initialised for this process or, from version 11 on, for one user of it.
#[derive(Debug)]
pub struct Net {
    table: Table,
    /// The context of `init`, from version 11 on.
    context: Object,
    /// Whether the context is to be finalised.
    has_context: bool,
    /// The plug-in's name and version.
    pub name: String,
    pub devices: Vec<Device>,
}

// SAFETY: NCCL calls the functions of a plug-in from several threads, too. Objects of the plug-in, other
// than this context, have owners that serialise their use.
unsafe impl Send for Net {}
// SAFETY: as above.
unsafe impl Sync for Net {}

impl Net {
    fn error(&self, function: &'static str, code: NcclResult) -> NetError {
        NetError::Call { plugin: self.name.clone(), function, code, warnings: take_warnings() }
    }

    fn check(&self, function: &'static str, code: NcclResult) -> Result<(), NetError> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(function, code)) }
    }

    /// Listens on a NIC.
    pub fn listen(&self, device: c_int) -> Result<(Handle, Object), NetError> {
        // On the heap for its alignment: plug-ins store structures in it.
        let (mut handle, mut listener) = (Box::new([0; HANDLE_BYTES]), null_mut());
        let at: *mut c_void = handle.as_mut_ptr().cast();
        // SAFETY: the handle has the size of the interface, and all pointers are valid during the call.
        let result = unsafe {
            match self.table {
                Table::V8(table) => (table.listen)(device, at, &mut listener),
                Table::V9(table) => (table.listen)(device, at, &mut listener),
                Table::V10(table) => (table.listen)(device, at, &mut listener),
                Table::V11(table) => {
                    (table.functions.listen)(self.context, device, at, &mut listener)
                }
            }
        };
        self.check("listen", result)?;
        let listener = not_null(listener);
        Ok((*handle, listener.ok_or_else(|| self.error("listen", INTERNAL_ERROR))?))
    }

    /// Connects to a listener. Until it returns a communicator, it must be called again with the same
    /// handle at the same address.
    pub fn connect(&self, device: c_int, handle: &mut Handle) -> Result<Option<Object>, NetError> {
        let (mut send, mut offload) = (null_mut(), null_mut());
        let mut config = CommConfig { traffic_class: -1 };
        let at: *mut c_void = from_mut(handle).cast();
        // SAFETY: the handle is one of a listener, and all pointers are valid during the call.
        let result = unsafe {
            match self.table {
                Table::V8(table) => (table.connect)(device, at, &mut send, &mut offload),
                Table::V9(table) => (table.connect)(device, at, &mut send, &mut offload),
                Table::V10(table) => {
                    (table.connect)(device, &mut config, at, &mut send, &mut offload)
                }
                Table::V11(table) => {
                    (table.functions.connect)(self.context, device, at, &mut send, &mut offload)
                }
            }
        };
        self.check("connect", result)?;
        Ok(not_null(send))
    }

    /// Accepts a connection, if the peer has connected.
    ///
    /// # Safety
    /// An open listener, which no other thread uses.
    pub unsafe fn accept(&self, listener: Object) -> Result<Option<Object>, NetError> {
        let (mut recv, mut offload) = (null_mut(), null_mut());
        // SAFETY: by the caller's contract; all pointers are valid during the call.
        let result = unsafe { call!(self.accept(listener, &mut recv, &mut offload)) };
        self.check("accept", result)?;
        Ok(not_null(recv))
    }

    /// Registers host memory for a communicator.
    ///
    /// # Safety
    /// An open communicator, which no other thread uses, and memory that stays valid until
    /// [`Self::deregister`].
    pub unsafe fn register(&self, comm: Object, memory: *mut [u8]) -> Result<Object, NetError> {
        let (start, mut region): (*mut c_void, _) = (memory.cast(), null_mut());
        // SAFETY: by the caller's contract.
        let result =
            unsafe { call!(self.reg_mr(comm, start, memory.len(), PTR_HOST, &mut region)) };
        self.check("regMr", result)?;
        Ok(region)
    }

    /// Ends a registration.
    ///
    /// # Safety
    /// A registration of this communicator, which no other thread uses.
    pub unsafe fn deregister(&self, comm: Object, region: Object) -> Result<(), NetError> {
        // SAFETY: by the caller's contract.
        self.check("deregMr", unsafe { call!(self.dereg_mr(comm, region)) })
    }

    /// Posts a send. Without a request, the caller must try again later.
    ///
    /// # Safety
    /// An open communicator, which no other thread uses, and registered memory that stays valid and
    /// unchanged until the request has completed or the communicator is closed.
    pub unsafe fn isend(
        &self,
        comm: Object,
        memory: *mut [u8],
        region: Object,
    ) -> Result<Option<Object>, NetError> {
        let (start, size): (*mut c_void, _) = (memory.cast(), memory.len());
        let mut request = null_mut();
        let out = &mut request;
        // SAFETY: by the caller's contract. No operation exceeds the device's maximum.
        let result = unsafe {
            match self.table {
                Table::V8(table) => (table.isend)(comm, start, size as c_int, TAG, region, out),
                Table::V9(table) => (table.isend)(comm, start, size, TAG, region, out),
                Table::V10(v10::Functions { isend, .. })
                | Table::V11(v11::Net { functions: v11::Functions { isend, .. }, .. }) => {
                    isend(comm, start, size, TAG, region, null_mut(), out)
                }
            }
        };
        self.check("isend", result)?;
        Ok(not_null(request))
    }

    /// Posts a receive. Without a request, the caller must try again later.
    ///
    /// # Safety
    /// As [`Self::isend`]; nothing else accesses the memory until then.
    pub unsafe fn irecv(
        &self,
        comm: Object,
        memory: *mut [u8],
        region: Object,
    ) -> Result<Option<Object>, NetError> {
        let (mut start, mut size): (*mut c_void, _) = (memory.cast(), memory.len());
        let (mut small, mut tag, mut region) = (size as c_int, TAG, region);
        // From version 9 on, the value 1 would mean that no completion is needed.
        let (mut profiler, mut request) = (null_mut(), null_mut());
        let (start, tag, region, out) = (&mut start, &mut tag, &mut region, &mut request);
        // SAFETY: by the caller's contract; groups have one receive.
        let result = unsafe {
            match self.table {
                Table::V8(table) => (table.irecv)(comm, 1, start, &mut small, tag, region, out),
                Table::V9(table) => (table.irecv)(comm, 1, start, &mut size, tag, region, out),
                Table::V10(v10::Functions { irecv, .. })
                | Table::V11(v11::Net { functions: v11::Functions { irecv, .. }, .. }) => {
                    irecv(comm, 1, start, &mut size, tag, region, &mut profiler, out)
                }
            }
        };
        self.check("irecv", result)?;
        Ok(not_null(request))
    }

    /// The number of bytes of a request, if it has completed, after which it does not exist.
    ///
    /// # Safety
    /// A request in flight, whose communicator no other thread uses.
    pub unsafe fn test(&self, request: Object) -> Result<Option<usize>, NetError> {
        let (mut done, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: by the caller's contract.
        self.check("test", unsafe { call!(self.test(request, &mut done, &mut size)) })?;
        Ok((done != 0).then(|| usize::try_from(size).unwrap_or(0)))
    }

    /// # Safety
    /// An open communicator or listener, which no one uses afterwards.
    pub unsafe fn close(&self, object: Object, kind: ObjectKind) -> Result<(), NetError> {
        // SAFETY: by the caller's contract.
        let (function, result) = unsafe {
            match kind {
                ObjectKind::Send => ("closeSend", call!(self.close_send(object))),
                ObjectKind::Recv => ("closeRecv", call!(self.close_recv(object))),
                ObjectKind::Listener => ("closeListen", call!(self.close_listen(object))),
            }
        };
        self.check(function, result)
    }
}

/// What an object of the plug-in is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    Send,
    Recv,
    Listener,
}

impl Drop for Net {
    fn drop(&mut self) {
        if let (Table::V11(table), true) = (self.table, self.has_context) {
            // SAFETY: the context of `init`; connections keep this object alive.
            unsafe { (table.finalize)(self.context) };
        }
    }
}

fn not_null(object: Object) -> Option<Object> {
    (!object.is_null()).then_some(object)
}
