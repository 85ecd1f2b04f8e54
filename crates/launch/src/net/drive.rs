//! The loop: waits for sockets, and does what each is ready for. Work is in proportion to what
//! happens, not to how many connections there are; only the clock is shown to all, a few times
//! between two beats.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use mio::event::Event;

use super::conn::{Phase, Turn};
use super::refusals::Reason;
use super::{BATCH, ConnId, FLUSH, ListenerId, Net, NetEvent, WAKE, Why};
use regatta_wire::link::{LinkError, Step, Timing};

/// How many one listener accepts before the others have their turn.
const ACCEPTS_IN_TURN: usize = 64;

/// How long accepting rests when there are no files left.
const REST: Duration = Duration::from_millis(100);

/// How many batches are fetched at most before the clock is looked at.
const BATCHES: usize = 16;

/// The shortest and the longest time between two looks at the clock.
const TICKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));

/// What the kernel says about one socket.
#[derive(Debug, Clone, Copy)]
struct Readiness {
    token: mio::Token,
    readable: bool,
    writable: bool,
    hung_up: bool,
}

impl From<&Event> for Readiness {
    fn from(event: &Event) -> Self {
        let hung_up = event.is_read_closed() || event.is_write_closed() || event.is_error();
        Self {
            token: event.token(),
            readable: event.is_readable() || hung_up,
            writable: event.is_writable(),
            hung_up,
        }
    }
}

impl Net {
    /// Waits until something happens, the waker is used or the time is over, and adds what happened
    /// to `events`. It may return early with nothing.
    pub fn poll(&mut self, timeout: Duration, events: &mut Vec<NetEvent>) -> io::Result<()> {
        self.flush_listed();
        let mut wait = self.longest_wait(timeout, Instant::now());
        // All that came must be read before the clock may say that nothing did, also when this
        // process was stopped for a while.
        for _ in 0..BATCHES {
            let batch = self.fetch(wait)?;
            let now = Instant::now();
            for readiness in &batch {
                self.serve(*readiness, now, events);
            }
            if batch.len() < BATCH {
                break;
            }
            wait = Duration::ZERO;
        }
        let now = Instant::now();
        for id in std::mem::take(&mut self.to_read) {
            self.read(id, now, events);
        }
        self.report_stillborn(events);
        self.accept(now);
        self.tick(now, events);
        self.flush_listed();
        Ok(())
    }

    /// Sends what is queued and signs of life, and takes nothing in: for one who has yet to do with
    /// what came before, and must not be taken for dead meanwhile.
    pub fn send_only(&mut self) {
        let now = Instant::now();
        if now >= self.next_beat {
            self.next_beat = now + (self.timing.beat / 4).clamp(TICKS.0, TICKS.1);
            for (&id, conn) in self.conns.iter_mut().filter(|(_, c)| c.phase == Phase::Open) {
                conn.link.beat(now);
                if conn.has_to_be_listed() {
                    conn.listed = true;
                    self.to_flush.push(id);
                }
            }
        }
        self.flush_listed();
    }

    /// Closes all connections, each once what is queued on it is sent, and waits for that, but not
    /// longer than `limit`.
    pub fn finish(&mut self, limit: Duration) -> io::Result<()> {
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        all.into_iter().for_each(|id| self.close(id));
        let (start, mut events) = (Instant::now(), Vec::new());
        while self.closing() > 0 && start.elapsed() < limit {
            self.poll(limit.saturating_sub(start.elapsed()), &mut events)?;
            events.clear();
        }
        Ok(())
    }

    fn longest_wait(&self, timeout: Duration, now: Instant) -> Duration {
        let rested = self.accept_after.map_or(Duration::ZERO, |after| after.duration_since(now));
        let accept = if self.to_accept.is_empty() { Duration::MAX } else { rested };
        let idle = self.to_read.is_empty() && self.stillborn.is_empty();
        let work = if idle { Duration::MAX } else { Duration::ZERO };
        timeout.min(self.next_tick.duration_since(now)).min(accept).min(work)
    }

