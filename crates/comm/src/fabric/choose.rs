//! Which way messages go, and which of a library's offers is taken. No I/O.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Providers that are faster than TCP, the best first.
const FAST: [&str; 7] = ["cxi", "efa", "opx", "psm3", "psm2", "verbs;ofi_rxm", "verbs"];

/// Providers at addresses of the internet: they take the one by which others reach this rank.
const INTERNET: [&str; 4] = ["tcp", "net", "sockets", "udp"];

/// How messages between ranks go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Choice {
    /// Over connections of our own.
    Tcp,
    /// Through libfabric, if every rank has a network that is faster so.
    #[default]
    Auto,
    /// Through a provider of libfabric's.
    Named {
        /// As libfabric calls it, with or without the layers upon it.
        provider: String,
        /// Of its domains, this one.
        domain: Option<String>,
    },
}

impl Choice {
    /// As people write it: `off`, `auto`, `PROVIDER` or `PROVIDER/DOMAIN`.
    pub fn parse(text: &str) -> Self {
        match text.trim() {
            "off" => Self::Tcp,
            "" | "auto" => Self::Auto,
            name => {
                let (provider, domain) = match name.split_once('/') {
                    Some((provider, domain)) => (provider, Some(domain.to_owned())),
                    None => (name, None),
                };
                Self::Named { provider: provider.to_owned(), domain }
            }
        }
    }

    /// Whether the provider is at an address of the internet.
    fn is_internet(&self) -> bool {
        let Self::Named { provider, .. } = self else { return false };
        INTERNET.contains(&provider.split(';').next().unwrap_or_default())
    }

    /// At which address the provider should be: the one that connections are bound to, or by which
    /// others reach this rank. Most providers know no addresses; of InfiniBand's NICs, the one of the
    /// address to bind to is meant, if there is one.
    pub fn source(&self, bind: Option<IpAddr>, own: Option<IpAddr>) -> Option<IpAddr> {
        let verbs = matches!(self, Self::Named { provider, .. } if provider.starts_with("verbs"));
        match (self.is_internet(), verbs) {
            (true, _) => bind.or(own),
            (_, true) => bind,
            _ => None,
        }
    }

    /// What the others are told before anything is opened.
    pub fn wish(&self, fast_network: bool) -> Wish {
        match self {
            Self::Tcp => Wish::Tcp,
            Self::Auto if fast_network => Wish::Fast,
            Self::Auto => Wish::Slow,
            Self::Named { .. } => Wish::Named,
        }
    }

    /// Which of the offers to take, by their providers and domains. Ranks of a node are spread over
    /// the domains, of which this is the one at the place `local`, of so many `here`.
    pub fn take(&self, offers: &[(String, String)], local: usize, here: usize) -> Option<usize> {
        let of = |wanted: &str| -> Vec<usize> {
            let layered = format!("{wanted};");
            let fits = |name: &str| name == wanted || name.starts_with(&layered);
            (0..offers.len()).filter(|&at| fits(&offers[at].0)).collect()
        };
        let (candidates, domain) = match self {
            Self::Tcp => return None,
            Self::Auto => (FAST.iter().map(|name| of(name)).find(|found| !found.is_empty())?, None),
            Self::Named { provider, domain } => (of(provider), domain.as_ref()),
        };
        // Without a layer if it can do without.
        let plain = |at: &&usize| !offers[**at].0.contains(';');
        let provider = &offers[*candidates.iter().find(plain).or(candidates.first())?].0;
        let mut domains: Vec<usize> = Vec::new();
        for at in candidates {
            let known = domains.iter().any(|&other| offers[other].1 == offers[at].1);
            let wanted = domain.is_none_or(|domain| *domain == offers[at].1);
            if !known && wanted && offers[at].0 == *provider {
                domains.push(at);
            }
        }
        // At an address there is one that fits best, and it is the first.
        let place = if self.is_internet() { 0 } else { local * domains.len() / here.max(1) };
        domains.get(place).or(domains.last()).copied()
    }
}

/// What a rank says of its choice when it joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// TCP, and nothing else.
    Tcp,
    /// What is fastest, and there is no fast network on its node.
    Slow,
    /// What is fastest, and there is one.
    Fast,
    /// A provider that it has the name of.
    Named,
}

