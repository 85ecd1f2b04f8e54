//! libfabric, loaded at run time: Slingshot (cxi), EFA, InfiniBand (verbs), Omni-Path, TCP, shared memory,
//! or any other provider by name.
//!
//! [`library`] finds providers, [`endpoint`] opens one of their domains and moves tagged messages,
//! [`in_flight`] owns what an operation needs until it completes. The collectives of `regatta-comm` and the
//! network plug-in of NCCL both run on these. [`net`] has the connections of the plug-in.

pub mod abi;
pub mod atexit_guard;
pub mod endpoint;
pub mod in_flight;
pub mod library;
pub mod memory;
pub mod net;
mod provider_choice;
pub mod shm_cleanup;
pub mod shm_lock;

use std::collections::BTreeSet;

pub use provider_choice::ProviderChoice;

/// The result of a libfabric operation, or the error message.
pub type FiResult<T = ()> = Result<T, String>;

/// The libfabric providers available on this node, each as `PROVIDER/DOMAIN`, or why libfabric
/// cannot be queried.
pub fn available_providers() -> Result<Vec<String>, String> {
    let query = library::Query { registration: true, ..library::Query::default() };
    let names = library::library()?.infos(&query)?.names().into_iter();
    let names = names.map(|(provider, domain)| format!("{provider}/{domain}"));
    Ok(names.collect::<BTreeSet<_>>().into_iter().collect())
}
