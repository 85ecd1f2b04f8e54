//! What comes over the keeper's connections, and what becomes of it.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::conn::{Conn, Who};
use super::{Duty, Keeper};
use crate::tcp::control::{
    Down, Fault, Hello, MOST_CONNECTIONS, TAKEN, TAKEN_TOO, Up, decode, encode,
};
use crate::tcp::dial::tune;

impl Keeper {
    /// False: the connection is not the thread's any more.
    pub(super) fn frame(&mut self, id: usize, conn: &mut Conn, frame: &[u8]) -> bool {
        let now = Instant::now();
        match conn.who {
            Who::Stranger(_) => return self.hello(id, conn, frame),
            Who::Rank(rank) => {
                if let (Duty::Hub(hub), Some(up)) = (&mut self.duty, decode::<Up>(frame)) {
                    hub.judge.hear(rank, up, now);
                }
            }
            Who::Hub => {
                if let Some(down) = decode::<Down>(frame)
                    && let Some(up) = self.apply(down)
                {
                    conn.link.send(&encode(&up));
                }
            }
        }
        true
    }

    /// Somebody of this job says who it is.
    fn hello(&mut self, id: usize, conn: &mut Conn, frame: &[u8]) -> bool {
        match (decode::<Hello>(frame), &mut self.duty) {
            (Some(Hello::Data { rank, index }), _) if index < MOST_CONNECTIONS => {
                let sends = index == 0 && self.shared.lock().lanes_to(rank) > 0;
                conn.link.send(if sends { TAKEN_TOO } else { TAKEN });
                // The first connection may be written to as soon as it is handed over. The others
                // must be there when messages come, which is after the answer.
                let first = index == 0;
                if !first {
                    self.hand_over(conn, rank, index);
                }
                // So little fits a new connection; if not, the other side gives it up.
                let _ = conn.write();
                if first {
                    self.hand_over(conn, rank, index);
                }
                false
            }
            (Some(Hello::Join { world, member }), Duty::Hub(hub)) => {
                conn.who = Who::Rank(member.rank);
                match hub.join(id, world, member) {
                    Ok(()) => true,
                    Err(refused) => {
                        conn.link.send(&encode(&refused));
                        conn.who = Who::Stranger(std::net::Ipv4Addr::UNSPECIFIED.into());
                        true
                    }
                }
            }
            _ => false,
        }
    }

    /// A connection for messages: from now on whoever waits for them reads it.
    fn hand_over(&mut self, conn: &mut Conn, rank: u32, index: u8) {
        use std::os::fd::AsFd;
        let _ = self.poll.registry().deregister(&mut conn.stream);
        if let Ok(fd) = conn.stream.as_fd().try_clone_to_owned() {
            let stream = TcpStream::from(fd);
            tune(&stream, self.timing.lost_after);
            self.shared.add_incoming(rank, index, stream);
        }
    }

    /// Does what rank 0 says, and gives the answer.
    pub(super) fn apply(&mut self, down: Down) -> Option<Up> {
        match down {
            Down::Where { inquiry, channel } => {
                let mesh = self.shared.lock();
                let known = mesh.channels.peek(channel);
                let state = known.map(|k| (k.calls, k.recent(), k.traffic.clone()));
                let (calls, called, traffic) = state.unwrap_or_default();
                drop(mesh);
                let millis = |(rank, waited): (u32, Duration)| (rank, waited.as_millis() as u64);
                let waits = self.shared.waits().into_iter().map(millis).collect();
                return Some(Up::Answer { inquiry, calls, called, traffic, waits });
            }
            Down::Verdict { channel, fault } => {
                self.shared.fault(channel, fault);
            }
            Down::Clear { channel } => {
                self.shared.tell(|mesh| {
                    mesh.news.clear.insert(channel);
                });
            }
            Down::Left { rank, left } => {
                let key = (left.channel, rank);
                self.shared.tell(|mesh| {
                    mesh.news.left.insert(key, left);
                });
            }
            Down::Bye => {
                if let Duty::Spoke { bye, .. } = &mut self.duty {
                    *bye = true;
                }
            }
            Down::Table { .. } | Down::Refused { .. } => {}
        }
        None
    }

    /// A connection is over.
    pub(super) fn ended(&mut self, who: Who, why: &str) {
        match (&mut self.duty, who) {
            (Duty::Hub(hub), Who::Rank(rank)) => hub.closed(rank, why),
            (Duty::Hub(hub), Who::Stranger(from)) => hub.stranger(from, why),
            (Duty::Spoke { bye: false, .. }, Who::Hub) => {
                let fault = Fault::Lost { rank: 0, why: why.to_owned() };
                self.shared.fault(None, fault);
            }
            _ => {}
        }
    }
}
