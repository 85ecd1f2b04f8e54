//! The event loop: polls the sockets and handles their readiness. The work is proportional to the
//! events, not to the number of connections, except for timeouts, which are checked on all
//! connections a few times per heartbeat interval.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use mio::event::Event;

use super::connection::{ConnPhase, ReadOutcome};
use super::refusals::RefusalReason;
use super::{
    CLOSE_TIMEOUT, CloseReason, ConnId, EVENT_BATCH, ListenerId, NetEvent, Reactor, WAKE_TOKEN,
};
use crate::clock;
use crate::link::{LinkError, LinkEvent, Timing};

/// Maximum number of connections accepted from one listener per poll.
const MAX_ACCEPTS: usize = 256;

/// Pause before accepting again when file descriptors are exhausted.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Maximum number of event batches per poll before timeouts are checked.
const MAX_BATCHES: usize = 16;

/// Shortest and longest interval between timeout checks.
const TICK_RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));

type NetEvents = Vec<NetEvent>;

/// Readiness of one socket.
#[derive(Debug, Clone, Copy)]
struct Readiness {
    token: mio::Token,
    readable: bool,
    writable: bool,
    peer_closed: bool,
}

impl From<&Event> for Readiness {
    fn from(event: &Event) -> Self {
        let peer_closed = event.is_read_closed() || event.is_write_closed() || event.is_error();
        Self {
            token: event.token(),
            readable: event.is_readable() || peer_closed,
            writable: event.is_writable(),
            peer_closed,
        }
    }
}

impl Reactor {
    /// Waits for events, the waker or the timeout, and appends the events. May return early without
    /// one.
    pub fn poll(&mut self, timeout: Duration, events: &mut Vec<NetEvent>) -> io::Result<()> {
        self.flush_queued_conns();
        let mut wait = self.poll_timeout(timeout, clock::now());
        // Everything received must be read before a heartbeat timeout is declared.
        for _ in 0..MAX_BATCHES {
            let batch = self.poll_ready(wait)?;
            let now = clock::now();
            for readiness in &batch {
                self.handle_ready(*readiness, now, events);
            }
            if batch.len() < EVENT_BATCH {
                break;
            }
            wait = Duration::ZERO;
        }
        let now = clock::now();
        for id in std::mem::take(&mut self.to_read) {
            self.read(id, now, events);
        }
        self.report_failed_connects(events);
        self.accept(now);
        self.tick(now, events);
        self.flush_queued_conns();
        Ok(())
    }

