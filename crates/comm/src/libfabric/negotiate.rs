//! The ranks agree on a libfabric provider: each opens one, and all exchange addresses or errors.

use std::net::IpAddr;
use std::sync::Arc;

use regatta_fabric::endpoint::{Endpoint, MAX_ADDRESS_BYTES, WaitMode};
use regatta_fabric::library::{Query, library};
use regatta_fabric::shm_cleanup::find_shared_process;
use regatta_fabric::{FiResult, ProviderChoice};
use regatta_model::hash::fnv1a;

use super::fabric::Fabric;
use super::network::FabricNetwork;
use super::network_choice::{NetworkChoice, Preference};
use super::requests::RequestPool;
use super::tag::FabricTags;
use crate::control::RankInfo;
use crate::net_plugin;
use crate::network::negotiation::{Negotiation, shortened};
use crate::network::{Network, NetworkContext};
use crate::transports::NetworkName;
use crate::{CommError, Result};

/// The communicator for the negotiation.
const NEGOTIATION_COMM: u64 = u64::MAX;

/// Longer reasons are truncated, so that an offer fits.
const MAX_REASON_BYTES: usize = 400;

/// The provider and the address of the endpoint of a rank, or why it could not open one.
type RankOffer = FiResult<(String, Vec<u8>)>;

/// Whether this node has a high-speed network.
pub fn has_fabric() -> bool {
    let any = |dir: &str| std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    any("/sys/class/cxi") || any("/sys/class/infiniband")
}

/// The network that all ranks select: libfabric if they can use it, else TCP, or a net plug-in of NCCL.
/// Returns the network to use, with its name and why.
pub fn select_network(
    context: &Arc<NetworkContext>,
    choice: &ProviderChoice,
) -> Result<(Arc<dyn Network>, NetworkName)> {
    let tcp = |why: String| -> Result<(Arc<dyn Network>, NetworkName)> {
        Ok((context.tcp.clone(), NetworkName::Tcp(Some(why))))
    };
    let peer = |rank: usize| context.name_of(rank as u32);
    let preferences: Vec<Preference> = context.job.members.iter().map(|info| info.fabric).collect();
    match NetworkChoice::new(&preferences, peer) {
        NetworkChoice::Tcp(why) => return tcp(why),
        NetworkChoice::Conflict(one, other) => {
            let what = format!("{} and {} select different networks", peer(one), peer(other));
            let hint = "REGATTA_FABRIC and REGATTA_NET_PLUGIN must be the same on all ranks";
            return Err(CommError::bootstrap(what, hint));
        }
        NetworkChoice::NetPlugin => {
            let path = context.config.net_plugin.as_ref();
            let path = path.ok_or_else(|| {
                CommError::bootstrap("no net plug-in is selected", "set REGATTA_NET_PLUGIN")
            })?;
            return net_plugin::select_network(context, path);
        }
        NetworkChoice::Negotiate => {}
    }
    match Negotiation::new(context, NEGOTIATION_COMM).run(choice)? {
        Ok(fabric) => {
            let name = NetworkName::Libfabric(fabric.name());
            Ok((Arc::new(FabricNetwork::new(fabric, context.shared.clone())), name))
        }
        Err((rank, why)) if *choice == ProviderChoice::Auto => {
            tcp(format!("{}: {why}", peer(rank)))
        }
        Err((rank, why)) => {
            let what = format!("{} cannot use the selected libfabric provider: {why}", peer(rank));
            let hint = "set REGATTA_FABRIC to a provider that all nodes have, or to `off`";
            Err(CommError::bootstrap(what, hint))
        }
    }
}

/// The rank that cannot use libfabric, and why.
type Unavailable = (usize, String);

impl Negotiation {
    fn run(&mut self, choice: &ProviderChoice) -> Result<Result<Fabric, Unavailable>> {
        let opened = self.open(choice);
        let malformed = Err("it sent a malformed offer".to_owned());
        let shortened = |why: &String| shortened(why, MAX_REASON_BYTES);
        let own = opened.as_ref().map(|(_, offer)| offer.clone()).map_err(shortened);
        let addresses = match agreed(&self.exchange(&own, &malformed)?) {
            Ok(addresses) => addresses,
            Err(unavailable) => return Ok(Err(unavailable)),
        };
        let built = opened.and_then(|(endpoint, _)| self.build(endpoint, &addresses));
        // A rank may still fail here, which all others must know.
        let own = built.as_ref().map_err(shortened).and(own);
        match (built, agreed(&self.exchange(&own, &malformed)?)) {
            (Ok(fabric), Ok(_)) => Ok(Ok(fabric)),
            (built, agreed) => {
                built.into_iter().for_each(Fabric::shutdown);
                Ok(Err(agreed.err().unwrap_or_default()))
            }
        }
    }

