//! Messages to other ranks.

use super::gear::{Gear, Lent};
use super::opening::{Kind, Message};
use crate::tcp::Head;
use crate::transport::Ticket;

/// So many parts of a message are on their way at once.
pub const PARTS: usize = 8;

/// So many messages to a rank may be on their way that it has not asked for. Then this one waits.
pub const AHEAD: u64 = 1024;

/// What was sent to a rank so far.
#[derive(Debug, Default)]
pub struct Flow {
    sequence: u64,
    parts: u64,
    ahead: u64,
}

impl Flow {
    /// It has taken so many.
    pub fn taken(&mut self, count: u64) {
        self.ahead = self.ahead.saturating_sub(count);
    }
}

/// A message on its way.
pub struct Sending {
    pub to: u32,
    pub head: Head,
    pub ticket: Ticket,
    /// Whose memory it is; `None`: it was taken back, and only its length counts.
    pub lent: Option<Lent>,
    /// The opening has left.
    pub opened: bool,
    first_part: u64,
    at: usize,
    pub flying: usize,
}

impl Sending {
    pub fn new(to: u32, head: Head, ticket: Ticket, start: *const u8) -> Self {
        let lent = Some(Lent { start: start.cast_mut(), channel: head.key.channel });
        Self { to, head, ticket, lent, opened: false, first_part: 0, at: 0, flying: 0 }
    }

    fn length(&self) -> usize {
        self.head.length as usize
    }

    /// Posts what can be posted.
    pub fn pump(&mut self, id: u64, flow: &mut Flow, gear: &mut Gear) -> Result<(), String> {
        if !self.opened {
            self.open(flow, gear)?;
        }
        while self.opened && self.at < self.length() && self.flying < PARTS {
            let size = gear.part.min(self.length() - self.at);
            let number = self.first_part + (self.at / gear.part) as u64;
            let at = self.at;
            // SAFETY: it is within the message.
            let start = |lent: Lent| Lent { start: unsafe { lent.start.add(at) }, ..lent };
            if !gear.send_part(id, self.to, number, self.lent.map(start), size)? {
                break;
            }
            self.at += size;
            self.flying += 1;
        }
        Ok(())
    }

    fn open(&mut self, flow: &mut Flow, gear: &mut Gear) -> Result<(), String> {
        if flow.ahead >= AHEAD {
            return Ok(());
        }
        let (length, mut short): (_, &[u8]) = (self.length(), &[]);
        let is_short = length <= gear.longest_short();
        if let Some(lent) = self.lent.filter(|_| is_short && length > 0) {
            // SAFETY: it is lent until the message is done.
            short = unsafe { std::slice::from_raw_parts(lent.start, length) };
        }
        let part = if is_short { 0 } else { gear.part as u32 };
        let (sequence, first_part) = (flow.sequence, flow.parts);
        let message = Message { sequence, head: self.head, first_part, part };
        if gear.open(self.to, Kind::Message(message), short)? {
            self.opened = true;
            flow.sequence += 1;
            flow.ahead += 1;
            if is_short {
                self.at = length;
            } else {
                self.first_part = first_part;
                flow.parts += length.div_ceil(gear.part) as u64;
            }
        }
        Ok(())
    }

    /// Whether its memory is not needed any more.
    pub fn is_done(&self) -> bool {
        self.opened && self.at == self.length() && self.flying == 0
    }
}