    /// Sends queued data and heartbeats without receiving, for a caller that is still busy with
    /// earlier events and must not time out.
    pub fn flush_and_heartbeat(&mut self) {
        let now = clock::now();
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + tick_interval(self.timing.heartbeat);
            for (&id, conn) in self.conns.iter_mut().filter(|(_, c)| c.phase == ConnPhase::Open) {
                conn.link.heartbeat(now);
                conn.queue_pending(id, &mut self.to_flush);
            }
        }
        self.flush_queued_conns();
    }

    /// Closes all connections after sending their queued data; waits up to `limit`.
    pub fn shutdown(&mut self, limit: Duration) -> io::Result<()> {
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        all.into_iter().for_each(|id| self.close(id));
        let (start, mut events) = (clock::now(), Vec::new());
        while self.closing() > 0 && clock::elapsed(start) < limit {
            self.poll(limit.saturating_sub(clock::elapsed(start)), &mut events)?;
            events.clear();
        }
        Ok(())
    }

    fn poll_timeout(&self, timeout: Duration, now: Instant) -> Duration {
        let backoff = self.accept_after.map_or(Duration::ZERO, |after| after.duration_since(now));
        let accept = if self.to_accept.is_empty() { Duration::MAX } else { backoff };
        let idle = self.to_read.is_empty() && self.failed_connects.is_empty();
        let work = if idle { Duration::MAX } else { Duration::ZERO };
        // The clock must be read more often than every `MAX_STEP`.
        let tick = self.next_tick.duration_since(now).min(clock::MAX_STEP / 2);
        timeout.min(tick).min(accept).min(work)
    }

    fn poll_ready(&mut self, wait: Duration) -> io::Result<Vec<Readiness>> {
        match self.poll.poll(&mut self.mio_events, Some(wait)) {
            Ok(()) => Ok(self.mio_events.iter().map(Readiness::from).collect()),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn handle_ready(&mut self, ready: Readiness, now: Instant, events: &mut NetEvents) {
        let (id, listener) = (ConnId(ready.token.0 as u64), ListenerId(ready.token.0 as u64));
        if ready.token == WAKE_TOKEN {
            self.waker.clear();
        } else if self.conns.contains_key(&id) {
            self.conn_ready(id, ready, now, events);
        } else if self.listeners.contains_key(&listener) {
            self.to_accept.insert(listener);
        }
    }

    fn conn_ready(&mut self, id: ConnId, ready: Readiness, now: Instant, events: &mut NetEvents) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.peer_closed |= ready.peer_closed;
        let mut writable = ready.writable;
        if matches!(conn.phase, ConnPhase::Connecting(_)) {
            match conn.finish_connecting() {
                Ok(true) => writable = true,
                Ok(false) => return,
                Err(error) => return self.close_conn(id, CloseReason::Unreachable(error), events),
            }
        }
        if writable {
            conn.blocked = false;
            self.queue_flush(id);
        }
        if ready.readable {
            self.read(id, now, events);
        }
    }

    fn read(&mut self, id: ConnId, now: Instant, events: &mut NetEvents) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (listener, peer) = (conn.listener, conn.peer);
        let outcome = conn.read(&mut self.buffer, now, &mut self.link_events);
        if !conn.blocked && !conn.link.pending().is_empty() {
            self.queue_flush(id);
        }
        for event in std::mem::take(&mut self.link_events) {
            match event {
                LinkEvent::Ready => {
                    self.forget_unauthenticated(id, listener);
                    events.push(NetEvent::Ready { conn: id, listener, peer });
                }
                LinkEvent::Frame(payload) => events.push(NetEvent::Frame { conn: id, payload }),
            }
        }
        match outcome {
            ReadOutcome::WouldBlock => {}
            ReadOutcome::More => self.to_read.push(id),
            ReadOutcome::Eof => self.close_conn(id, CloseReason::PeerClosed, events),
            ReadOutcome::Failed(error) => self.on_error(id, error, now, events),
        }
    }

    fn flush_queued_conns(&mut self) {
        for id in std::mem::take(&mut self.to_flush) {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.flush_queued = false;
            if matches!(conn.phase, ConnPhase::Connecting(_)) || conn.flush().is_ok() {
                continue;
            }
            // Read what arrived before the error first.
            conn.write_failed = true;
            if matches!(conn.phase, ConnPhase::Closing(_)) {
                self.remove(id);
            } else {
                self.to_read.push(id);
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        if self.accept_after.is_some_and(|after| now < after) {
            return;
        }
        self.accept_after = None;
        for id in std::mem::take(&mut self.to_accept) {
            let more = self.accept_from(id, now).unwrap_or_else(|_| {
                // Out of file descriptors or memory: evict the oldest connection and back off.
                self.evict_oldest(id);
                self.accept_after = Some(now + ACCEPT_BACKOFF);
                true
            });
            if more {
                self.to_accept.insert(id);
            }
        }
    }

    /// Whether more connections may be pending. An error means exhausted resources.
    fn accept_from(&mut self, id: ListenerId, now: Instant) -> io::Result<bool> {
        for _ in 0..MAX_ACCEPTS {
            let Some(listener) = self.listeners.get_mut(&id) else { return Ok(false) };
            let (stream, peer) = match listener.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if is_peer_error(&error) => continue,
                Err(error) => return Err(error),
            };
            if listener.is_full() {
                self.evict_oldest(id);
            }
            // Fails only if the peer is gone already.
            let _ = stream.set_nodelay(true);
            let conn = ConnId(self.allocate_id());
            self.add(conn, stream, peer, Some(id), ConnPhase::Open, now)?;
            if let Some(listener) = self.listeners.get_mut(&id) {
                listener.unauthenticated.insert(conn);
            }
        }
        Ok(true)
    }

    fn evict_oldest(&mut self, id: ListenerId) {
        let oldest = self.listeners.get(&id).and_then(|listener| listener.oldest());
        if let Some(conn) = oldest.and_then(|oldest| self.remove(oldest))
            && conn.phase == ConnPhase::Open
        {
            self.refusals.count(conn.peer.ip(), &RefusalReason::Evicted);
        }
    }

    /// Checks the timeouts of all links if it is time.
    fn tick(&mut self, now: Instant, events: &mut NetEvents) {
        if now < self.next_tick {
            return;
        }
        let Timing { handshake, heartbeat, lost_after } = self.timing;
        self.next_tick = now + tick_interval(handshake.min(heartbeat).min(lost_after));
        let mut closed = Vec::new();
        for (&id, conn) in &mut self.conns {
            let why = match conn.phase {
                ConnPhase::Open => conn.link.tick(now).err().map(CloseReason::Link),
                ConnPhase::Connecting(since) if now.duration_since(since) < handshake => None,
                ConnPhase::Closing(until) if now < until => None,
                _ => Some(CloseReason::Unreachable(ErrorKind::TimedOut.into())),
            };
            match why {
                Some(why) => closed.push((id, why)),
                None => conn.queue_pending(id, &mut self.to_flush),
            }
        }
        let network_down = if closed.is_empty() { None } else { self.network_down(now) };
        for (id, why) in closed {
            let why = match (why, network_down) {
                (CloseReason::Link(LinkError::HeartbeatTimeout { .. }), Some((silent, peers))) => {
                    CloseReason::NetworkDown { silent, peers }
                }
                (why, _) => why,
            };
            self.close_conn(id, why, events);
        }
    }

    /// The number of silent peers and of all peers, if the silence indicates that the network of
    /// this host is down.
    fn network_down(&self, now: Instant) -> Option<(usize, usize)> {
        let ready = self.conns.values().filter(|conn| conn.link.is_ready());
        let silences: Vec<Duration> = ready.map(|conn| conn.link.silence(now)).collect();
        let silent = silent_majority(&silences, self.timing.lost_after)?;
        Some((silent, silences.len()))
    }

    fn report_failed_connects(&mut self, events: &mut NetEvents) {
        let closed = |(conn, e)| NetEvent::Closed { conn, why: CloseReason::Unreachable(e) };
        events.extend(self.failed_connects.drain(..).map(closed));
    }

    /// Handles a link error. A pending rejection or version is still sent to the peer.
    fn on_error(&mut self, id: ConnId, error: LinkError, now: Instant, events: &mut NetEvents) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.link.is_ready() || conn.link.pending().is_empty() {
            return self.close_conn(id, error.into(), events);
        }
        conn.phase = ConnPhase::Closing(now + CLOSE_TIMEOUT);
        // It still counts as unauthenticated, so that closing connections are bounded, too.
        if conn.is_unauthenticated() {
            self.refusals.count(conn.peer.ip(), &error.into());
        } else {
            events.push(NetEvent::Closed { conn: id, why: error.into() });
        }
        self.queue_flush(id);
    }

    /// Closes a connection and reports it, or counts a refusal.
    fn close_conn(&mut self, id: ConnId, why: CloseReason, events: &mut NetEvents) {
        let Some(conn) = self.remove(id) else { return };
        if matches!(conn.phase, ConnPhase::Closing(_)) {
            return;
        }
        if !conn.is_unauthenticated() {
            return events.push(NetEvent::Closed { conn: id, why });
        }
        let reason = match why {
            CloseReason::Link(error) => RefusalReason::Link(error),
            _ => RefusalReason::Disconnected,
        };
        self.refusals.count(conn.peer.ip(), &reason);
    }
}

