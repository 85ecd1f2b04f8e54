//! Opens the library as NCCL does, and calls the table of one version.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::mem::zeroed;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use nccl_profiler_regatta::abi::{
    KernelChannel, ProxyOp, ProxyStep, SUCCESS, event, v3, v4, v5, v6,
};
use nccl_profiler_regatta::log::Logger;

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
pub fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libnccl_profiler_regatta.so")
}

/// A pointer that NCCL keeps for the plug-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opaque(pub *mut c_void);

// SAFETY: NCCL passes these pointers between threads, too, and never follows them.
unsafe impl Send for Opaque {}

/// The opened library and the table of one version.
pub struct Plugin {
    library: *mut c_void,
    pub version: u32,
    table: *const c_void,
}

// SAFETY: the library's functions may be called by any thread.
unsafe impl Sync for Plugin {}

/// A collective call, as NCCL reports it.
#[derive(Debug, Clone, Copy)]
pub struct CollectiveCall<'a> {
    pub comm_hash: u64,
    pub comm_name: Option<&'a CStr>,
    pub rank: i32,
    pub sequence: u64,
    pub function: Option<&'a CStr>,
    pub count: usize,
    pub root: i32,
    pub dtype: Option<&'a CStr>,
    pub channels: u8,
    pub algorithm: Option<&'a CStr>,
    pub protocol: Option<&'a CStr>,
}

/// A point-to-point call, as NCCL reports it.
#[derive(Debug, Clone, Copy)]
pub struct P2pCall<'a> {
    pub comm_hash: u64,
    pub rank: i32,
    pub function: &'a CStr,
    pub count: usize,
    pub peer: i32,
    pub dtype: &'a CStr,
    pub channels: u8,
}

/// Calls a function of the version's table, with a descriptor of the version's type.
macro_rules! with_table {
    ($self:ident, $table:ident => $body:expr) => {
        // SAFETY: the library exports tables of these types, and all arguments are valid.
        unsafe {
            match $self.version {
                3 => {
                    let $table = &*$self.table.cast::<v3::Profiler>();
                    $body
                }
                4 => {
                    let $table = &*$self.table.cast::<v4::Profiler>();
                    $body
                }
                5 => {
                    let $table = &*$self.table.cast::<v5::Profiler>();
                    $body
                }
                _ => {
                    let $table = &*$self.table.cast::<v6::Profiler>();
                    $body
                }
            }
        }
    };
}

fn pointer(text: Option<&CStr>) -> *const c_char {
    text.map_or(null(), CStr::as_ptr)
}

