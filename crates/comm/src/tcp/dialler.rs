//! Opens data connections on first use, several for large messages.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use regatta_wire::clock;

use super::frame::{RAIL_STRIPE_MIN_BYTES, STRIPE_MIN_BYTES};
use super::sockets::Sockets;
use crate::bootstrap::BootstrapConfig;
use crate::control::{
    ACCEPTED, ACCEPTED_REUSE, CommRegistry, Dial, DialError, Hello, MAX_CONNECTIONS, RankInfo,
    encode,
};

/// The number of connections per peer that large messages are striped over at least.
const CONNECTIONS: u8 = 2;

/// What this process needs to open data connections.
pub struct Dialler {
    pub config: Arc<BootstrapConfig>,
    /// All ranks, in order.
    pub members: Arc<[RankInfo]>,
    pub registry: Arc<CommRegistry>,
    /// Serialises opening of connections.
    pub dialling: Mutex<()>,
}

impl Dialler {
    /// The number of connections that a message is striped over. Connections over several NICs pay
    /// off earlier than several over one.
    pub fn stripes(&self, length: usize) -> u8 {
        let rails = self.config.bind.len().clamp(1, usize::from(MAX_CONNECTIONS)) as u8;
        match length {
            _ if length >= STRIPE_MIN_BYTES => rails.max(CONNECTIONS),
            _ if length >= RAIL_STRIPE_MIN_BYTES => rails,
            _ => 1,
        }
    }

    /// Opens connections to a rank until there are `count`. `cancelled` interrupts it.
    pub fn dial(
        &self,
        sockets: &Sockets,
        to: u32,
        count: u8,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let BootstrapConfig { rank, bind, secret, .. } = &*self.config;
        // Two threads would open the same connections.
        let _guard = self.dialling.lock().unwrap_or_else(PoisonError::into_inner);
        let have = sockets.adopt_incoming(to);
        for index in have as u8..count {
            let member = self.members.get(to as usize).ok_or("no such rank")?;
            // First connections of different pairs are spread over the rails, and both ranks of a
            // pair choose the same rail.
            let pair = to as usize + *rank as usize;
            let rail = (usize::from(index) + pair) % member.ips.len().max(1);
            let ip = member.ips.get(rail).ok_or("the rank has no address")?;
            let same_rails = bind.len() == member.ips.len();
            let dial = Dial {
                to: SocketAddr::new(*ip, member.port),
                from: bind.get(rail).copied().filter(|_| same_rails),
                secret,
                timing: self.config.timing(),
                until: clock::now() + self.config.lost_after,
                cancelled,
            };
            let hello = encode(&Hello::Data { rank: *rank, index });
            let conn = dial.open();
            // Once the peer has the connection, it would report its end as a broken link.
            let dial = Dial { cancelled: &|| self.registry.is_lost(to), ..dial };
            let reply = conn.and_then(|mut c| Ok((dial.request_final(&mut c, &hello)?, c)));
            let (stream, reuse) = match reply {
                Ok((reply, conn)) if reply == ACCEPTED => (conn.stream, false),
                Ok((reply, conn)) if reply == ACCEPTED_REUSE => (conn.stream, true),
                Ok(_) => return Err("the peer did not accept the connection".to_owned()),
                Err(DialError::Unreachable(why) | DialError::Rejected(why)) => {
                    return Err(format!("cannot connect to {}: {why}", dial.to));
                }
            };
            match index {
                0 => sockets.add_dialled(to, stream, reuse || to < *rank),
                _ => sockets.add_outgoing(to, stream),
            }
        }
        Ok(())
    }
}
