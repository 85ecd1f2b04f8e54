//! Ranks of different nodes, through libfabric, where it is found at run time: Slingshot (cxi), EFA,
//! InfiniBand (verbs), Omni-Path, or by name any other provider.
//!
//! Only the messages between ranks go this way. How ranks find each other and know each other, signs
//! of life, and what is wrong stay with `tcp`: rank 0's connections. A `Carrier` takes the place of
//! the connections between ranks, and everything above it is the same.
//!
//! libfabric proves nothing of who sends: whoever reaches a rank's endpoint can send to it. Strays
//! of other jobs are told by a number made of the job's secret and thrown away, which is no
//! protection from somebody who listens. Fabrics that share a network keep jobs apart themselves.

mod abi;
mod carrier;
mod choose;
mod gear;
mod incoming;
mod leaving;
mod library;
mod meet;
mod opening;
mod outgoing;
mod port;
mod tag;
#[cfg(test)]
mod tests;
mod tidy;

pub use choose::Choice;

pub(crate) use carrier::{Carrier, GRACE, SHORT_GRACE};
pub(crate) use choose::Wish;
pub(crate) use meet::{connect, fast_network};

/// What libfabric offers here, each as `PROVIDER/DOMAIN`; in words why it cannot be asked.
pub fn offered() -> Result<Vec<String>, String> {
    let wanted = library::Wanted { provider: None, source: None, registered: true };
    let mut names: Vec<String> = library::library()?
        .offers(wanted)?
        .names()
        .into_iter()
        .map(|(p, d)| format!("{p}/{d}"))
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}