impl Plugin {
    /// Opens the library as NCCL does.
    pub fn open(version: u32) -> Self {
        let path = CString::new(library().to_str().unwrap()).unwrap();
        let symbol = CString::new(format!("ncclProfiler_v{version}")).unwrap();
        // SAFETY: the library's initialisation has no effects.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null(), "cannot open {path:?}");
            let table = libc::dlsym(library, symbol.as_ptr());
            assert!(!table.is_null(), "no {symbol:?}");
            Self { library, version, table }
        }
    }

    /// Closes the library as NCCL does.
    pub fn close(self) {
        // SAFETY: nothing uses the table any more.
        assert_eq!(unsafe { libc::dlclose(self.library) }, 0);
    }

    /// Opens a communicator. Returns its context and the event mask.
    pub fn init(&self, id: u64, name: Option<&CStr>, ranks: i32, rank: i32) -> (Opaque, u64) {
        let (mut context, mut mask) = (null_mut(), -1);
        let (context_, mask_, name, nodes) = (&mut context, &mut mask, pointer(name), 1);
        // SAFETY: the tables are of these types, and all pointers are valid.
        let result = unsafe {
            match self.version {
                3 => ((*self.table.cast::<v3::Profiler>()).init)(context_, mask_),
                4 => {
                    let init = (*self.table.cast::<v4::Profiler>()).init;
                    init(context_, mask_, name, id, nodes, ranks, rank, logger())
                }
                // Both versions have the same function.
                _ => {
                    let init = (*self.table.cast::<v5::Profiler>()).init;
                    init(context_, id, mask_, name, nodes, ranks, rank, logger())
                }
            }
        };
        assert_eq!(result, SUCCESS);
        (Opaque(context), mask as u64)
    }

    pub fn finalize(&self, context: Opaque) {
        assert_eq!(with_table!(self, table => (table.finalize)(context.0)), SUCCESS);
    }

    pub fn stop(&self, handle: Opaque) {
        assert_eq!(with_table!(self, table => (table.stop_event)(handle.0)), SUCCESS);
    }

    /// Reports a state. NCCL passes arguments with all of them.
    pub fn record(&self, handle: Opaque, state: c_int, value: u64) {
        // Bytes and steps of a transfer so far.
        let old = [value as usize, 1];
        // SAFETY: the tables are of these types, and all pointers are valid.
        let result = unsafe {
            match self.version {
                3 => {
                    let record = (*self.table.cast::<v3::Profiler>()).record_event_state;
                    record(handle.0, state, (&raw const old).cast())
                }
                _ => {
                    let record = (*self.table.cast::<v4::Profiler>()).record_event_state;
                    record(handle.0, state, &value)
                }
            }
        };
        assert_eq!(result, SUCCESS);
    }

    /// Starts an event. `fill_v3` to `fill_v6` write the version's detail.
    fn start(
        &self,
        context: Opaque,
        event_type: u64,
        parent: Opaque,
        rank: i32,
        fill: impl FnOnce(&mut v3::Detail, &mut v4::Detail, &mut v6::Detail),
    ) -> Opaque {
        // NCCL's variable still has the handle of an older event.
        let mut handle = std::ptr::without_provenance_mut(0xdead_0003);
        // SAFETY: zero is valid for all fields; the tables are of these types.
        let result = unsafe {
            let (mut d3, mut d4, mut d6) = (zeroed(), zeroed(), zeroed());
            fill(&mut d3, &mut d4, &mut d6);
            let parent = parent.0;
            match self.version {
                3 => {
                    let event_type = event_type as u8;
                    let event = v3::EventDescriptor { event_type, parent, rank, detail: d3 };
                    let start = (*self.table.cast::<v3::Profiler>()).start_event;
                    start(context.0, &mut handle, &event)
                }
                4 => {
                    let event_type = event_type as u8;
                    let event = v4::EventDescriptor { event_type, parent, rank, detail: d4 };
                    let start = (*self.table.cast::<v4::Profiler>()).start_event;
                    start(context.0, &mut handle, &event)
                }
                5 => {
                    let event = v5::EventDescriptor { event_type, parent, rank, detail: d6.v5 };
                    let start = (*self.table.cast::<v5::Profiler>()).start_event;
                    start(context.0, &mut handle, &event)
                }
                _ => {
                    let event = v6::EventDescriptor { event_type, parent, rank, detail: d6 };
                    let start = (*self.table.cast::<v6::Profiler>()).start_event;
                    start(context.0, &mut handle, &event)
                }
            }
        };
        assert_eq!(result, SUCCESS);
        Opaque(handle)
    }

    pub fn group(&self, context: Opaque) -> Opaque {
        self.start(context, event::GROUP, Opaque(null_mut()), 0, |_, _, _| {})
    }

    /// The call of the API; versions before 5 do not report it.
    pub fn api(&self, context: Opaque, p2p: bool, dtype: Option<&CStr>, captured: bool) -> Opaque {
        if self.version < 5 {
            return Opaque(null_mut());
        }
        let event_type = if p2p { event::P2P_API } else { event::COLLECTIVE_API };
        self.start(context, event_type, Opaque(null_mut()), 0, |_, _, detail| match p2p {
            true => {
                detail.v5.p2p_api.dtype = pointer(dtype);
                detail.v5.p2p_api.graph_captured = u8::from(captured);
            }
            false => {
                detail.v5.collective_api.dtype = pointer(dtype);
                detail.v5.collective_api.graph_captured = u8::from(captured);
            }
        })
    }

    pub fn collective(
        &self,
        context: Opaque,
        group: Opaque,
        api: Opaque,
        call: &CollectiveCall<'_>,
    ) -> Opaque {
        let parent = if self.version < 5 { group } else { api };
        let (function, dtype) = (pointer(call.function), pointer(call.dtype));
        let (algorithm, protocol) = (pointer(call.algorithm), pointer(call.protocol));
        self.start(context, event::COLLECTIVE, parent, call.rank, |d3, d4, d6| {
            let base = v4::CollectiveDetail {
                sequence: call.sequence,
                function,
                send_buffer: null(),
                receive_buffer: null_mut(),
                count: call.count,
                root: call.root,
                dtype,
                channels: call.channels,
                warps: 16,
                algorithm,
                protocol,
            };
            let (name, comm_hash) = (pointer(call.comm_name), call.comm_hash);
            d3.collective = v3::CollectiveDetail { name, comm_hash, base };
            d4.collective = base;
            d6.v5.collective = v5::CollectiveDetail { base, parent_group: group.0 };
        })
    }

    /// A collective of the copy engines, in version 6.
    pub fn copy_engine(&self, context: Opaque, api: Opaque, call: &CollectiveCall<'_>) -> Opaque {
        self.start(context, event::COPY_ENGINE_COLLECTIVE, api, call.rank, |_, _, d6| {
            // SAFETY: zero is valid for all fields.
            let zero: v6::CopyEngineDetail = unsafe { zeroed() };
            d6.copy_engine = v6::CopyEngineDetail {
                sequence: call.sequence,
                function: pointer(call.function),
                count: call.count,
                root: call.root,
                dtype: pointer(call.dtype),
                sync_strategy: c"UC".as_ptr(),
                ..zero
            };
        })
    }

    pub fn p2p(&self, context: Opaque, group: Opaque, api: Opaque, call: &P2pCall<'_>) -> Opaque {
        let parent = if self.version < 5 { group } else { api };
        let (function, dtype) = (call.function.as_ptr(), call.dtype.as_ptr());
        self.start(context, event::P2P, parent, call.rank, |d3, d4, d6| {
            let (count, peer, buffer) = (call.count, call.peer, null_mut());
            let (name, comm_hash) = (null(), call.comm_hash);
            d3.p2p = v3::P2pDetail { name, comm_hash, function, buffer, dtype, count, peer };
            let base =
                v4::P2pDetail { function, buffer, dtype, count, peer, channels: call.channels };
            d4.p2p = base;
            d6.v5.p2p = v5::P2pDetail { base, parent_group: group.0 };
        })
    }

    pub fn kernel(&self, context: Opaque, parent: Opaque, channel: u8, timer: u64) -> Opaque {
        self.start(context, event::KERNEL_CHANNEL, parent, 0, |d3, d4, d6| {
            let kernel = KernelChannel { channel_id: channel, p_timer: timer };
            d3.channel_id = channel;
            d4.kernel_channel = kernel;
            d6.v5.v4.kernel_channel = kernel;
        })
    }

    pub fn proxy_op(
        &self,
        context: Opaque,
        parent: Opaque,
        pid: i32,
        channel: u8,
        sends: bool,
    ) -> Opaque {
        self.start(context, event::PROXY_OP, parent, 0, |d3, d4, d6| {
            let proxy_op = ProxyOp {
                pid,
                channel_id: channel,
                peer: 1,
                n_steps: 2,
                chunk_size: 1 << 19,
                is_send: c_int::from(sends),
            };
            d3.proxy_op = proxy_op;
            d4.proxy_op = proxy_op;
            d6.v5.v4.proxy_op = proxy_op;
        })
    }

    pub fn proxy_step(&self, context: Opaque, parent: Opaque, step: i32) -> Opaque {
        self.start(context, event::PROXY_STEP, parent, 0, |d3, d4, d6| {
            let step = ProxyStep { step };
            d3.proxy_step = step;
            d4.proxy_step = step;
            d6.v5.v4.proxy_step = step;
        })
    }
}
