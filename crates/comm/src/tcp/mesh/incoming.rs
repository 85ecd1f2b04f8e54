//! The connections from one rank: what comes is put where a receive was posted for it, or kept
//! until one is.

use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;
use std::sync::Arc;

use super::reader::{Reader, Turn};
use super::target::{Posted, Target};
use super::{Channels, Trouble};
use crate::tcp::frame::{HEAD, Head, stripe};

/// How much of one rank's is read before the others have their turn.
const SHARE: usize = 4 << 20;

/// Where the connection is that this rank made and the other may send over, too; after it come those
/// that carry stripes only.
const OWN: usize = 1;

/// Connections from a rank.
#[derive(Default)]
pub struct Incoming {
    /// The first one that it made, the one that this rank made, and its others.
    lanes: Vec<Option<Reader>>,
    /// Over which of the first two it sends, once that is known.
    chosen: Option<usize>,
    messages: HashMap<u64, Message>,
    /// Messages that nobody has asked for, in the order in which they came.
    early: VecDeque<u64>,
    kept: usize,
    posted: VecDeque<Posted>,
    next: u64,
}

struct Message {
    head: Head,
    target: Target,
    /// Of how many stripes the rest consists.
    parts: usize,
    /// Who gets it, if it is not kept for nobody.
    posted: Option<Posted>,
}

impl Incoming {
    /// A connection that the rank made, and which of its connections it is.
    pub fn add(&mut self, index: usize, stream: TcpStream) {
        self.put(lane_of(index, 0), Arc::new(stream));
    }

    /// A connection that this rank made.
    pub fn add_own(&mut self, stream: Arc<TcpStream>) {
        self.put(OWN, stream);
    }

