//! Initialisation of a plug-in, and the properties of its NICs.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{from_ref, null_mut};

use regatta_plugin_abi::net::{
    CommConfig, DEVICE_HOST, PTR_HOST, ProfilerCallback, Properties, v8, v11,
};
use regatta_plugin_abi::{NcclResult, SUCCESS};

use super::{Device, Net, NetError, Table};
use crate::net_plugin::control_message::SLOT_BYTES;
use crate::net_plugin::library::{init_once, name};
use crate::net_plugin::logger::{logger, take_warnings};

/// No operation of the interface before version 9 is larger (`MAX_NET_SIZE` of NCCL).
const MAX_OPERATION_BYTES_V8: usize = 1 << 30;

/// Ignores events of the plug-in. NCCL always passes a function, so that plug-ins may not expect NULL.
extern "C" fn ignore_event(
    _handle: *mut *mut c_void,
    _kind: c_int,
    _parent: *mut c_void,
    _plugin: i64,
    _data: *mut c_void,
) -> NcclResult {
    SUCCESS
}

fn profiler() -> ProfilerCallback {
    ignore_event as ProfilerCallback
}

impl Net {
    /// Initialises a plug-in of this name and reads the properties of its NICs.
    pub fn init(table: Table, name: String, comm_id: u64) -> Result<Self, NetError> {
        let mut net =
            Self { table, context: null_mut(), has_context: false, name, devices: Vec::new() };
        let init = || {
            // SAFETY: the arguments are those of each version.
            let result = unsafe {
                match table {
                    Table::V8(table) => (table.init)(logger()),
                    Table::V9(table) => (table.init)(logger()),
                    Table::V10(table) => (table.init)(logger(), profiler()),
                    Table::V11(_) => SUCCESS,
                }
            };
            net.check("init", result)
        };
        match table {
            Table::V8(table) => init_once(from_ref(table).cast(), init)?,
            Table::V9(table) => init_once(from_ref(table).cast(), init)?,
            Table::V10(table) => init_once(from_ref(table).cast(), init)?,
            Table::V11(table) => {
                let (mut context, mut config) = (null_mut(), CommConfig { traffic_class: -1 });
                // SAFETY: all pointers are valid during the call.
                let result = unsafe {
                    (table.functions.init)(&mut context, comm_id, &mut config, logger(), profiler())
                };
                net.check("init", result)?;
                (net.context, net.has_context) = (context, true);
            }
        }
        net.devices = net.read_devices()?;
        Ok(net)
    }

    fn read_devices(&self) -> Result<Vec<Device>, NetError> {
        let mut count: c_int = 0;
        // SAFETY: the count is valid during the call.
        self.check("devices", unsafe { call!(self.devices(&mut count)) })?;
        if count <= 0 {
            return Err(NetError::NoDevice {
                plugin: self.name.clone(),
                warnings: take_warnings(),
            });
        }
        (0..count).map(|device| self.properties(device)).collect()
    }

    fn properties(&self, device: c_int) -> Result<Device, NetError> {
        // SAFETY: zeroes are valid values of all properties.
        let mut old: v8::Properties = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: as above.
        let mut new: v11::Properties = unsafe { MaybeUninit::zeroed().assume_init() };
        let common: *mut Properties = &mut new.common;
        // SAFETY: the NIC exists, and the properties are those of the version.
        let result = unsafe {
            match self.table {
                Table::V8(table) => (table.get_properties)(device, &mut old),
                Table::V9(table) => (table.get_properties)(device, common),
                Table::V10(table) => (table.get_properties)(device, common),
                Table::V11(table) => (table.functions.get_properties)(device, &mut new),
            }
        };
        self.check("getProperties", result)?;
        let (text, pointers, device_type, max_bytes) = match self.table {
            Table::V8(_) => {
                (old.name, old.pointer_support, old.device_type, MAX_OPERATION_BYTES_V8)
            }
            _ => {
                let Properties { name, pointer_support, device_type, max_p2p_bytes, .. } =
                    new.common;
                (name, pointer_support, device_type, max_p2p_bytes)
            }
        };
        // SAFETY: the plug-in writes NULL or a C string that stays valid.
        let name = unsafe { name(text) };
        let why = match () {
            () if pointers & PTR_HOST == 0 => "does not support host memory",
            () if device_type != DEVICE_HOST => "needs a GPU for its messages",
            () if max_bytes < SLOT_BYTES => "has a largest message of less than 16 KiB",
            () => return Ok(Device { name, max_bytes }),
        };
        Err(NetError::Device { plugin: self.name.clone(), device, name, why })
    }
}
