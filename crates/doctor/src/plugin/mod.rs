//! Plug-ins of NCCL and RCCL: which interfaces a library exports, and which releases use them.
//!
//! Nothing here does I/O: [`crate::collect`] reads the file and asks the dynamic loader.

pub mod environment;
pub mod kind;
pub mod names;
mod notes;
pub mod releases;
pub mod report;
#[cfg(test)]
mod tests;

pub use kind::{Interface, PluginKind};
pub use releases::{CollectiveLibrary, RELEASES, Release};
pub use report::{LibraryFacts, LibraryReport, LoadResult, PluginReport};
