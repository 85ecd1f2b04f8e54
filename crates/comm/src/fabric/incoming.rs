//! Messages from other ranks.

use std::collections::{BTreeMap, VecDeque};

use super::gear::{Gear, Lent, Work};
use super::opening::Message;
use super::outgoing::{AHEAD, PARTS};
use crate::tcp::{Key, Posted};
use crate::transport::Landing;

/// What came from a rank so far, and what is wanted of it.
#[derive(Default)]
pub struct Inbox {
    /// The next opening.
    next: u64,
    /// Openings that have overtaken others, which providers may let them.
    held: BTreeMap<u64, (Message, Vec<u8>)>,
    /// Messages that nobody has asked for, in the order in which they were sent.
    early: VecDeque<Early>,
    /// What was asked for and has not come.
    pub posted: VecDeque<Posted>,
    /// Messages that were asked for, and of which the rank has not been told.
    pub taken: u64,
}

/// A message that nobody has asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Early {
    pub message: Message,
    /// The whole of it if it is short.
    pub short: Vec<u8>,
    /// A long one that is fetched already: by which number it is known.
    pub fetched: Option<u64>,
}

impl Inbox {
    /// Whether it is this opening's turn. Then the next one's has come.
    pub fn is_next(&mut self, message: &Message) -> bool {
        let next = message.sequence == self.next;
        self.next += u64::from(next);
        next
    }

    /// An opening came too soon. [`Self::in_turn`] gives it back when its turn has come.
    pub fn put(&mut self, message: Message, short: &[u8]) {
        let far = message.sequence.wrapping_sub(self.next) > 2 * AHEAD;
        if !far {
            self.held.insert(message.sequence, (message, short.to_vec()));
        }
    }

    /// The next opening in the order in which they were sent.
    pub fn in_turn(&mut self) -> Option<(Message, Vec<u8>)> {
        let next = self.held.remove(&self.next)?;
        self.next += 1;
        Some(next)
    }

    /// Who asked for such a message first.
    pub fn asked(&mut self, key: Key) -> Option<Posted> {
        let at = self.posted.iter().position(|posted| posted.key == key)?;
        self.posted.remove(at)
    }

    /// Keeps what nobody has asked for.
    pub fn keep(&mut self, message: Message, short: Vec<u8>) {
        self.early.push_back(Early { message, short, fetched: None });
    }

    /// The first such message that came before it was asked for.
    pub fn early(&mut self, wanted: impl Fn(Key) -> bool) -> Option<Early> {
        let at = self.early.iter().position(|early| wanted(early.message.head.key))?;
        self.early.remove(at)
    }

    /// A long message that nobody has asked for, and that is still with who sends it.
    pub fn unfetched(&mut self) -> Option<&mut Early> {
        self.early.iter_mut().find(|early| early.message.part > 0 && early.fetched.is_none())
    }
}

/// A long message that comes.
pub struct Coming {
    pub from: u32,
    pub message: Message,
    /// Who gets it; `None`: nobody yet, or any more.
    pub posted: Option<Posted>,
    /// Where it is kept if nobody has asked for it yet.
    kept: Option<Vec<u8>>,
    at: usize,
    /// Parts that have to be received once more, as the memory for them was taken back.
    pub again: Vec<usize>,
    pub flying: usize,
}

impl Coming {
    pub fn new(from: u32, message: Message, posted: Option<Posted>) -> Self {
        Self { from, message, posted, kept: None, at: 0, again: Vec::new(), flying: 0 }
    }

    /// One that is fetched before it is asked for; `None`: there is no memory for it.
    pub fn early(from: u32, message: Message) -> Option<Self> {
        let mut kept = Vec::new();
        kept.try_reserve_exact(message.head.length as usize).ok()?;
        kept.resize(message.head.length as usize, 0);
        Some(Self { kept: Some(kept), ..Self::new(from, message, None) })
    }

    /// Nobody wants it any more; what still comes is thrown away.
    pub fn forget(&mut self) {
        (self.posted, self.kept) = (None, None);
    }

    /// A part came that was not received where it belongs.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        match (&mut self.kept, &self.posted) {
            (Some(kept), _) => kept[at..at + bytes.len()].copy_from_slice(bytes),
            (None, Some(posted)) => posted.target().put(at, bytes),
            (None, None) => {}
        }
    }

    /// Hands over what was kept. Who gets it has it then.
    pub fn hand_over(self) -> Option<Posted> {
        if let (Some(kept), Some(posted)) = (&self.kept, &self.posted) {
            posted.target().put(0, kept);
        }
        self.posted
    }

    fn length(&self) -> usize {
        self.message.head.length as usize
    }

    /// Posts what can be posted.
    pub fn pump(&mut self, id: u64, gear: &mut Gear) -> Result<(), String> {
        let part = self.message.part as usize;
        if part == 0 || part > gear.part {
            return Err(format!("its parts have {part} bytes, ours {}", gear.part));
        }
        while self.flying < PARTS {
            let at = self.again.last().copied().unwrap_or(self.at);
            if at >= self.length() {
                break;
            }
            let size = part.min(self.length() - at);
            let number = self.message.first_part + (at / part) as u64;
            let kept = self.kept.is_some();
            let straight = |posted: &&Posted| posted.landing == Landing::Replace && !kept;
            let into = self.posted.as_ref().filter(straight).map(|posted| Lent {
                // SAFETY: the message is as long as what was posted for it.
                start: unsafe { posted.start.add(at) },
                channel: posted.key.channel,
            });
            if !gear.receive_part(Work::In(id, at, size), (self.from, number), into, size)? {
                break;
            }
            if self.again.pop().is_none() {
                self.at += size;
            }
            self.flying += 1;
        }
        Ok(())
    }

    /// Whether all has come, and nobody needs to ask for it.
    pub fn is_done(&self) -> bool {
        let came = self.at >= self.length() && self.again.is_empty() && self.flying == 0;
        came && (self.kept.is_none() || self.posted.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::Head;

    fn message(sequence: u64) -> Message {
        let key = Key { channel: 1, tagged: true, number: sequence % 2 };
        let head = Head { key, length: 0, what: 0, stripes: 1 };
        Message { sequence, head, first_part: 0, part: 0 }
    }

    #[test]
    fn what_overtakes_waits_for_its_turn() {
        let mut inbox = Inbox::default();
        let mut turns = Vec::new();
        for sequence in [1, 0, 3, 4, 2, 2, 1 << 40] {
            match inbox.is_next(&message(sequence)) {
                true => turns.push(sequence),
                false => inbox.put(message(sequence), &[]),
            }
            while let Some((message, _)) = inbox.in_turn() {
                turns.push(message.sequence);
            }
        }
        assert_eq!(turns, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn the_first_of_a_lane_comes_first() {
        let mut inbox = Inbox::default();
        (0..4).for_each(|sequence| inbox.keep(message(sequence), vec![sequence as u8]));
        let mut take = |number| inbox.early(|key| key.number == number).map(|early| early.short);
        assert_eq!([take(1), take(0), take(1)], [Some(vec![1]), Some(vec![0]), Some(vec![3])]);
        assert_eq!(take(1), None);
    }
}