    fn open(&self, choice: &ProviderChoice) -> FiResult<(Endpoint, (String, Vec<u8>))> {
        let (context, own) = (&self.context, self.context.config.rank as usize);
        let (local_rank, local_size) = context.local_rank();
        let is_shm = matches!(choice, ProviderChoice::Named { provider, .. } if provider == "shm");
        if is_shm && local_size < context.job.members.len() {
            return Err("provider shm cannot reach ranks on other nodes".to_owned());
        }
        let address = |member: &RankInfo| member.ips.first().copied();
        let own_address = context.job.members.get(own).and_then(address);
        let source = choice.source(context.config.bind.first().copied(), own_address);
        let endpoint = open(choice, source, local_rank, local_size)?;
        let (provider, address) = (endpoint.info.provider.clone(), endpoint.address()?);
        if address.len() > MAX_ADDRESS_BYTES {
            let limit = MAX_ADDRESS_BYTES;
            return Err(format!("the endpoint address has {} bytes, over {limit}", address.len()));
        }
        Ok((endpoint, (provider, address)))
    }

    fn build(&self, endpoint: Endpoint, addresses: &[Vec<u8>]) -> FiResult<Fabric> {
        let bits = endpoint.info.tag_bits;
        let tags = FabricTags::new(bits, addresses.len() as u32);
        let tags = tags.ok_or_else(|| format!("the provider has too few tag bits ({bits})"))?;
        let job = fnv1a(self.context.config.secret.derive("libfabric").to_hex().bytes());
        let pool = RequestPool::new(endpoint, addresses, tags, job, self.context.config.rank)?;
        Fabric::new(pool, addresses, self.context.shared.clone())
    }
}

/// The addresses of all ranks, if all opened the same provider.
fn agreed(offers: &[RankOffer]) -> Result<Vec<Vec<u8>>, Unavailable> {
    let mut all = Vec::new();
    let mut first: Option<&str> = None;
    for (rank, offer) in offers.iter().enumerate() {
        match offer {
            Err(why) => return Err((rank, why.clone())),
            Ok((provider, _)) if *first.get_or_insert(provider) != provider => {
                let first = first.unwrap_or_default();
                return Err((rank, format!("it opened {provider}, rank 0 opened {first}")));
            }
            Ok((_, address)) => all.push(address.clone()),
        }
    }
    if let Some(rank) = find_shared_process(&all) {
        return Err((rank, "provider shm cannot connect ranks of the same process".to_owned()));
    }
    Ok(all)
}

/// Opens the selected provider, preferably without memory registration.
pub fn open(
    choice: &ProviderChoice,
    source: Option<IpAddr>,
    local_rank: usize,
    local_size: usize,
) -> FiResult<Endpoint> {
    let library = library()?;
    let provider = match choice {
        ProviderChoice::Named { provider, .. } => Some(provider.as_str()),
        _ => None,
    };
    for registration in [false, true] {
        // If nothing matches, the error below lists what is available.
        let query = Query { provider, source, registration, ..Query::default() };
        let Ok(infos) = library.infos(&query) else { continue };
        let names = infos.names();
        let selected = choice.select(&names, local_rank, local_size);
        if let Some((index, info)) = selected.and_then(|index| Some((index, infos.get(index)?))) {
            let (provider, domain) = &names[index];
            let opened = Endpoint::open(info, (provider, domain), WaitMode::Sleep);
            return opened.map_err(|why| format!("{provider} on {domain}: {why}"));
        }
    }
    let names = regatta_fabric::available_providers()?.join(", ");
    let wanted =
        provider.map_or("high-speed provider".to_owned(), |name| format!("provider {name}"));
    Err(format!("libfabric has no {wanted} on this node; available (provider/domain): {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::encode;
    use crate::network::negotiation::OFFER_BYTES;

    fn available(provider: &str) -> RankOffer {
        Ok((provider.to_owned(), vec![1]))
    }

    #[test]
    fn the_rank_without_the_common_provider_is_named() {
        assert_eq!(agreed(&[available("cxi"), available("cxi")]).unwrap().len(), 2);
        let error = agreed(&[available("cxi"), Err("no library".to_owned())]).unwrap_err();
        assert_eq!(error, (1, "no library".to_owned()));
        let error = agreed(&[available("cxi"), available("cxi"), available("tcp")]).unwrap_err();
        assert_eq!(error, (2, "it opened tcp, rank 0 opened cxi".to_owned()));
    }

    #[test]
    fn the_longest_offers_fit() {
        let available = ("verbs;ofi_rxm;ofi_mrail".to_owned(), vec![255; MAX_ADDRESS_BYTES]);
        assert!(encode(&RankOffer::Ok(available)).len() <= OFFER_BYTES);
        let shortened = shortened(&"ü".repeat(2000), MAX_REASON_BYTES);
        assert_eq!(shortened, "ü".repeat(MAX_REASON_BYTES / 2));
        assert!(encode(&RankOffer::Err(shortened)).len() <= OFFER_BYTES);
    }
}
