//! The ranks agree on a net plug-in: each loads it and listens for every other rank, and all exchange the
//! handles of their listeners, or why they have none.

use std::ffi::c_int;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use regatta_model::hash::fnv1a;
use regatta_plugin_abi::net::HANDLE_BYTES;
use serde::{Deserialize, Serialize};

use super::library::{self, LoadError};
use super::network::PluginNetwork;
use super::peer::{CHUNK_ALIGNMENT, CHUNK_BYTES, LinkContext, Peer};
use super::setup::Listener;
use super::table::{Handle, Net};
use crate::engine::Engine as _;
use crate::network::negotiation::{Negotiation, shortened};
use crate::network::{Network, NetworkContext};
use crate::transports::NetworkName;
use crate::{Call, CallKind, CommError, Counts, DType, Result};

/// The communicator for the negotiation.
const NEGOTIATION_COMM: u64 = u64::MAX - 1;

/// Longer texts are truncated, so that an offer fits.
const MAX_TEXT_BYTES: usize = 800;

/// Time for the first message of a neighbour.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

const NETWORK_HINT: &str =
    "most plug-ins use the network interfaces that NCCL_SOCKET_IFNAME selects";
const SAME_VERSION_HINT: &str = "all ranks must run the same version of regatta";
const SAME_PLUGIN_HINT: &str = "REGATTA_NET_PLUGIN must name the same plug-in on all nodes, and \
                                REGATTA_NET_PLUGIN_VERSION the same version, if it is set";

/// NICs that are named.
const SHOWN_DEVICES: usize = 8;

/// The plug-in of a rank and its version, or why it cannot use one.
type RankOffer = std::result::Result<String, Unusable>;

/// Why a rank cannot use the plug-in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Unusable {
    why: String,
    hint: String,
}

impl Unusable {
    fn new(why: &str, hint: &str) -> Self {
        Self { why: shortened(why, MAX_TEXT_BYTES), hint: hint.to_owned() }
    }
}

/// The plug-in, initialised, with a listener for every other rank.
struct Listening {
    context: Arc<LinkContext>,
    listeners: Vec<Option<(Handle, Listener)>>,
}

/// Connects all ranks through a net plug-in. Returns the network and its name.
pub fn select_network(
    context: &Arc<NetworkContext>,
    path: &Path,
) -> Result<(Arc<dyn Network>, NetworkName)> {
    let mut negotiation = Negotiation::new(context, NEGOTIATION_COMM);
    let listening =
        negotiation.listen(path).map_err(|error| Unusable::new(&error.to_string(), error.hint()));
    let name =
        listening.as_ref().map(|listening| shortened(&listening.context.net.name, MAX_TEXT_BYTES));
    negotiation.agree(&name.map_err(Unusable::clone))?;
    let listening = listening.map_err(|why| negotiation.unusable(context.config.rank, why))?;
    let shown = describe(&listening.context.net);
    let network = negotiation.connect(listening)?;
    let checked = match context.job.members.len() {
        1 => Ok(()),
        _ => network.check_ring(FIRST_MESSAGE_TIMEOUT),
    };
    let checked = checked.map_err(|(rank, why)| {
        Unusable::new(&format!("{}: {why}", context.name_of(rank)), NETWORK_HINT)
    });
    negotiation.agree(&checked.map(|()| String::new()))?;
    Ok((Arc::new(network), NetworkName::NetPlugin(shown)))
}

/// The plug-in and its NICs.
fn describe(net: &Net) -> String {
    let mut names: Vec<&str> = net.devices.iter().map(|device| device.name.as_str()).collect();
    let count = names.len();
    if count > SHOWN_DEVICES {
        names.truncate(SHOWN_DEVICES);
        names.push("...");
    }
    let nics = if count == 1 { "NIC" } else { "NICs" };
    format!("{}, {count} {nics}: {}", net.name, names.join(", "))
}

impl Negotiation {
    /// Loads the plug-in and listens for every other rank. The ranks of a node are spread over its NICs.
    fn listen(&self, path: &Path) -> std::result::Result<Listening, LoadError> {
        let (context, own) = (&self.context, self.context.config.rank as usize);
        // The plug-in may log the number of the communicator, so that it is not that of messages.
        let derive = |purpose| fnv1a(context.config.secret.derive(purpose).to_hex().bytes());
        let (job, comm_id) = (derive("net plug-in"), derive("communicator of a net plug-in"));
        let (table, name) = library::open(path, context.config.net_plugin_version)?;
        let net = Arc::new(Net::init(table, name, comm_id)?);
        let number = context.local_rank().0 % net.devices.len().max(1);
        let device = number as c_int;
        let listen = |rank: usize| match rank == own {
            true => Ok(None),
            false => Listener::new(&net, device).map(Some),
        };
        let listeners =
            (0..context.job.members.len()).map(listen).collect::<std::result::Result<_, _>>()?;
        let max_bytes = net.devices.get(number).map_or(CHUNK_BYTES, |device| device.max_bytes);
        let chunk_bytes = CHUNK_BYTES.min(max_bytes) / CHUNK_ALIGNMENT * CHUNK_ALIGNMENT;
        let shared = context.shared.clone();
        let context = Arc::new(LinkContext { net, device, job, chunk_bytes, shared });
        Ok(Listening { context, listeners })
    }

