//! Ranks agree to use libfabric: each opens what it has, all hear where all are, or who cannot.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::carrier::Carrier;
use super::choose::{Choice, Plan, Wish};
use super::gear::Gear;
use super::library::{Wanted, library};
use super::port::{LONGEST_ADDRESS, Port};
use super::tag::Tags;
use super::tidy::shares_a_process;
use crate::CommError;
use crate::background::gathered;
use crate::tcp::{Endpoint, Member, TcpEngine, TcpTransport, decode, encode, fingerprint};

/// The communicator in which ranks talk of it.
const MEETING: u64 = u64::MAX;

/// Bytes in which a rank says what it has.
const SAID: usize = 1024;

/// To open a library with all its providers may take its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Words are cut off there, so that all fits.
const WORDS: usize = 400;

/// What a rank says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Said {
    /// It opened a provider, and is there.
    Here { provider: String, address: Vec<u8> },
    /// It could not, and why.
    Cannot(String),
}

/// Whether this node has a network for which libfabric is worth opening.
pub fn fast_network() -> bool {
    let any = |folder: &str| std::fs::read_dir(folder).is_ok_and(|mut all| all.next().is_some());
    any("/sys/class/cxi") || any("/sys/class/infiniband")
}

/// Has messages go through libfabric from now on, if all ranks want and can. In words, how they go.
pub fn connect(endpoint: &Arc<Endpoint>, choice: &Choice) -> Result<String, CommError> {
    let who = |rank: usize| match endpoint.members.get(rank) {
        Some(member) => format!("rank {rank} on {}", member.host),
        None => format!("rank {rank}"),
    };
    let wishes: Vec<Wish> = endpoint.members.iter().map(|member| member.fabric).collect();
    match Plan::of(&wishes, who) {
        Plan::Tcp(why) => return Ok(format!("TCP: {why}")),
        Plan::Torn(one, other) => {
            let what = format!("{} and {} want different networks", who(one), who(other));
            let hint = "REGATTA_FABRIC must be the same for all ranks".to_owned();
            return Err(CommError::Join { what, hint });
        }
        Plan::Meet => {}
    }
    let mut meeting = Meeting::new(endpoint);
    match meeting.hold(choice)? {
        Ok(carrier) => {
            let name = format!("libfabric: {}", carrier.name());
            endpoint.shared.lock().fabric = Some(carrier);
            Ok(name)
        }
        Err((rank, why)) if *choice == Choice::Auto => Ok(format!("TCP: {}: {why}", who(rank))),
        Err((rank, why)) => {
            let what = format!("{} cannot use libfabric as asked: {why}", who(rank));
            let hint = "set REGATTA_FABRIC to a provider that all have, or to off".to_owned();
            Err(CommError::Join { what, hint })
        }
    }
}

/// Which rank cannot, and why.
type Refusal = (usize, String);

/// All ranks, over TCP.
struct Meeting {
    endpoint: Arc<Endpoint>,
    engine: TcpEngine,
}

impl Meeting {
    fn new(endpoint: &Arc<Endpoint>) -> Self {
        let all = (0..endpoint.members.len() as u32).collect();
        let transport = TcpTransport::new(endpoint.clone(), MEETING, all, endpoint.rank);
        let transport = transport.patient(PATIENCE);
        Self { endpoint: endpoint.clone(), engine: TcpEngine::new(transport) }
    }

    fn hold(&mut self, choice: &Choice) -> Result<Result<Carrier, Refusal>, CommError> {
        let (port, said) = match self.open(choice) {
            Ok((port, said)) => (Some(port), said),
            Err(why) => (None, cannot(why)),
        };
        let said = self.gather(said)?;
        let (Some(port), Ok(addresses)) = (port, agreed(&said)) else {
            return Ok(Err(agreed(&said).err().unwrap_or_default()));
        };
        // One may still be unable to, and then all must know.
        let (carrier, said) = match self.carry(port, &addresses) {
            Ok(carrier) => (Some(carrier), said[self.endpoint.rank as usize].clone()),
            Err(why) => (None, cannot(why)),
        };
        let said = self.gather(said)?;
        match (carrier, agreed(&said)) {
            (Some(carrier), Ok(_)) => Ok(Ok(carrier)),
            (carrier, agreed) => {
                carrier.into_iter().for_each(Carrier::farewell);
                Ok(Err(agreed.err().unwrap_or_default()))
            }
        }
    }

