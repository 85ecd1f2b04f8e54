//! Messages over the net plug-in of NCCL or RCCL that a user names, loaded at run time: tests a
//! plug-in without a GPU and without NCCL.
//!
//! Three layers: `library` opens the plug-in and selects its newest table, `table` makes one interface of
//! all versions, and `connection` keeps the contract of a communicator of the plug-in. `peer` moves
//! messages over the connections to and from one rank, and `network` implements the trait `Network` of all
//! transports.
//!
//! Only data messages use the plug-in. Bootstrap, authentication, heartbeats and fault reports stay on
//! the TCP control plane. The interface of NCCL does not authenticate peers; control messages of
//! other jobs are detected by a job key derived from the secret.

mod chunks;
mod connection;
mod control_message;
mod incoming;
mod library;
mod logger;
mod loopback;
mod negotiate;
mod network;
mod outgoing;
mod peer;
mod setup;
mod table;

pub use library::{LoadError, SUPPORTED_VERSIONS};

pub(crate) use negotiate::select_network;
