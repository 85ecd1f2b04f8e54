//! Selection of a libfabric provider. No I/O.

use std::net::IpAddr;

/// High-speed providers, best first.
const HIGH_SPEED: [&str; 7] = ["cxi", "efa", "opx", "psm3", "psm2", "verbs;ofi_rxm", "verbs"];

/// How many of them NCCL has no transport for: it has its own for InfiniBand.
const FOR_NCCL: usize = 5;

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
    pub(crate) fn has_ip_addresses(&self) -> bool {
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

    /// The choice for NCCL, whose own transport is the better one on InfiniBand.
    pub(crate) fn for_nccl(&self) -> Selection<'_> {
        Selection { choice: self, high_speed: &HIGH_SPEED[..FOR_NCCL] }
    }

    /// Selects one of the `(provider, domain)` pairs. The ranks of a node are spread over the
    /// provider's domains in blocks.
    pub fn select(
        &self,
        infos: &[(String, String)],
        local_rank: usize,
        local_size: usize,
    ) -> Option<usize> {
        let domains = Selection { choice: self, high_speed: &HIGH_SPEED }.domains(infos);
        // With a source address, the first domain is the best match.
        let spread = local_rank * domains.len() / local_size.max(1);
        let index = if self.has_ip_addresses() { 0 } else { spread };
        domains.get(index).or(domains.last()).copied()
    }
}

/// A choice, and what is automatic for it.
pub(crate) struct Selection<'a> {
    choice: &'a ProviderChoice,
    high_speed: &'a [&'a str],
}

impl Selection<'_> {
    /// One of the `(provider, domain)` pairs for each domain of the selected provider.
    pub fn domains(&self, infos: &[(String, String)]) -> Vec<usize> {
        let of = |wanted: &str| -> Vec<usize> {
            let layered = format!("{wanted};");
            let matches = |name: &str| name == wanted || name.starts_with(&layered);
            (0..infos.len()).filter(|&at| matches(&infos[at].0)).collect()
        };
        let (candidates, domain) = match self.choice {
            ProviderChoice::Tcp => return Vec::new(),
            ProviderChoice::Auto => {
                let mut found = self.high_speed.iter().map(|name| of(name));
                (found.find(|found| !found.is_empty()).unwrap_or_default(), None)
            }
            ProviderChoice::Named { provider, domain } => (of(provider), domain.as_ref()),
        };
        // Prefers the provider without utility layers.
        let plain = |at: &&usize| !infos[**at].0.contains(';');
        let Some(first) = candidates.iter().find(plain).or(candidates.first()) else {
            return Vec::new();
        };
        let provider = &infos[*first].0;
        let mut domains: Vec<usize> = Vec::new();
        for at in candidates {
            let known = domains.iter().any(|&other| infos[other].1 == infos[at].1);
            let wanted = domain.is_none_or(|domain| *domain == infos[at].1);
            if !known && wanted && infos[at].0 == *provider {
                domains.push(at);
            }
        }
        domains
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
    fn infiniband_is_left_to_nccl_unless_it_is_named() {
        let both = infos(&[("verbs;ofi_rxm", "mlx5_0"), ("cxi", "cxi0"), ("cxi", "cxi1")]);
        assert_eq!(ProviderChoice::Auto.for_nccl().domains(&both), [1, 2]);
        assert_eq!(ProviderChoice::Auto.for_nccl().domains(&both[..1]), [0; 0]);
        assert_eq!(ProviderChoice::parse("verbs").for_nccl().domains(&both), [0]);
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
}
