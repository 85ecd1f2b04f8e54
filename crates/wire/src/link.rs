//! One connection between two processes of a job: a handshake in which each proves to the other
//! that it knows the job's secret, then frames. No I/O; time is an argument.
//!
//! What is sent is neither hidden nor sealed: the secret keeps strangers from speaking, not a man
//! who can alter what is on the cluster's network.

mod frames;
mod handshake;
mod outgoing;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use crate::secret::Secret;
use frames::Frames;
use handshake::Handshake;
use outgoing::Outgoing;

/// The version of the protocol, of this layer and of what it carries.
pub const VERSION: u16 = 1;

/// The longest payload, in bytes.
pub const LONGEST: usize = 64 << 20;

/// Who opened the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This side did.
    Caller,
    /// The other side did.
    Listener,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// From the start to the end of the handshake.
    pub handshake: Duration,
    /// Between two signs of life that are sent.
    pub beat: Duration,
    /// How long nothing may be heard.
    pub lost_after: Duration,
}

/// What came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The handshake is through: the other side is of this job.
    Ready,
    /// A payload.
    Frame(Vec<u8>),
}

/// Why a link is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Its proof is wrong, or it says that ours is.
    #[error("the other side has not the secret of this job: is it of another job?")]
    WrongSecret,
    /// It speaks another version.
    #[error(
        "the other side speaks version {theirs} of the protocol, this one {ours}: \
         use the same regatta on every node"
    )]
    Version {
        /// What it speaks.
        theirs: u16,
        /// What we speak.
        ours: u16,
    },
    /// It does not speak the protocol.
    #[error("the other side is no regatta: another program uses this port")]
    Garbage,
    /// It announced a frame that is too long.
    #[error("the other side announced a message of {bytes} bytes; the longest is {LONGEST}")]
    TooLong {
        /// How long it would be.
        bytes: usize,
    },
    /// It is gone, or the network between.
    #[error("nothing was heard for {seconds} s: the node or the network to it is gone")]
    Silent {
        /// How long nothing was heard.
        seconds: u64,
    },
    /// It did not end the handshake in time.
    #[error("the other side did not prove in time that it is of this job")]
    Slow,
}

/// The state of one connection. Whoever owns the socket feeds [`Self::receive`] with what comes
/// and [`Self::tick`] with the time, and writes what is [`Self::pending`].
#[derive(Debug)]
pub struct Link {
    timing: Timing,
    stage: Stage,
    out: Outgoing,
    /// Frames that wait for the handshake.
    waiting: Outgoing,
    last_heard: Instant,
    last_beat: Instant,
    failed: Option<LinkError>,
}

#[derive(Debug)]
enum Stage {
    /// Since this time.
    Handshake(Handshake, Instant),
    Ready(Frames),
}

impl Link {
    /// A link whose handshake begins now. The nonce must be random and used for no other link.
    pub fn new(role: Role, secret: &Secret, nonce: [u8; 32], timing: Timing, now: Instant) -> Self {
        let mut out = Outgoing::default();
        let handshake = Handshake::start(role, secret, nonce, &mut out);
        Self {
            timing,
            stage: Stage::Handshake(handshake, now),
            out,
            waiting: Outgoing::default(),
            last_heard: now,
            last_beat: now,
            failed: None,
        }
    }

    /// Takes bytes that came, and adds what they mean to `steps`. After an error the link is over;
    /// what is still [`Self::pending`] then tells the other side why.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        now: Instant,
        steps: &mut Vec<Step>,
    ) -> Result<(), LinkError> {
        self.unless_failed(|link| link.take(bytes, now, steps))
    }

    /// Queues a payload, which is sent once the handshake is through. False: it is too long.
    pub fn send(&mut self, payload: &[u8]) -> bool {
        match self.stage {
            Stage::Ready(_) => frames::write(payload, &mut self.out),
            Stage::Handshake(..) => frames::write(payload, &mut self.waiting),
        }
    }

    /// What is to be written to the connection now.
    pub fn pending(&self) -> &[u8] {
        self.out.bytes()
    }

    /// So many of the pending bytes were written.
    pub fn sent(&mut self, bytes: usize) {
        self.out.remove(bytes);
    }

    /// Time passed: a sign of life may be due, or the other side be lost.
    pub fn tick(&mut self, now: Instant) -> Result<(), LinkError> {
        self.unless_failed(|link| link.look_at_clock(now))
    }

    /// Queues a sign of life if one is due. What waits to be sent is one already.
    pub fn beat(&mut self, now: Instant) {
        let due = now.saturating_duration_since(self.last_beat) >= self.timing.beat;
        if due && self.is_ready() && self.failed.is_none() && self.out.bytes().is_empty() {
            frames::write_beat(&mut self.out);
            self.last_beat = now;
        }
    }

    /// Whether the handshake is through.
    pub fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready(_))
    }

    /// The bytes queued, also those that wait for the handshake.
    pub fn backlog(&self) -> usize {
        self.out.bytes().len() + self.waiting.bytes().len()
    }

    fn unless_failed(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        let result = self.failed.clone().map_or_else(|| work(self), Err);
        self.failed = result.clone().err();
        result
    }

    fn take(&mut self, bytes: &[u8], now: Instant, steps: &mut Vec<Step>) -> Result<(), LinkError> {
        let mut rest = bytes;
        if let Stage::Handshake(handshake, _) = &mut self.stage {
            rest = handshake.receive(bytes, &mut self.out)?;
            if !handshake.is_through() {
                return Ok(());
            }
            self.stage = Stage::Ready(Frames::default());
            self.out.append(std::mem::take(&mut self.waiting));
            self.last_beat = now;
            steps.push(Step::Ready);
        }
        self.last_heard = now;
        match &mut self.stage {
            Stage::Ready(frames) => frames.receive(rest, steps),
            Stage::Handshake(..) => Ok(()),
        }
    }

    fn look_at_clock(&mut self, now: Instant) -> Result<(), LinkError> {
        if let Stage::Handshake(_, since) = self.stage {
            let slow = now.duration_since(since) >= self.timing.handshake;
            return if slow { Err(LinkError::Slow) } else { Ok(()) };
        }
        let silence = now.duration_since(self.last_heard);
        if silence >= self.timing.lost_after {
            return Err(LinkError::Silent { seconds: silence.as_secs() });
        }
        self.beat(now);
        Ok(())
    }
}
