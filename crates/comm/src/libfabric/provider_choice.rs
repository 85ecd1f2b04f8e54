//! Selection of the network and of a libfabric provider. No I/O.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// High-speed providers, best first.
const HIGH_SPEED: [&str; 7] = ["cxi", "efa", "opx", "psm3", "psm2", "verbs;ofi_rxm", "verbs"];

/// Providers with IP addresses, which use the address that peers reach this rank by.
const IP_PROVIDERS: [&str; 4] = ["tcp", "net", "sockets", "udp"];

/// The network for messages between ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ProviderChoice {
    /// The built-in TCP transport.
    Tcp,
    /// libfabric if every rank has a high-speed provider, else TCP.
    #[default]
    Auto,
    /// A libfabric provider.
    Named {
        /// The provider name, with or without utility layers.
        provider: String,
        /// The domain.
        domain: Option<String>,
    },
}

impl ProviderChoice {
    /// Parses `off`, `auto`, `PROVIDER` or `PROVIDER/DOMAIN`.
    pub fn parse(text: &str) -> Self {
        match text.trim() {
            "off" => Self::Tcp,
            "" | "auto" => Self::Auto,
            name => {
                let (provider, domain) = name.split_once('/').unzip();
                let provider = provider.unwrap_or(name).to_owned();
                Self::Named { provider, domain: domain.map(str::to_owned) }
            }
        }
    }

    /// Whether the provider has IP addresses.
    fn has_ip_addresses(&self) -> bool {
        let Self::Named { provider, .. } = self else { return false };
        IP_PROVIDERS.contains(&provider.split(';').next().unwrap_or_default())
    }

    /// The source address for the provider: the bind address, or the one that peers use. Most
    /// providers have none; for verbs, the bind address selects the NIC.
    pub fn source(&self, bind: Option<IpAddr>, own: Option<IpAddr>) -> Option<IpAddr> {
        match self {
            Self::Named { provider, .. } if provider.starts_with("verbs") => bind,
            _ if self.has_ip_addresses() => bind.or(own),
            _ => None,
        }
    }

    /// The preference announced to the other ranks before anything is opened.
    pub fn preference(&self, has_fabric: bool) -> Preference {
        match self {
            Self::Tcp => Preference::Tcp,
            Self::Auto if has_fabric => Preference::AutoFabric,
            Self::Auto => Preference::AutoTcp,
            Self::Named { .. } => Preference::Named,
        }
    }

    /// Selects one of the `(provider, domain)` pairs. The ranks of a node are spread over the
    /// provider's domains in blocks.
    pub fn select(
        &self,
        infos: &[(String, String)],
        local_rank: usize,
        local_size: usize,
    ) -> Option<usize> {
        let of = |wanted: &str| -> Vec<usize> {
            let layered = format!("{wanted};");
            let matches = |name: &str| name == wanted || name.starts_with(&layered);
            (0..infos.len()).filter(|&at| matches(&infos[at].0)).collect()
        };
        let (candidates, domain) = match self {
            Self::Tcp => return None,
            Self::Auto => {
                let found = HIGH_SPEED.iter().map(|name| of(name));
                (found.into_iter().find(|found| !found.is_empty())?, None)
            }
            Self::Named { provider, domain } => (of(provider), domain.as_ref()),
        };
        // Prefers the provider without utility layers.
        let plain = |at: &&usize| !infos[**at].0.contains(';');
        let provider = &infos[*candidates.iter().find(plain).or(candidates.first())?].0;
        let mut domains: Vec<usize> = Vec::new();
        for at in candidates {
            let known = domains.iter().any(|&other| infos[other].1 == infos[at].1);
            let wanted = domain.is_none_or(|domain| *domain == infos[at].1);
            if !known && wanted && infos[at].0 == *provider {
                domains.push(at);
            }
        }
        // With a source address, the first domain is the best match.
        let spread = local_rank * domains.len() / local_size.max(1);
        let index = if self.has_ip_addresses() { 0 } else { spread };
        domains.get(index).or(domains.last()).copied()
    }
}

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
}

/// The network that follows from the preferences of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkPlan {
    /// TCP, and why.
    Tcp(String),
    /// The ranks negotiate a provider.
    Negotiate,
    /// Two ranks with incompatible preferences.
    Conflict(usize, usize),
}

