//! Inter-node communication over libfabric, loaded at run time: Slingshot (cxi), EFA, InfiniBand
//! (verbs), Omni-Path, or any other provider by name.
//!
//! Only data messages use libfabric. Bootstrap, authentication, heartbeats and fault reports stay on
//! the TCP control plane.
//!
//! libfabric does not authenticate senders: any process that reaches a rank's endpoint can send to
//! it. Stray messages of other jobs are detected by a job key derived from the secret and dropped,
//! which does not protect against eavesdroppers. Shared fabrics isolate jobs themselves.

use std::collections::BTreeSet;

mod abi;
mod atexit_guard;
mod endpoint;
mod fabric;
mod incoming;
mod library;
mod message_header;
mod negotiate;
mod network;
mod outgoing;
mod provider_choice;
mod requests;
mod shm_cleanup;
mod tag;
#[cfg(test)]
mod tests;

pub use provider_choice::ProviderChoice;

pub(crate) use negotiate::{has_fabric, select_network};
pub(crate) use provider_choice::Preference;

/// The result of a libfabric operation, or the error message.
type FiResult<T = ()> = Result<T, String>;

/// The libfabric providers available on this node, each as `PROVIDER/DOMAIN`, or why libfabric
/// cannot be queried.
pub fn available_providers() -> Result<Vec<String>, String> {
    let names = library::library()?.infos(None, None, true)?.names().into_iter();
    let names = names.map(|(provider, domain)| format!("{provider}/{domain}"));
    Ok(names.collect::<BTreeSet<_>>().into_iter().collect())
}
