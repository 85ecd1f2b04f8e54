//! Collective communication between the ranks of a job: fast, deterministic, and free of hangs.
//!
//! [`Comm`] is the one trait. It runs [`Call`]s, which describe a collective on bytes;
//! [`Collectives`], which every `Comm` implements, is the typed interface on slices.

pub mod bootstrap;
pub mod buffer;
pub mod call;
pub mod collectives;
pub mod comm;
pub mod control;
pub mod counts;
pub mod dtype;
pub mod engine;
mod enum_names;
pub mod error;
pub mod event;
pub mod execute;
pub mod libfabric;
mod locks;
mod matching;
pub mod net_plugin;
mod network;

pub mod communicator;
pub mod gather;
pub mod gpu_runtime;
pub mod hierarchical;
pub mod nccl;
pub mod owned_call;
mod prefetch;
pub mod recording;
pub mod reduce_kernel;
pub mod reduce_op;
pub mod schedule;
pub mod shm;
mod tcp;
pub mod traffic;
pub mod translate_ranks;
pub mod transport;
pub mod transports;
pub mod tune;

// Tests of this crate compile what other crates use for their tests.
#[cfg(test)]
extern crate self as regatta_comm;
#[cfg(test)]
#[path = "../../testbed/src/in_process.rs"]
mod in_process;
#[cfg(test)]
#[path = "../../testbed/src/one_node.rs"]
mod one_node;
#[cfg(test)]
#[path = "../../testbed/src/reference.rs"]
mod reference;

pub use buffer::{Buffer, MemorySpace};
pub use call::{Call, CallKind, Signature};
pub use collectives::Collectives;
pub use comm::{Comm, Pending};
pub use communicator::Communicator;
pub use counts::Counts;
pub use dtype::{DType, Element};
pub use error::{CommError, Result};
pub use event::Event;
pub use network::NetworkEngine;
pub use owned_call::OwnedCall;
pub use reduce_op::ReduceOp;
pub use traffic::{CountingComm, TrafficCounters, TrafficSnapshot};
pub use translate_ranks::TranslatedComm;