impl NetworkPlan {
    /// Derives the plan. `peer` describes a rank.
    pub fn new(preferences: &[Preference], peer: impl Fn(usize) -> String) -> Self {
        let is_auto = |one: Preference| matches!(one, Preference::AutoTcp | Preference::AutoFabric);
        let first = preferences.first().copied().unwrap_or(Preference::Tcp);
        let same = |one: &Preference| *one == first || (is_auto(*one) && is_auto(first));
        if let Some(other) = preferences.iter().position(|one| !same(one)) {
            return Self::Conflict(0, other);
        }
        match (first, preferences.iter().position(|one| *one == Preference::AutoTcp)) {
            (Preference::Tcp, _) => Self::Tcp("REGATTA_FABRIC is off".to_owned()),
            (_, Some(rank)) => Self::Tcp(format!("{} has no high-speed network", peer(rank))),
            _ => Self::Negotiate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infos(names: &[(&str, &str)]) -> Vec<(String, String)> {
        names.iter().map(|(p, d)| ((*p).to_owned(), (*d).to_owned())).collect()
    }

    #[test]
    fn auto_selects_high_speed_providers_only() {
        let slow = infos(&[("tcp;ofi_rxm", "eth0"), ("shm", "shm")]);
        assert_eq!(ProviderChoice::Auto.select(&slow, 0, 1), None);
        assert_eq!(ProviderChoice::parse("tcp").select(&slow, 0, 1), Some(0));
        assert_eq!(ProviderChoice::parse("shm").select(&slow, 0, 1), Some(1));
        assert_eq!(ProviderChoice::parse("sh").select(&slow, 0, 1), None);
        let both = infos(&[("tcp;ofi_rxm", "eth0"), ("tcp", "eth0")]);
        assert_eq!(ProviderChoice::parse("tcp").select(&both, 0, 1), Some(1));
        assert_eq!(ProviderChoice::parse("tcp;ofi_rxm").select(&both, 0, 1), Some(0));
        let fast = infos(&[("verbs;ofi_rxm", "mlx5_0"), ("tcp", "eth0"), ("cxi", "cxi0")]);
        assert_eq!(ProviderChoice::Auto.select(&fast, 0, 1), Some(2));
        assert_eq!(ProviderChoice::parse("off").select(&fast, 0, 1), None);
    }

    #[test]
    fn only_ip_providers_and_verbs_get_a_source_address() {
        let [bind, own] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().ok());
        assert_eq!(ProviderChoice::parse("tcp").source(bind, own), bind);
        assert_eq!(ProviderChoice::parse("udp;ofi_rxd").source(None, own), own);
        assert_eq!(ProviderChoice::parse("verbs").source(bind, own), bind);
        assert_eq!(ProviderChoice::parse("verbs").source(None, own), None);
        assert_eq!(ProviderChoice::parse("cxi").source(bind, own), None);
        assert_eq!(ProviderChoice::Auto.source(bind, own), None);
    }

    #[test]
    fn ranks_of_a_node_are_spread_over_its_domains() {
        let of = infos(&[("cxi", "cxi0"), ("cxi", "cxi0"), ("cxi", "cxi1"), ("tcp", "lo")]);
        let selected = [0, 1, 2, 3].map(|rank| ProviderChoice::Auto.select(&of, rank, 4));
        assert_eq!(selected, [Some(0), Some(0), Some(2), Some(2)]);
        assert_eq!(ProviderChoice::parse("cxi/cxi1").select(&of, 0, 4), Some(2));
        assert_eq!(ProviderChoice::parse("cxi/cxi7").select(&of, 0, 4), None);
    }

    #[test]
    fn incompatible_preferences_conflict() {
        use Preference::{AutoFabric, AutoTcp, Named, Tcp};
        let plan = |all: &[Preference]| NetworkPlan::new(all, |rank| format!("rank {rank}"));
        assert_eq!(plan(&[AutoFabric, AutoFabric]), NetworkPlan::Negotiate);
        assert_eq!(plan(&[Named, Named]), NetworkPlan::Negotiate);
        let tcp = NetworkPlan::Tcp("rank 1 has no high-speed network".to_owned());
        assert_eq!(plan(&[AutoFabric, AutoTcp, AutoTcp]), tcp);
        assert_eq!(plan(&[Named, Named, Tcp]), NetworkPlan::Conflict(0, 2));
        assert!(matches!(plan(&[Tcp, Tcp]), NetworkPlan::Tcp(_)));
    }
}
