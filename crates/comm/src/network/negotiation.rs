//! The agreement of all ranks on a network, over TCP.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{NetworkContext, NetworkEngine, NetworkTransport};
use crate::Result;
use crate::control::{decode, encode};
use crate::engine::all_gather_bytes;

/// Encoded size of an offer.
pub const OFFER_BYTES: usize = 1024;

/// Loading libfabric with all providers may take long, and some plug-ins to find and open their NICs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A negotiation.
pub struct Negotiation {
    pub context: Arc<NetworkContext>,
    pub engine: NetworkEngine,
}

impl Negotiation {
    /// A negotiation on a communicator of its own.
    pub fn new(context: &Arc<NetworkContext>, comm_id: u64) -> Self {
        let all = (0..context.job.members.len() as u32).collect();
        let transport = NetworkTransport::new(context.clone(), context.tcp.clone(), comm_id, all);
        let engine = NetworkEngine::new(transport.with_timeout(TIMEOUT));
        Self { context: context.clone(), engine }
    }

    /// The offers of all ranks; `malformed` instead of one that cannot be decoded.
    pub fn exchange<T: Clone + Serialize + DeserializeOwned>(
        &mut self,
        own: &T,
        malformed: &T,
    ) -> Result<Vec<T>> {
        let mut bytes = encode(own);
        bytes.resize(OFFER_BYTES, 0);
        let all = all_gather_bytes(&mut self.engine, &bytes)?;
        let offer = |bytes: &[u8]| decode(bytes).unwrap_or_else(|| malformed.clone());
        Ok(all.chunks_exact(OFFER_BYTES).map(offer).collect())
    }
}

/// The beginning of a text, so that an offer fits.
pub fn shortened(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}
