//! What the communicators of one process share: the connections, and who is where.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use regatta_wire::link::Timing;
use regatta_wire::secret::Secret;

use super::control::{Fault, Hello, Member, TAKEN, TAKEN_TOO, encode};
use super::dial::{Dial, NoLine};
use super::keeper::Control;
use super::mesh::Shared;
use crate::schedule::choose::Table;

/// Everything that stays as it is.
pub struct Endpoint {
    /// This rank.
    pub rank: u32,
    /// All ranks, in their order.
    pub members: Vec<Member>,
    /// The connections.
    pub shared: Arc<Shared>,
    /// Held by the thread that makes connections.
    pub dialling: Mutex<()>,
    /// The way to rank 0.
    pub control: Control,
    /// By which algorithms all ranks do their collectives.
    pub algorithms: Arc<Table>,
    /// How many connections a large message is spread over.
    pub connections: u8,
    /// From which addresses of this node connections are made.
    pub bind: Vec<IpAddr>,
    /// How long nothing may be heard of a rank.
    pub lost_after: Duration,
    /// How long a rank may be waited for.
    pub desync_after: Duration,
    /// Whether ranks compare what they call before data moves.
    pub debug: bool,
    /// How long is looked again and again before a thread sleeps.
    pub spin: Duration,
    /// The job's.
    pub secret: Secret,
    /// Of connections.
    pub timing: Timing,
    /// How messages between ranks go, in words.
    pub carried: OnceLock<String>,
}

impl Endpoint {
    /// Whether a rank is known to be gone.
    fn is_lost(&self, rank: u32) -> bool {
        let lost =
            |(_, fault): &(_, Fault)| matches!(fault, Fault::Lost { rank: of, .. } if *of == rank);
        self.shared.lock().news.faults.iter().any(lost)
    }

    /// Makes sure that there are so many connections to a rank. `stop`: whether there is no use in it
    /// any more.
    pub fn connect(&self, to: u32, lanes: u8, stop: &dyn Fn() -> bool) -> Result<(), String> {
        // One thread at a time, or two would make the same.
        let _alone = self.dialling.lock().unwrap_or_else(PoisonError::into_inner);
        let have = self.shared.lock().adopt(to);
        for index in have as u8..lanes {
            let member = self.members.get(to as usize).ok_or("there is no such rank")?;
            // The first connections of different pairs are on different networks, and both ranks of
            // a pair come to the same one.
            let pair = to as usize + self.rank as usize;
            let rail = (usize::from(index) + pair) % member.ips.len().max(1);
            let ip = member.ips.get(rail).ok_or("it has no address")?;
            let alike = self.bind.len() == member.ips.len();
            let dial = Dial {
                to: SocketAddr::new(*ip, member.port),
                from: self.bind.get(rail).copied().filter(|_| alike),
                secret: &self.secret,
                timing: self.timing,
                until: Instant::now() + self.lost_after,
                stop,
            };
            let hello = encode(&Hello::Data { rank: self.rank, index });
            let line = dial.open();
            // Once it has the connection, it would take its end for a broken path.
            let last = Dial { stop: &|| self.is_lost(to), ..dial };
            let line = line.and_then(|mut line| Ok((last.ask_last(&mut line, &hello)?, line)));
            let (stream, too) = match line {
                Ok((answer, line)) if answer == TAKEN => (line.stream, false),
                Ok((answer, line)) if answer == TAKEN_TOO => (line.stream, true),
                Ok(_) => return Err("it did not take the connection".to_owned()),
                Err(NoLine::Nobody(why) | NoLine::Stranger(why)) => {
                    return Err(format!("no connection to {}: {why}", last.to));
                }
            };
            match index {
                0 => self.shared.dialled(to, stream, too || to < self.rank),
                _ => self.shared.lock().add_outgoing(to, stream.into()),
            }
        }
        Ok(())
    }
}

/// The others learn that this rank has ended well. Rank 0's thread stays as long as they do, but no
/// message comes or goes any more.
impl Drop for Endpoint {
    fn drop(&mut self) {
        let fabric = self.shared.lock().fabric.take();
        if let Some(fabric) = fabric {
            fabric.farewell();
        }
        self.control.end();
        self.shared.lock().hang_up();
    }
}
