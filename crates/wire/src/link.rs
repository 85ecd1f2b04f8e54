//! One connection between two processes of a job: a mutual authentication handshake based on the
//! job's secret, then encrypted, length-prefixed frames. No I/O; the caller passes the time, that of
//! [`crate::clock`].
//!
//! After the handshake an attacker on the network can neither read nor alter frames; it sees their
//! lengths and times, and can cut the connection. There is no forward secrecy: traffic that was
//! recorded can be decrypted with the job's secret.

mod cipher;
mod handshake;
mod send_buffer;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use crate::framing::{self, FrameDecoder, FrameError};
use crate::secret::Secret;
use cipher::{FrameCipher, FrameKind, OVERHEAD};
use handshake::Handshake;
use send_buffer::SendBuffer;

/// Version of this protocol and of the messages it carries.
pub const PROTOCOL_VERSION: u16 = 3;

/// Maximum payload length in bytes.
pub const MAX_FRAME_LEN: usize = 64 << 20;

/// Bytes on the wire in addition to a payload.
const FRAME_OVERHEAD: usize = framing::PREFIX_LEN + OVERHEAD;

/// Which side opened the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This side opened it.
    Initiator,
    /// The peer opened it.
    Responder,
}

/// Timeouts and heartbeat interval of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Handshake timeout.
    pub handshake: Duration,
    /// Interval between heartbeats.
    pub heartbeat: Duration,
    /// The peer counts as lost when nothing arrives for this long.
    pub lost_after: Duration,
}

/// What the received bytes amount to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// The handshake is complete: the peer belongs to this job.
    Ready,
    /// A payload.
    Frame(Vec<u8>),
}

/// Why a link failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum LinkError {
    /// The peer's proof is wrong, or the peer rejected ours.
    #[error(
        "authentication failed: the peer does not have this job's secret; it may belong to another job"
    )]
    AuthenticationFailed,
    /// The peer uses another protocol version.
    #[error(
        "protocol version mismatch: the peer uses version {theirs}, this process version {ours}; \
         run the same regatta version on every node"
    )]
    VersionMismatch { theirs: u16, ours: u16 },
    /// The peer does not speak this protocol.
    #[error("the peer is not a regatta process: another program uses this port")]
    BadMagic,
    /// The peer announced a frame over the limit.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame failed to authenticate.
    #[error("a frame failed to authenticate: it was altered, replayed or lost on the network")]
    FrameNotAuthentic,
    /// Nothing arrived within [`Timing::lost_after`].
    #[error(
        "no heartbeat for {seconds} s: the process is stopped, or its node or the network to it is down"
    )]
    HeartbeatTimeout { seconds: u64 },
    /// The handshake did not complete within [`Timing::handshake`].
    #[error("handshake timed out: the peer did not authenticate in time")]
    HandshakeTimeout,
}

type Result<T = ()> = std::result::Result<T, LinkError>;

/// State machine of one connection. The owner of the socket passes received bytes to
/// [`Self::receive`] and the time to [`Self::tick`], and writes [`Self::pending`] to the socket.
#[derive(Debug)]
pub struct Link {
    timing: Timing,
    stage: LinkStage,
    send_buffer: SendBuffer,
    /// Payloads queued until the handshake completes.
    queued: Vec<Vec<u8>>,
    last_received: Instant,
    last_heartbeat: Instant,
    error: Option<LinkError>,
}

#[derive(Debug)]
enum LinkStage {
    Handshake { handshake: Handshake, since: Instant },
    Ready { decoder: FrameDecoder, sending: FrameCipher, receiving: FrameCipher },
}

impl Link {
    /// Starts the handshake. The nonce must be random and unique to this link.
    pub fn new(role: Role, secret: &Secret, nonce: [u8; 32], timing: Timing, now: Instant) -> Self {
        let mut send_buffer = SendBuffer::default();
        let handshake = Handshake::new(role, secret.clone(), nonce);
        if role == Role::Initiator {
            handshake.write_hello(&mut send_buffer);
        }
        Self {
            timing,
            stage: LinkStage::Handshake { handshake, since: now },
            send_buffer,
            queued: Vec::new(),
            last_received: now,
            last_heartbeat: now,
            error: None,
        }
    }

