//! Inter-node communication over libfabric, loaded at run time: Slingshot (cxi), EFA, InfiniBand
//! (verbs), Omni-Path, or any other provider by name.
//!
//! Only data messages use libfabric. Bootstrap, authentication, heartbeats and fault reports stay on
//! the TCP control plane.
//!
//! libfabric does not authenticate senders: any process that reaches a rank's endpoint can send to
//! it. Stray messages of other jobs are detected by a job key derived from the secret and dropped,
//! which does not protect against eavesdroppers. Shared fabrics isolate jobs themselves.

mod fabric;
mod incoming;
mod message_header;
mod negotiate;
mod network;
mod network_choice;
mod outgoing;
mod requests;
mod tag;
#[cfg(test)]
mod tests;

pub use regatta_fabric::{ProviderChoice, available_providers};

pub(crate) use negotiate::{has_fabric, select_network};
pub(crate) use network_choice::Preference;
