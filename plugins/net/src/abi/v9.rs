//! Version 9: sizes of 64 bits, virtual devices.

use regatta_plugin_abi::net::v9::Net;

use super::v8::{irecv, isend};

/// The table that NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL's name")]
pub static ncclNetPlugin_v9: Net = Net {
    functions: super::functions(
        super::init,
        super::get_properties,
        super::listen,
        super::connect,
        isend,
        irecv,
    ),
    make_v_device: None,
};