    fn open(&self, choice: &Choice) -> Result<(Port, Said), String> {
        let (endpoint, own) = (&self.endpoint, self.endpoint.rank as usize);
        let node = |rank: usize| endpoint.members.get(rank).map(|member| member.node);
        let same = |rank: &usize| node(*rank) == node(own);
        let here = (0..endpoint.members.len()).filter(same).count();
        let local = (0..own).filter(same).count();
        let only_here = matches!(choice, Choice::Named { provider, .. } if provider == "shm");
        if only_here && here < endpoint.members.len() {
            return Err("the provider shm does not reach ranks of other nodes".to_owned());
        }
        let listens = |member: &Member| member.ips.first().copied();
        let reached_at = endpoint.members.get(own).and_then(listens);
        let source = choice.source(endpoint.bind.first().copied(), reached_at);
        let port = open(choice, source, local, here)?;
        let (provider, address) = (port.facts().provider.clone(), port.address()?);
        if address.len() > LONGEST_ADDRESS {
            return Err(format!("its address has {} bytes", address.len()));
        }
        Ok((port, Said::Here { provider, address }))
    }

    fn carry(&self, mut port: Port, addresses: &[Vec<u8>]) -> Result<Carrier, String> {
        let ranks = addresses.len() as u32;
        port.reach(addresses)?;
        let bits = port.facts().tag_bits;
        let tags = Tags::new(bits, ranks);
        let tags = tags.ok_or_else(|| format!("its tags have {bits} bits, which are too few"))?;
        let name = self.endpoint.secret.derive("libfabric").to_hex();
        let job = fingerprint(name.bytes());
        Carrier::new(Gear::new(port, tags, job, self.endpoint.rank), job, addresses)
    }

    /// What all ranks say.
    fn gather(&mut self, own: Said) -> Result<Vec<Said>, CommError> {
        let mut said = encode(&own);
        said.resize(SAID, 0);
        let all = gathered(&mut self.engine, &said)?;
        let nonsense = || Said::Cannot("it spoke nonsense".to_owned());
        Ok(all.chunks_exact(SAID).map(|said| decode(said).unwrap_or_else(nonsense)).collect())
    }
}

fn cannot(mut why: String) -> Said {
    let end = why.char_indices().map(|(at, _)| at).find(|at| *at >= WORDS);
    why.truncate(end.unwrap_or(why.len()));
    Said::Cannot(why)
}

/// Where all are, if all can and have the same.
fn agreed(said: &[Said]) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut all = Vec::new();
    let mut first: Option<&str> = None;
    for (rank, said) in said.iter().enumerate() {
        match said {
            Said::Cannot(why) => return Err((rank, why.clone())),
            Said::Here { provider, .. } if *first.get_or_insert(provider) != provider => {
                let theirs = first.unwrap_or_default();
                return Err((rank, format!("it has {provider}, and rank 0 {theirs}")));
            }
            Said::Here { address, .. } => all.push(address.clone()),
        }
    }
    if let Some(rank) = shares_a_process(&all) {
        return Err((rank, "the provider shm does not connect ranks of one process".to_owned()));
    }
    Ok(all)
}

/// Opens what was chosen, without the registration of memory if it can be.
pub fn open(
    choice: &Choice,
    source: Option<IpAddr>,
    local: usize,
    here: usize,
) -> Result<Port, String> {
    let library = library()?;
    let provider = match choice {
        Choice::Named { provider, .. } => Some(provider.as_str()),
        _ => None,
    };
    for registered in [false, true] {
        // Nothing of the kind: what there is, is said below.
        let Ok(offers) = library.offers(Wanted { provider, source, registered }) else { continue };
        let taken = choice.take(&offers.names(), local, here).and_then(|at| offers.take(at));
        if let Some(offer) = taken {
            let (provider, domain) = offer.name();
            return Port::open(offer).map_err(|why| format!("{provider} on {domain}: {why}"));
        }
    }
    let names = super::offered()?.join(", ");
    Err(format!("there is no {}; there is {names}", provider.unwrap_or("fast network")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(provider: &str) -> Said {
        Said::Here { provider: provider.to_owned(), address: vec![1] }
    }

    #[test]
    fn who_cannot_is_named() {
        assert_eq!(agreed(&[here("cxi"), here("cxi")]).unwrap().len(), 2);
        let refused = agreed(&[here("cxi"), cannot("no library".to_owned())]).unwrap_err();
        assert_eq!(refused, (1, "no library".to_owned()));
        let refused = agreed(&[here("cxi"), here("cxi"), here("tcp")]).unwrap_err();
        assert_eq!(refused, (2, "it has tcp, and rank 0 cxi".to_owned()));
    }

    #[test]
    fn all_that_is_said_fits() {
        let long = encode(&cannot("ü".repeat(2000)));
        let address = vec![255; LONGEST_ADDRESS];
        let name = "verbs;ofi_rxm;ofi_mrail".to_owned();
        let here = encode(&Said::Here { provider: name, address });
        assert!(long.len() <= SAID && here.len() <= SAID);
    }
}
