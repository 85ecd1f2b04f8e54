//! The network plug-in of NCCL and RCCL: their transport over libfabric.
//!
//! NCCL loads the library that `NCCL_NET_PLUGIN` names, chooses the newest table of functions that it knows,
//! and calls them: [`abi::v8`] to [`abi::v11`]. Each version converts NCCL's arguments to one model;
//! [`session`] holds the NICs of the process, and `regatta_fabric::net` moves the messages.
//!
//! If no suitable provider is found, the plug-in says why and reports no NIC, so that NCCL uses a transport
//! of its own; with `REGATTA_NET=require` the job fails instead. No panic crosses the boundary: it is an
//! error of the call.

pub mod abi;
mod gpu;
mod message;
pub mod session;
