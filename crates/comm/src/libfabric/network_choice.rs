//! Which network the preferences of all ranks lead to. No I/O.

use regatta_fabric::ProviderChoice;
use serde::{Deserialize, Serialize};

/// The network preference of a rank, announced when it joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Preference {
    /// TCP only.
    Tcp,
    /// Automatic, on a node without a high-speed network.
    AutoTcp,
    /// Automatic, on a node with a high-speed network.
    AutoFabric,
    /// A named provider.
    Named,
    /// A net plug-in of NCCL, in place of libfabric.
    NetPlugin,
}

impl Preference {
    /// The preference announced to the other ranks before anything is opened.
    pub fn new(choice: &ProviderChoice, has_fabric: bool) -> Self {
        match choice {
            ProviderChoice::Tcp => Self::Tcp,
            ProviderChoice::Auto if has_fabric => Self::AutoFabric,
            ProviderChoice::Auto => Self::AutoTcp,
            ProviderChoice::Named { .. } => Self::Named,
        }
    }
}

/// The network that follows from the preferences of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkChoice {
    /// TCP, and why.
    Tcp(String),
    /// The ranks negotiate a provider.
    Negotiate,
    /// The ranks load a net plug-in of NCCL.
    NetPlugin,
    /// Two ranks with incompatible preferences.
    Conflict(usize, usize),
}

impl NetworkChoice {
    /// Derives the network. `peer` describes a rank.
    pub fn new(preferences: &[Preference], peer: impl Fn(usize) -> String) -> Self {
        let is_auto = |one: Preference| matches!(one, Preference::AutoTcp | Preference::AutoFabric);
        let first = preferences.first().copied().unwrap_or(Preference::Tcp);
        let same = |one: &Preference| *one == first || (is_auto(*one) && is_auto(first));
        if let Some(other) = preferences.iter().position(|one| !same(one)) {
            return Self::Conflict(0, other);
        }
        match (first, preferences.iter().position(|one| *one == Preference::AutoTcp)) {
            (Preference::NetPlugin, _) => Self::NetPlugin,
            (Preference::Tcp, _) => Self::Tcp("REGATTA_FABRIC is off".to_owned()),
            (_, Some(rank)) => Self::Tcp(format!("{} has no high-speed network", peer(rank))),
            _ => Self::Negotiate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incompatible_preferences_conflict() {
        use Preference::{AutoFabric, AutoTcp, Named, NetPlugin, Tcp};
        let choice = |all: &[Preference]| NetworkChoice::new(all, |rank| format!("rank {rank}"));
        assert_eq!(choice(&[AutoFabric, AutoFabric]), NetworkChoice::Negotiate);
        assert_eq!(choice(&[Named, Named]), NetworkChoice::Negotiate);
        let tcp = NetworkChoice::Tcp("rank 1 has no high-speed network".to_owned());
        assert_eq!(choice(&[AutoFabric, AutoTcp, AutoTcp]), tcp);
        assert_eq!(choice(&[Named, Named, Tcp]), NetworkChoice::Conflict(0, 2));
        assert_eq!(choice(&[NetPlugin, NetPlugin]), NetworkChoice::NetPlugin);
        assert_eq!(choice(&[AutoTcp, NetPlugin]), NetworkChoice::Conflict(0, 1));
        assert!(matches!(choice(&[Tcp, Tcp]), NetworkChoice::Tcp(_)));
    }
}