/// What all ranks do, by what each said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// TCP. Why.
    Tcp(String),
    /// They meet, and open what each has.
    Meet,
    /// They do not want the same: these two.
    Torn(usize, usize),
}

impl Plan {
    /// From the wishes of all.
    pub fn of(wishes: &[Wish], who: impl Fn(usize) -> String) -> Self {
        let is_auto = |wish: Wish| matches!(wish, Wish::Slow | Wish::Fast);
        let first = wishes.first().copied().unwrap_or(Wish::Tcp);
        let same = |wish: &Wish| *wish == first || (is_auto(*wish) && is_auto(first));
        if let Some(other) = wishes.iter().position(|wish| !same(wish)) {
            return Self::Torn(0, other);
        }
        match (first, wishes.iter().position(|wish| *wish == Wish::Slow)) {
            (Wish::Tcp, _) => Self::Tcp("REGATTA_FABRIC is off".to_owned()),
            (_, Some(slow)) => Self::Tcp(format!("{} has no fast network", who(slow))),
            _ => Self::Meet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(names: &[(&str, &str)]) -> Vec<(String, String)> {
        names.iter().map(|(p, d)| ((*p).to_owned(), (*d).to_owned())).collect()
    }

    #[test]
    fn fast_networks_are_taken_and_slow_ones_only_by_name() {
        let slow = offers(&[("tcp;ofi_rxm", "eth0"), ("shm", "shm")]);
        assert_eq!(Choice::Auto.take(&slow, 0, 1), None);
        assert_eq!(Choice::parse("tcp").take(&slow, 0, 1), Some(0));
        assert_eq!(Choice::parse("shm").take(&slow, 0, 1), Some(1));
        assert_eq!(Choice::parse("sh").take(&slow, 0, 1), None);
        let both = offers(&[("tcp;ofi_rxm", "eth0"), ("tcp", "eth0")]);
        assert_eq!(Choice::parse("tcp").take(&both, 0, 1), Some(1));
        assert_eq!(Choice::parse("tcp;ofi_rxm").take(&both, 0, 1), Some(0));
        let fast = offers(&[("verbs;ofi_rxm", "mlx5_0"), ("tcp", "eth0"), ("cxi", "cxi0")]);
        assert_eq!(Choice::Auto.take(&fast, 0, 1), Some(2));
        assert_eq!(Choice::parse("off").take(&fast, 0, 1), None);
    }

    #[test]
    fn addresses_are_for_providers_that_have_such() {
        let [bind, own] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().ok());
        assert_eq!(Choice::parse("tcp").source(bind, own), bind);
        assert_eq!(Choice::parse("udp;ofi_rxd").source(None, own), own);
        assert_eq!(Choice::parse("verbs").source(bind, own), bind);
        assert_eq!(Choice::parse("verbs").source(None, own), None);
        assert_eq!(Choice::parse("cxi").source(bind, own), None);
        assert_eq!(Choice::Auto.source(bind, own), None);
    }

    #[test]
    fn ranks_of_a_node_share_its_domains() {
        let of = offers(&[("cxi", "cxi0"), ("cxi", "cxi0"), ("cxi", "cxi1"), ("tcp", "lo")]);
        let taken: Vec<_> = (0..4).map(|local| Choice::Auto.take(&of, local, 4)).collect();
        assert_eq!(taken, [Some(0), Some(0), Some(2), Some(2)]);
        assert_eq!(Choice::parse("cxi/cxi1").take(&of, 0, 4), Some(2));
        assert_eq!(Choice::parse("cxi/cxi7").take(&of, 0, 4), None);
    }

    #[test]
    fn all_ranks_want_the_same_or_are_told() {
        use Wish::{Fast, Named, Slow, Tcp};
        let plan = |wishes: &[Wish]| Plan::of(wishes, |rank| format!("rank {rank}"));
        assert_eq!(plan(&[Fast, Fast]), Plan::Meet);
        assert_eq!(plan(&[Named, Named]), Plan::Meet);
        let slow = Plan::Tcp("rank 1 has no fast network".to_owned());
        assert_eq!(plan(&[Fast, Slow, Slow]), slow);
        assert_eq!(plan(&[Named, Named, Tcp]), Plan::Torn(0, 2));
        assert!(matches!(plan(&[Tcp, Tcp]), Plan::Tcp(_)));
    }
}
