//! The network that NCCL or RCCL used, read from its debug log (`NCCL_DEBUG=INFO`).
//!
//! [`NetLog`] reads logs in chunks, of any number of files, with any prefix of a scheduler, and keeps a
//! bounded amount of facts per rank. [`report`] judges them; [`Requirement`] says which network must be
//! used.

mod debug_settings;
mod fabric_plugin;
mod interface;
mod judge;
mod log;
mod message;
mod record;
pub mod report;
mod requirement;
mod transport;

pub use debug_settings::DebugSettings;
pub use log::{NetLog, SourceId};
pub use report::NetReport;
pub use requirement::Requirement;