    fn fetch(&mut self, wait: Duration) -> io::Result<Vec<Readiness>> {
        match self.poll.poll(&mut self.fetched, Some(wait)) {
            Ok(()) => Ok(self.fetched.iter().map(Readiness::from).collect()),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn serve(&mut self, ready: Readiness, now: Instant, events: &mut Vec<NetEvent>) {
        let (id, listener) = (ConnId(ready.token.0 as u64), ListenerId(ready.token.0 as u64));
        if ready.token == WAKE {
            self.waker.seen();
        } else if self.conns.contains_key(&id) {
            self.serve_conn(id, ready, now, events);
        } else if self.listeners.contains_key(&listener) {
            self.to_accept.insert(listener);
        }
    }

    fn serve_conn(
        &mut self,
        id: ConnId,
        ready: Readiness,
        now: Instant,
        events: &mut Vec<NetEvent>,
    ) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.hung_up |= ready.hung_up;
        let mut writable = ready.writable;
        if matches!(conn.phase, Phase::Connecting(_)) {
            match conn.finish_connecting() {
                Ok(true) => writable = true,
                Ok(false) => return,
                Err(error) => return self.end(id, Why::Unreachable(error), events),
            }
        }
        if writable {
            conn.blocked = false;
            self.flush_later(id);
        }
        if ready.readable {
            self.read(id, now, events);
        }
    }

    fn read(&mut self, id: ConnId, now: Instant, events: &mut Vec<NetEvent>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (listener, peer) = (conn.listener, conn.peer);
        let turn = conn.read(&mut self.buffer, now, &mut self.steps);
        if !conn.blocked && !conn.link.pending().is_empty() {
            self.flush_later(id);
        }
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Ready => {
                    self.no_stranger(id, listener);
                    events.push(NetEvent::Ready { conn: id, listener, peer });
                }
                Step::Frame(payload) => events.push(NetEvent::Frame { conn: id, payload }),
            }
        }
        match turn {
            Turn::Drained => {}
            Turn::More => self.to_read.push(id),
            Turn::Ended => self.end(id, Why::Ended, events),
            Turn::Failed(error) => self.fail(id, error, now, events),
        }
    }

    fn flush_listed(&mut self) {
        for id in std::mem::take(&mut self.to_flush) {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.listed = false;
            if matches!(conn.phase, Phase::Connecting(_)) || conn.flush().is_ok() {
                continue;
            }
            // What came before it broke is read first.
            conn.broken = true;
            if matches!(conn.phase, Phase::Closing(_)) {
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
                // No files or no memory: whoever has waited longest makes room, or time does.
                self.refuse_oldest(id);
                self.accept_after = Some(now + REST);
                true
            });
            if more {
                self.to_accept.insert(id);
            }
        }
    }

    /// Whether there may be more. An error says that this process has not what it needs.
    fn accept_from(&mut self, id: ListenerId, now: Instant) -> io::Result<bool> {
        for _ in 0..ACCEPTS_IN_TURN {
            let Some(listener) = self.listeners.get_mut(&id) else { return Ok(false) };
            let (stream, peer) = match listener.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if is_the_callers(&error) => continue,
                Err(error) => return Err(error),
            };
            if listener.is_crowded() {
                self.refuse_oldest(id);
            }
            // Fails only for a caller that is gone already.
            let _ = stream.set_nodelay(true);
            let conn = ConnId(self.take_id());
            self.add(conn, stream, peer, Some(id), Phase::Open, now)?;
            if let Some(listener) = self.listeners.get_mut(&id) {
                listener.strangers.insert(conn);
            }
        }
        Ok(true)
    }

    fn refuse_oldest(&mut self, id: ListenerId) {
        let oldest = self.listeners.get(&id).and_then(|listener| listener.oldest());
        if let Some(conn) = oldest.and_then(|oldest| self.remove(oldest))
            && conn.phase == Phase::Open
        {
            self.refusals.count(conn.peer.ip(), &Reason::Crowded);
        }
    }

    /// Shows all links the clock, if it is time.
    fn tick(&mut self, now: Instant, events: &mut Vec<NetEvent>) {
        if now < self.next_tick {
            return;
        }
        let Timing { handshake, beat, lost_after } = self.timing;
        self.next_tick = now + (handshake.min(beat).min(lost_after) / 4).clamp(TICKS.0, TICKS.1);
        let mut over = Vec::new();
        for (&id, conn) in &mut self.conns {
            let why = match conn.phase {
                Phase::Open => conn.link.tick(now).err().map(Why::Link),
                Phase::Connecting(since) if now.duration_since(since) < handshake => None,
                Phase::Closing(until) if now < until => None,
                _ => Some(Why::Unreachable(ErrorKind::TimedOut.into())),
            };
            if let Some(why) = why {
                over.push((id, why));
            } else if conn.has_to_be_listed() {
                conn.listed = true;
                self.to_flush.push(id);
            }
        }
        for (id, why) in over {
            self.end(id, why, events);
        }
    }

    fn report_stillborn(&mut self, events: &mut Vec<NetEvent>) {
        for (conn, error) in std::mem::take(&mut self.stillborn) {
            events.push(NetEvent::Closed { conn, why: Why::Unreachable(error) });
        }
    }

    /// The link is over. The other side is told why, if there is something to tell.
    fn fail(&mut self, id: ConnId, error: LinkError, now: Instant, events: &mut Vec<NetEvent>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.link.is_ready() || conn.link.pending().is_empty() {
            return self.end(id, error.into(), events);
        }
        conn.phase = Phase::Closing(now + FLUSH);
        // It stays among the strangers: of those that are told why there may be too many, too.
        if conn.is_stranger() {
            self.refusals.count(conn.peer.ip(), &error.into());
        } else {
            events.push(NetEvent::Closed { conn: id, why: error.into() });
        }
        self.flush_later(id);
    }

    /// The connection is over: tells the owner, or counts a refusal.
    fn end(&mut self, id: ConnId, why: Why, events: &mut Vec<NetEvent>) {
        let Some(conn) = self.remove(id) else { return };
        if matches!(conn.phase, Phase::Closing(_)) {
            return;
        }
        if !conn.is_stranger() {
            return events.push(NetEvent::Closed { conn: id, why });
        }
        let reason = match why {
            Why::Link(error) => Reason::Link(error),
            Why::Ended | Why::Unreachable(_) => Reason::Left,
        };
        self.refusals.count(conn.peer.ip(), &reason);
    }
}

/// Whether it is the fault of one caller, or of the network to it, and not of this process.
fn is_the_callers(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, HostUnreachable, Interrupted, NetworkUnreachable};
    [ConnectionAborted, HostUnreachable, Interrupted, NetworkUnreachable].contains(&error.kind())
        || [Some(libc::EPROTO), Some(libc::EPERM)].contains(&error.raw_os_error())
}
