//! How ranks share the work: one file per parallel axis.

pub mod collective;
pub mod context;
mod groups;
mod p2p;
pub mod pipeline;
pub mod tensor;
mod wait_time;
mod zero;

use regatta_comm::CommError;

pub use groups::{P2pLink, ProcessGroup, ProcessGroups};
pub use wait_time::WaitTime;
pub use zero::ZeroStage;

/// A result of communication.
pub type Result<T, E = CommError> = std::result::Result<T, E>;
