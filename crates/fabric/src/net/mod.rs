//! Connections over libfabric with the semantics of NCCL's network interface: unidirectional, messages in
//! order, receives in groups, nothing blocks.
//!
//! ```text
//! receiver                                   sender
//! listen -> handle  ----- by the host ---->  connect          handle.rs, listen.rs, connect.rs
//! accept            <-- TCP: hello, hello -->                 hello.rs
//! irecv: posts receives, each with a tag
//!        clear-to-send: tags and sizes ----> isend may send   clear_to_send.rs, grants.rs
//!        data arrives in the posted memory <-- tagged send    nic/
//! ```
//!
//! A message is sent only after its receive is posted. So the provider never has to buffer an unexpected
//! message, however far the sender is ahead, and data goes directly to its destination.
//!
//! With the TCP providers each connection has an endpoint of its own instead (`FI_EP_MSG`, `nic/connected.rs`).
//! Its messages match in order, without tags and clear-to-send, and the kernel holds back the sender.
//!
//! The TCP connection of the handshake stays open. It carries no data: by it the kernel of the peer says that
//! the process exists, and a peer that was killed or cannot be reached is an error, not a hang.

mod clear_to_send;
mod connect;
pub mod device;
mod frame;
mod grants;
pub mod handle;
pub mod hello;
pub mod interface;
mod listen;
mod nic;
pub mod settings;
mod sysfs;
mod tag;
#[cfg(test)]
mod tests;

pub use clear_to_send::{CONTROL_BYTES, ClearToSend};
pub use connect::Connectors;
pub use listen::Listener;
pub use nic::{Buffer, Connection, FlushBuffer, Nic, NicOptions, RequestHandle, TestResult};

/// The most receives of a group.
pub const MAX_GROUPED_RECVS: usize = 8;
/// The most requests in flight of a connection.
pub const MAX_REQUESTS: usize = 32;

/// An error of a connection, for the log.
pub type NetResult<T = ()> = Result<T, String>;
