//! Collectives between the ranks of a job: fast, honest, and they never hang.
//!
//! [`Comm`] is the one trait, over [`Call`]s, which say what is to be done in bytes; what people
//! call, with slices of numbers, is [`Collectives`], which every `Comm` has.

pub mod background;
pub mod blame;
pub mod buffer;
pub mod call;
pub mod collectives;
pub mod comm;
pub mod count;
pub mod counts;
pub mod dtype;
pub mod error;
pub mod execute;
pub mod fabric;
pub mod fake;
pub mod host;
pub mod join;
pub mod kernel;
pub mod named;
pub mod nccl;
pub mod op;
pub mod owned;
pub mod reference;
pub mod schedule;
pub mod shm;
pub mod tcp;
pub mod transport;
pub mod tune;
pub mod whole;

pub use buffer::{Buffer, Space};
pub use call::{Call, Kind, Signature};
pub use collectives::Collectives;
pub use comm::{Comm, Pending};
pub use count::{Counted, Counters, Sent};
pub use counts::Counts;
pub use dtype::{DType, Element};
pub use error::CommError;
pub use named::Named;
pub use op::ReduceOp;
pub use owned::OwnedCall;