/// The number of silent links if they are the majority, and at least two. Links that are cut together
/// time out one after the other, within a heartbeat interval: half the timeout tells them apart from
/// links that are alive.
fn silent_majority(silences: &[Duration], lost_after: Duration) -> Option<usize> {
    let silent = silences.iter().filter(|silence| **silence >= lost_after / 2).count();
    (silent >= 2 && 2 * silent > silences.len()).then_some(silent)
}

fn tick_interval(timeout: Duration) -> Duration {
    (timeout / 4).clamp(TICK_RANGE.0, TICK_RANGE.1)
}

/// Whether the error concerns a single peer or the network to it, not this process.
fn is_peer_error(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, HostUnreachable, Interrupted, NetworkUnreachable};
    [ConnectionAborted, HostUnreachable, Interrupted, NetworkUnreachable].contains(&error.kind())
        || [Some(libc::EPROTO), Some(libc::EPERM)].contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_links_silent_at_once_indicate_the_network_of_this_host() {
        let majority = |seconds: &[u64]| {
            let silences: Vec<_> = seconds.iter().map(|&s| Duration::from_secs(s)).collect();
            silent_majority(&silences, Duration::from_secs(15))
        };
        assert_eq!(majority(&[15, 13, 14]), Some(3));
        assert_eq!(majority(&[15, 14, 1]), Some(2));
        assert_eq!(majority(&[15, 14, 1, 0]), None, "two of four nodes failed");
        assert_eq!(majority(&[15, 2]), None);
        assert_eq!(majority(&[15]), None, "a single peer may have failed as well");
    }
}
