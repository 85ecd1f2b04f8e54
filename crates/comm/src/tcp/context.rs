//! Process-wide state that all communicators of a process share.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use regatta_wire::clock;
use regatta_wire::link::Timing;
use regatta_wire::secret::Secret;

use super::data_plane::SharedDataPlane;
use crate::control::{ACCEPTED, ACCEPTED_REUSE, Dial, DialError, Hello, Job, RankInfo, encode};
use crate::schedule::algorithm_table::AlgorithmTable;

/// The connections and settings of this process.
pub struct TcpContext {
    /// The global rank.
    pub rank: u32,
    /// All ranks, in order.
    pub members: Arc<[RankInfo]>,
    /// The data connections.
    pub shared: Arc<SharedDataPlane>,
    /// Serialises opening of connections.
    pub dialling: Mutex<()>,
    /// The control plane.
    pub job: Arc<Job>,
    /// The algorithm table shared by all ranks.
    pub algorithms: Arc<AlgorithmTable>,
    /// The number of connections that a large message is striped over.
    pub connections: u8,
    /// The local addresses to bind connections to.
    pub bind: Vec<IpAddr>,
    /// The heartbeat timeout.
    pub lost_after: Duration,
    /// The timeout of a collective.
    pub desync_after: Duration,
    /// Whether ranks compare call signatures before data moves.
    pub debug: bool,
    /// How long to spin before a thread sleeps.
    pub spin: Duration,
    /// The job's secret.
    pub secret: Secret,
    /// The timeouts of connections.
    pub timing: Timing,
    /// The network in use, and why.
    pub transport_name: OnceLock<String>,
}

impl TcpContext {
    /// Opens connections to a rank until there are `count`. `cancelled` interrupts it.
    pub fn connect(&self, to: u32, count: u8, cancelled: &dyn Fn() -> bool) -> Result<(), String> {
        // Two threads would open the same connections.
        let _guard = self.dialling.lock().unwrap_or_else(PoisonError::into_inner);
        let have = self.shared.lock().adopt_incoming(to);
        for index in have as u8..count {
            let member = self.members.get(to as usize).ok_or("no such rank")?;
            // First connections of different pairs are spread over the rails, and both ranks of a
            // pair choose the same rail.
            let pair = to as usize + self.rank as usize;
            let rail = (usize::from(index) + pair) % member.ips.len().max(1);
            let ip = member.ips.get(rail).ok_or("the rank has no address")?;
            let same_rails = self.bind.len() == member.ips.len();
            let dial = Dial {
                to: SocketAddr::new(*ip, member.port),
                from: self.bind.get(rail).copied().filter(|_| same_rails),
                secret: &self.secret,
                timing: self.timing,
                until: clock::now() + self.lost_after,
                cancelled,
            };
            let hello = encode(&Hello::Data { rank: self.rank, index });
            let conn = dial.open();
            // Once the peer has the connection, it would report its end as a broken link.
            let dial = Dial { cancelled: &|| self.job.registry.is_lost(to), ..dial };
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
                0 => self.shared.add_dialled(to, stream, reuse || to < self.rank),
                _ => self.shared.lock().add_outgoing(to, stream.into()),
            }
        }
        Ok(())
    }
}

/// Announces a regular exit. The control-plane thread of rank 0 stays until all ranks have exited,
/// but data connections close.
impl Drop for TcpContext {
    fn drop(&mut self) {
        let fabric = self.shared.lock().fabric.take();
        if let Some(fabric) = fabric {
            fabric.shutdown();
        }
        self.job.control.shutdown();
        self.shared.lock().close_all();
    }
}