    /// Processes received bytes and appends the resulting events. An error is final; what is still
    /// [`Self::pending`] then tells the peer the reason.
    pub fn receive(&mut self, bytes: &[u8], now: Instant, events: &mut Vec<LinkEvent>) -> Result {
        self.unless_failed(|link| link.process(bytes, now, events))
    }

    /// Queues a payload, sent once the handshake is complete. False if it exceeds
    /// [`MAX_FRAME_LEN`].
    pub fn send(&mut self, payload: &[u8]) -> bool {
        if payload.len() > MAX_FRAME_LEN {
            return false;
        }
        match &mut self.stage {
            LinkStage::Ready { sending, .. } => {
                return sending.seal(FrameKind::Data, payload, &mut self.send_buffer);
            }
            LinkStage::Handshake { .. } => self.queued.push(payload.to_vec()),
        }
        true
    }

    /// Bytes to write to the socket now.
    pub fn pending(&self) -> &[u8] {
        self.send_buffer.bytes()
    }

    /// Removes the first `bytes` pending bytes after the socket accepted them.
    pub fn advance(&mut self, bytes: usize) {
        self.send_buffer.consume(bytes);
    }

    /// Checks the timeouts and queues a heartbeat if one is due.
    pub fn tick(&mut self, now: Instant) -> Result {
        self.unless_failed(|link| link.check_timeouts(now))
    }

    /// Queues a heartbeat if one is due. Pending data serves as one already.
    pub fn heartbeat(&mut self, now: Instant) {
        let due = now.saturating_duration_since(self.last_heartbeat) >= self.timing.heartbeat;
        if let LinkStage::Ready { sending, .. } = &mut self.stage
            && due
            && self.error.is_none()
            && self.send_buffer.bytes().is_empty()
        {
            sending.seal(FrameKind::Heartbeat, &[], &mut self.send_buffer);
            self.last_heartbeat = now;
        }
    }

    /// Whether the handshake is complete.
    pub fn is_ready(&self) -> bool {
        matches!(self.stage, LinkStage::Ready { .. })
    }

    /// The time since the last byte arrived.
    pub fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_received)
    }

    /// Queued bytes, including frames that wait for the handshake.
    pub fn backlog(&self) -> usize {
        let queued = self.queued.iter().map(|payload| FRAME_OVERHEAD + payload.len());
        self.send_buffer.bytes().len() + queued.sum::<usize>()
    }

    fn unless_failed(&mut self, work: impl FnOnce(&mut Self) -> Result) -> Result {
        let result = self.error.clone().map_or_else(|| work(self), Err);
        self.error = result.clone().err();
        result
    }

    fn process(&mut self, bytes: &[u8], now: Instant, events: &mut Vec<LinkEvent>) -> Result {
        let mut rest = bytes;
        if let LinkStage::Handshake { handshake, .. } = &mut self.stage {
            rest = handshake.receive(bytes, &mut self.send_buffer)?;
            if !handshake.is_complete() {
                return Ok(());
            }
            let (mut sending, receiving) = handshake.frame_ciphers();
            for payload in std::mem::take(&mut self.queued) {
                sending.seal(FrameKind::Data, &payload, &mut self.send_buffer);
            }
            let decoder = FrameDecoder::new(MAX_FRAME_LEN + OVERHEAD);
            self.stage = LinkStage::Ready { decoder, sending, receiving };
            self.last_heartbeat = now;
            events.push(LinkEvent::Ready);
        }
        self.last_received = now;
        let LinkStage::Ready { decoder, receiving, .. } = &mut self.stage else { return Ok(()) };
        let mut opened = Ok(());
        let decoded = decoder.push(rest, |frame| {
            // Frames after one that is not authentic are dropped.
            if opened.is_ok() {
                let payload = receiving.open(frame);
                opened = payload.map(|payload| events.extend(payload.map(LinkEvent::Frame)));
            }
        });
        opened.and(decoded.map_err(LinkError::from))
    }

    fn check_timeouts(&mut self, now: Instant) -> Result {
        if let LinkStage::Handshake { since, .. } = self.stage {
            let expired = now.duration_since(since) >= self.timing.handshake;
            return if expired { Err(LinkError::HandshakeTimeout) } else { Ok(()) };
        }
        let silence = self.silence(now);
        if silence >= self.timing.lost_after {
            return Err(LinkError::HeartbeatTimeout { seconds: silence.as_secs() });
        }
        self.heartbeat(now);
        Ok(())
    }
}