    fn put(&mut self, lane: usize, stream: Arc<TcpStream>) {
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, || None);
        }
        self.lanes[lane] = Some(Reader::new(stream));
    }

    /// The first connection that the rank made.
    pub fn theirs(&self) -> Option<Arc<TcpStream>> {
        self.lanes.first()?.as_ref().map(|reader| reader.stream.clone())
    }

    /// Asks for a message.
    pub fn post(&mut self, posted: Posted, channels: &mut Channels) {
        let is_it = |id: &u64| self.messages.get(id).is_some_and(|m| m.head.key == posted.key);
        let Some(at) = self.early.iter().position(is_it) else {
            self.posted.push_back(posted);
            return;
        };
        let Some(id) = self.early.remove(at) else { return };
        if let Some(message) = self.messages.get_mut(&id) {
            self.kept = self.kept.saturating_sub(message.head.length as usize);
            if fits(&message.head, &posted, channels) {
                message.posted = Some(posted);
            } else {
                message.target = Target::Nowhere;
            }
        }
        self.finish(id, channels);
    }

    /// Whether so much is kept of what nobody has asked for that others come first.
    pub fn is_full(&self, keep: usize) -> bool {
        self.kept >= keep
    }

    /// Reads what is there, until a message is complete or somebody else should have a turn. No
    /// message is begun when so much is kept. True: something came.
    pub fn read(&mut self, channels: &mut Channels, keep: usize) -> Result<bool, String> {
        let mut share = SHARE;
        for lane in 0..self.lanes.len() {
            loop {
                let turn = match self.step(lane, channels, keep) {
                    Err(_) if self.can_do_without(lane) => {
                        self.lanes[lane] = None;
                        Turn::Empty
                    }
                    turn => turn?,
                };
                match turn {
                    Turn::Empty => break,
                    Turn::Got(count) => share = share.saturating_sub(count),
                    Turn::Complete => return Ok(true),
                }
                if share == 0 {
                    return Ok(true);
                }
            }
        }
        Ok(share < SHARE)
    }

    /// One system call, or what can be done without one.
    fn step(&mut self, lane: usize, channels: &mut Channels, keep: usize) -> Result<Turn, String> {
        let wants_head = self.wants_head(lane) && !self.is_full(keep);
        let Some(reader) = self.lanes.get_mut(lane).and_then(Option::as_mut) else {
            return Ok(Turn::Empty);
        };
        let Some(part) = reader.parts.front_mut() else {
            if !wants_head {
                return Ok(Turn::Empty);
            }
            if let Some(head) = reader.buffer.head() {
                self.chosen = Some(lane);
                return self.begin(lane, Head::decode(&head), channels);
            }
            return match reader.buffer.fill(&reader.stream) {
                Err(_) if self.may_send_elsewhere(lane) => {
                    self.lanes[lane] = None;
                    Ok(Turn::Empty)
                }
                filled => filled,
            };
        };
        let Some(message) = self.messages.get_mut(&part.message) else {
            return Err("its messages are out of order".to_owned());
        };
        let (turn, landed) =
            reader.buffer.land(&reader.stream, &mut message.target, part.at, part.left)?;
        part.at += landed;
        part.left -= landed;
        channels.moved(message.head.key.channel, landed);
        if part.left > 0 {
            return Ok(turn);
        }
        let id = part.message;
        reader.parts.pop_front();
        message.parts -= 1;
        Ok(self.finish(id, channels))
    }

    /// Whether what the rank still has to say may come over another connection than this one.
    fn can_do_without(&self, lane: usize) -> bool {
        let other = |other: usize| self.lanes.get(other).is_some_and(Option::is_some);
        lane <= OWN && self.chosen != Some(lane) && other(OWN - lane)
    }

    /// All connections.
    pub fn streams(&self) -> impl Iterator<Item = &Arc<TcpStream>> {
        self.lanes.iter().flatten().map(|reader| &reader.stream)
    }

    /// Only the connection that the rank has chosen has heads. They are read if somebody waits for a
    /// message.
    fn wants_head(&self, lane: usize) -> bool {
        let has_heads = lane <= OWN && self.chosen.is_none_or(|chosen| chosen == lane);
        has_heads && !self.posted.is_empty()
    }

    /// Whether messages may come over the other connection when this one is closed: a rank that
    /// leaves closes both, and what it sent may still be on its way.
    fn may_send_elsewhere(&self, lane: usize) -> bool {
        let other = self.lanes.get(OWN - lane.min(OWN)).is_some_and(Option::is_some);
        self.chosen.is_none() && lane <= OWN && other
    }

    /// A message begins.
    fn begin(&mut self, first: usize, head: Head, channels: &mut Channels) -> Result<Turn, String> {
        let length = head.length as usize;
        let found = self.posted.iter().position(|posted| posted.key == head.key);
        let posted = found.and_then(|at| self.posted.remove(at));
        self.next += 1;
        let id = self.next;
        let (target, posted) = match posted {
            Some(posted) if fits(&head, &posted, channels) => (posted.target(), Some(posted)),
            Some(_) => (Target::Nowhere, None),
            None if !channels.may_be_early(&head) => (Target::Nowhere, None),
            None => {
                self.kept += length;
                self.early.push_back(id);
                (Target::Kept(room(length)?), None)
            }
        };
        let stripes = usize::from(head.stripes);
        // A stripe may be empty, and then nothing comes.
        let ranges = (0..stripes).map(|i| stripe(length, i, stripes));
        let ranges: Vec<_> = ranges.enumerate().filter(|(_, range)| !range.is_empty()).collect();
        self.messages.insert(id, Message { head, target, parts: ranges.len(), posted });
        for (index, range) in ranges {
            // All connections are there before a message that needs them.
            let reader = self.lanes.get_mut(lane_of(index, first)).and_then(Option::as_mut);
            reader.ok_or("it sends over a connection that there is not")?.expect(id, range);
        }
        Ok(self.finish(id, channels))
    }

    /// Hands a message over if it is complete and wanted.
    fn finish(&mut self, id: u64, channels: &mut Channels) -> Turn {
        let complete = |m: &Message| {
            m.parts == 0 && (m.posted.is_some() || matches!(m.target, Target::Nowhere))
        };
        if !self.messages.get(&id).is_some_and(complete) {
            return Turn::Got(0);
        }
        let Some(message) = self.messages.remove(&id) else { return Turn::Got(0) };
        if let Some(posted) = message.posted {
            if let Target::Kept(bytes) = &message.target {
                posted.target().put(0, bytes);
            }
            channels.done(posted.key.channel, posted.ticket);
        }
        Turn::Complete
    }

    /// The connections that should tell when something comes.
    pub fn waiting(&self) -> impl Iterator<Item = &Arc<TcpStream>> {
        let wanted = |(i, lane): &(usize, &Option<Reader>)| {
            lane.as_ref().is_some_and(|reader| !reader.parts.is_empty() || self.wants_head(*i))
        };
        self.lanes
            .iter()
            .enumerate()
            .filter(wanted)
            .filter_map(|(_, lane)| lane.as_ref())
            .map(|reader| &reader.stream)
    }

    /// Nothing more comes. What was asked for stays so.
    pub fn hang_up(&mut self) {
        self.lanes.clear();
        self.chosen = None;
    }

    /// Gives memory of a channel back. What was begun goes nowhere.
    pub fn cancel(&mut self, channel: u64) {
        self.posted.retain(|posted| posted.key.channel != channel);
        for message in self.messages.values_mut().filter(|m| m.head.key.channel == channel) {
            if message.posted.take().is_some() {
                message.target = Target::Nowhere;
            }
        }
    }

    /// Nobody will ask for messages of a channel any more.
    pub fn close(&mut self, channel: u64) {
        self.cancel(channel);
        let (messages, kept) = (&mut self.messages, &mut self.kept);
        self.early.retain(|id| {
            let Some(message) = messages.get_mut(id) else { return false };
            if message.head.key.channel != channel {
                return true;
            }
            *kept = kept.saturating_sub(message.head.length as usize);
            message.target = Target::Nowhere;
            false
        });
        self.messages.retain(|_, m| m.head.key.channel != channel || m.parts > 0);
    }
}

