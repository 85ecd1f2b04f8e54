//! What comes from other ranks, and where it goes.

use super::Carrier;
use crate::fabric::incoming::{Coming, Early};
use crate::fabric::opening::{Kind, Message, OPENING, Opening};
use crate::fabric::outgoing::AHEAD;
use crate::tcp::{Channels, Posted, Way, fits};

impl Carrier {
    /// An opening came. Bytes of strangers are thrown away.
    pub(super) fn hear(&mut self, bytes: &[u8], channels: &mut Channels) {
        let Some(opening) = Opening::decode(bytes) else { return };
        let from = opening.from;
        if opening.job != self.job || from >= self.ranks {
            return;
        }
        let peer = self.peers.entry(from).or_default();
        match opening.kind {
            Kind::Taken(count) => peer.flow.taken(count),
            Kind::Message(message) => {
                let short = &bytes[OPENING..];
                match peer.inbox.is_next(&message) {
                    true => self.accept(from, message, short, channels),
                    false => peer.inbox.put(message, short),
                }
                while let Some((message, short)) =
                    self.peers.get_mut(&from).and_then(|peer| peer.inbox.in_turn())
                {
                    self.accept(from, message, &short, channels);
                }
            }
        }
    }

    /// A message whose turn it is goes to who asked for it, or is kept until somebody does.
    pub(super) fn accept(
        &mut self,
        from: u32,
        message: Message,
        short: &[u8],
        channels: &mut Channels,
    ) {
        let inbox = &mut self.peers.entry(from).or_default().inbox;
        match inbox.asked(message.head.key) {
            Some(posted) => {
                let posted = fits(&message.head, &posted, channels).then_some(posted);
                self.land(from, message, short, posted, channels);
            }
            None if channels.may_be_early(&message.head) => inbox.keep(message, short.to_vec()),
            None => self.land(from, message, short, None, channels),
        }
    }

    /// A message goes where it belongs, or if that is nowhere, away.
    pub(super) fn land(
        &mut self,
        from: u32,
        message: Message,
        short: &[u8],
        posted: Option<Posted>,
        channels: &mut Channels,
    ) {
        self.peers.entry(from).or_default().inbox.taken += 1;
        if message.part > 0 {
            self.next += 1;
            let (id, mut coming) = (self.next, Coming::new(from, message, posted));
            if self.dead.is_some() {
                return;
            }
            match coming.pump(id, &mut self.gear) {
                Ok(()) => drop(self.comings.insert(id, coming)),
                Err(why) => self.broken.push((from, Way::In, why)),
            }
            return;
        }
        let Some(posted) = posted else { return };
        match short.get(..posted.length) {
            Some(bytes) => {
                posted.target().put(0, bytes);
                channels.moved(posted.key.channel, bytes.len());
                channels.done(posted.key.channel, posted.ticket);
            }
            None => self.broken.push((from, Way::In, "a message is cut off".to_owned())),
        }
    }

    /// The same for one that came before it was asked for.
    pub(super) fn land_early(
        &mut self,
        from: u32,
        early: Early,
        posted: Option<Posted>,
        channels: &mut Channels,
    ) {
        let Some(id) = early.fetched else {
            return self.land(from, early.message, &early.short, posted, channels);
        };
        self.peers.entry(from).or_default().inbox.taken += 1;
        if let Some(coming) = self.comings.get_mut(&id) {
            match posted {
                Some(_) => coming.posted = posted,
                None => coming.forget(),
            }
        }
        self.finish_coming(id, channels);
    }

    /// Fetches what nobody has asked for yet: who sends it may wait for that, and this rank for
    /// something else of the same one.
    pub(super) fn fetch(&mut self) {
        for (rank, peer) in &mut self.peers {
            while let Some(early) = peer.inbox.unfetched() {
                // Without memory for it, it stays where it is.
                let Some(coming) = Coming::early(*rank, early.message) else { break };
                self.next += 1;
                early.fetched = Some(self.next);
                self.comings.insert(self.next, coming);
            }
        }
    }

    pub(super) fn pump_comings(&mut self) {
        let mut failed = Vec::new();
        for (id, coming) in &mut self.comings {
            if let Err(why) = coming.pump(*id, &mut self.gear) {
                failed.push((*id, why));
            }
        }
        failed.into_iter().for_each(|(id, why)| self.broke_coming(id, why));
    }

    pub(super) fn part_came(
        &mut self,
        id: u64,
        at: usize,
        size: usize,
        bytes: Option<&[u8]>,
        channels: &mut Channels,
    ) {
        let Some(coming) = self.comings.get_mut(&id) else { return };
        coming.flying -= 1;
        if let Some(bytes) = bytes {
            coming.put(at, bytes);
        }
        channels.moved(coming.message.head.key.channel, size);
        self.finish_coming(id, channels);
    }

    pub(super) fn finish_coming(&mut self, id: u64, channels: &mut Channels) {
        if self.comings.get(&id).is_some_and(Coming::is_done)
            && let Some(posted) = self.comings.remove(&id).and_then(Coming::hand_over)
        {
            channels.done(posted.key.channel, posted.ticket);
        }
    }

    pub(super) fn broke_coming(&mut self, id: u64, why: String) {
        if let Some(coming) = self.comings.remove(&id) {
            self.broken.push((coming.from, Way::In, why));
        }
    }

    /// Ranks that wait for it hear that they may go on.
    pub(super) fn tell_taken(&mut self) {
        for (rank, peer) in &mut self.peers {
            let taken = peer.inbox.taken;
            if taken < AHEAD / 4 {
                continue;
            }
            match self.gear.open(*rank, Kind::Taken(taken), &[]) {
                Ok(true) => peer.inbox.taken = 0,
                Ok(false) => {}
                Err(why) => self.broken.push((*rank, Way::Out, why)),
            }
        }
    }
}