    /// Fails on all ranks if one of them cannot use the plug-in, or another one than rank 0.
    fn agree(&mut self, own: &RankOffer) -> Result {
        let malformed = Err(Unusable::new("it sent a malformed offer", SAME_VERSION_HINT));
        let offers = self.exchange(own, &malformed)?;
        first_conflict(&offers).map_or(Ok(()), |(rank, why)| Err(self.unusable(rank, why)))
    }

    /// Exchanges the handles of all listeners.
    fn connect(&mut self, Listening { context, listeners }: Listening) -> Result<PluginNetwork> {
        let mut own = Vec::with_capacity(listeners.len() * HANDLE_BYTES);
        for listener in &listeners {
            own.extend(listener.as_ref().map_or([0; HANDLE_BYTES], |(handle, _)| *handle));
        }
        let mut all = vec![0; own.len()];
        let counts = Counts::Equal(HANDLE_BYTES);
        let call = Call::new(CallKind::AllToAll, DType::U8, counts, &mut all);
        self.engine.run(Call { input: Some(&own), ..call })?;
        let (handles, _) = all.as_chunks::<HANDLE_BYTES>();
        let peer = |(rank, (listener, handle)): (u32, (Option<(_, Listener)>, &Handle))| {
            let (_, listener) = listener?;
            Some(Peer::new(context.clone(), rank, *handle, listener))
        };
        let peers = (0..).zip(listeners.into_iter().zip(handles)).map(peer).collect();
        Ok(PluginNetwork::new(self.context.config.rank, peers, context.shared.clone()))
    }

    fn unusable(&self, rank: u32, Unusable { why, hint }: Unusable) -> CommError {
        let rank = self.context.name_of(rank);
        CommError::bootstrap(format!("{rank} cannot use the net plug-in: {why}"), hint)
    }
}

/// The first rank that cannot use the plug-in of rank 0.
fn first_conflict(offers: &[RankOffer]) -> Option<(u32, Unusable)> {
    let first = offers.iter().find_map(|offer| offer.as_ref().ok());
    (0..).zip(offers).find_map(|(rank, offer)| match (offer, first) {
        (Err(why), _) => Some((rank, why.clone())),
        (Ok(name), Some(first)) if name != first => {
            let why = format!("it loaded {name}, rank 0 loaded {first}");
            Some((rank, Unusable::new(&why, SAME_PLUGIN_HINT)))
        }
        (Ok(_), _) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::table::NetError;
    use super::*;
    use crate::control::encode;
    use crate::network::negotiation::OFFER_BYTES;

    #[test]
    fn the_rank_without_the_common_plugin_is_named() {
        let (ok, other) = (Ok("Socket (v11)".to_owned()), Ok("Socket (v8)".to_owned()));
        assert_eq!(first_conflict(&[ok.clone(), ok.clone()]), None);
        let missing = Unusable::new("no such file", "a hint");
        let failed = Err(missing.clone());
        let first = Some((0, missing));
        assert_eq!(first_conflict(&[failed.clone(), ok.clone()]), first);
        assert_eq!(first_conflict(&[failed.clone(), failed]), first);
        let why = "it loaded Socket (v8), rank 0 loaded Socket (v11)";
        let conflict = Unusable::new(why, SAME_PLUGIN_HINT);
        assert_eq!(first_conflict(&[ok.clone(), ok, other]), Some((2, conflict)));
    }

    #[test]
    fn the_longest_offers_fit() {
        let plugin = "Fake (v11)".to_owned();
        let no_device = NetError::NoDevice { plugin: plugin.clone(), warnings: Vec::new() };
        let call = NetError::Call { plugin, function: "listen", code: 2, warnings: Vec::new() };
        let [no_device, call] = [no_device, call].map(LoadError::Call);
        let longest =
            [no_device.hint(), call.hint(), NETWORK_HINT, SAME_PLUGIN_HINT, SAME_VERSION_HINT];
        for hint in longest {
            let offer: RankOffer = Err(Unusable::new(&"ü".repeat(2000), hint));
            assert!(encode(&offer).len() <= OFFER_BYTES, "{hint}");
        }
    }
}