/// The place of the connection with this index, where the first is at `first`.
fn lane_of(index: usize, first: usize) -> usize {
    if index == 0 { first } else { index + OWN }
}

/// Memory for a message that nobody has asked for. Its length is what somebody else says.
fn room(length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let none = |_| format!("there is no memory for a message of {length} bytes");
    bytes.try_reserve_exact(length).map_err(none)?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Whether a message is what was asked for. If not, its communicator is in trouble.
pub fn fits(head: &Head, posted: &Posted, channels: &mut Channels) -> bool {
    let key = posted.key;
    let trouble = if head.what != posted.what && !key.tagged {
        Trouble::Mismatch { call: key.number }
    } else if head.length as usize != posted.length {
        Trouble::Size { of: posted.ticket, came: head.length, room: posted.length as u64 }
    } else {
        return true;
    };
    channels.trouble(key.channel, trouble);
    false
}

impl Reader {
    fn expect(&mut self, message: u64, range: std::ops::Range<usize>) {
        self.parts.push_back(super::reader::Part { message, at: range.start, left: range.len() });
    }
}

/// The buffer holds at least a head.
const _: () = assert!(HEAD <= super::reader::BUFFER);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::tcp::frame::Key;
    use crate::transport::{Landing, Lane, Ticket};

    /// Both ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// A rank has sent over one of two connections, and left: what it sent is still read.
    #[test]
    fn what_was_sent_before_both_were_closed_comes() {
        for over_own in [false, true] {
            let ((theirs, mut far), (own, mut other)) = (pair(), pair());
            let mut incoming = Incoming::default();
            incoming.add(0, theirs);
            incoming.add_own(Arc::new(own));
            let key = Key::new(1, Lane::Call, 1);
            let head = Head { key, length: 3, what: 7, stripes: 1 };
            let sender = if over_own { &mut other } else { &mut far };
            sender.write_all(&[&head.encode()[..], b"abc"].concat()).unwrap();
            drop((far, other));
            let (mut channels, mut into) = (Channels::default(), [0u8; 3]);
            let (start, landing) = (into.as_mut_ptr(), Landing::Replace);
            let ticket = Ticket(1);
            let posted = Posted { key, what: 7, ticket, start, length: 3, landing, with: None };
            incoming.post(posted, &mut channels);
            while channels.get(1).done.is_empty() {
                incoming.read(&mut channels, usize::MAX).unwrap();
            }
            assert_eq!(&into, b"abc");
        }
    }
}
