//! The messages of a group: all at once, piece by piece, as there is room and as they come.

use super::ShmEngine;
use super::layout::MAIL_BYTES;
use super::mail::{Head, Letter};
use super::sign;
use super::wait::{Now, OF_MANY};
use crate::{Call, CommError, Kind, Signature};

/// A message that is to be sent.
struct Sending<'a> {
    to: usize,
    head: Head,
    rest: &'a [u8],
    now: Now,
    done: bool,
}

/// A message that is to come.
struct Awaited<'a> {
    from: usize,
    head: Head,
    rest: &'a mut [u8],
    now: Now,
    /// Whether its first piece has come.
    begun: bool,
    done: bool,
}

/// What is left to do.
#[derive(Default)]
pub(super) struct Group<'a> {
    sends: Vec<Sending<'a>>,
    receives: Vec<Awaited<'a>>,
}

impl Group<'_> {
    /// The next message to each rank: they go out in their order.
    fn next_sends(&self) -> impl Iterator<Item = usize> + '_ {
        let open = |i: &usize| !self.sends[*i].done;
        let first = |i: &usize| {
            let earlier = self.sends[..*i].iter();
            !earlier.into_iter().any(|other| !other.done && other.to == self.sends[*i].to)
        };
        (0..self.sends.len()).filter(open).filter(first)
    }

    /// The ranks that are waited for, and for what the first of them is.
    pub(super) fn awaited(&self) -> (Vec<usize>, Option<Now>) {
        let receives = self.receives.iter().filter(|r| !r.done).map(|r| (r.from, r.now));
        let sends = self.sends.iter().filter(|s| !s.done).map(|s| (s.to, s.now));
        let all: Vec<(usize, Now)> = receives.chain(sends).collect();
        let mut ranks: Vec<usize> = Vec::new();
        for (rank, _) in &all {
            if !ranks.contains(rank) {
                ranks.push(*rank);
            }
        }
        (ranks, all.first().map(|(_, now)| *now))
    }
}

impl ShmEngine {
    pub(super) fn run_messages(&mut self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        let mut group = self.begin_group(calls)?;
        self.finish_group(&mut group)
    }

    /// Until all is sent and has come.
    pub(super) fn finish_group(&mut self, group: &mut Group<'_>) -> Result<(), CommError> {
        loop {
            let moved = self.pass(group)?;
            let (ranks, now) = group.awaited();
            let Some(now) = now else { return Ok(()) };
            if moved {
                continue;
            }
            let shape = if ranks.len() > 1 { OF_MANY } else { 0 };
            let shown = Signature { shape, ..now.signature };
            self.shared.board.announce(now.doing, sign::encode(&shown));
            let room = |i: usize| {
                let to = group.sends[i].to;
                self.has_room(to, self.mailbox.sent[to] + 1)
            };
            let ready = || self.senders().next().is_some() || group.next_sends().any(room);
            self.shared.wait_long(&ranks, &now, &ready)?;
        }
    }

    /// Moves what can be moved at once. Whether anything could.
    pub(super) fn pass(&mut self, group: &mut Group<'_>) -> Result<bool, CommError> {
        Ok(self.send_what_fits(group) | self.take_what_came(group)?)
    }

    /// What is to be done; what goes to this rank itself is on its way at once, and what came before
    /// it was asked for is taken.
    pub(super) fn begin_group<'a>(&mut self, calls: Vec<Call<'a>>) -> Result<Group<'a>, CommError> {
        let mut group = Group::default();
        for call in calls {
            let now = self.begin_message(&call)?;
            let (with, tag, dtype) = (call.root as usize, call.tag, call.dtype as u8);
            let head = |bytes: usize| Head { tag, dtype, bytes: bytes as u64 };
            match call.kind {
                Kind::Send => {
                    let rest = call.input.unwrap_or(call.output);
                    let head = head(rest.len());
                    if with == self.rank() {
                        let letter = Letter { head, bytes: rest.to_vec() };
                        self.mailbox.aside[with].push_back(letter);
                    } else {
                        group.sends.push(Sending { to: with, head, rest, now, done: false });
                    }
                }
                _ => {
                    let (head, rest) = (head(call.output.len()), call.output);
                    let awaited =
                        Awaited { from: with, head, rest, now, begun: false, done: false };
                    group.receives.push(awaited);
                }
            }
        }
        self.take_kept(&mut group)?;
        Ok(group)
    }

    /// Takes messages that came before they were asked for.
    fn take_kept(&mut self, group: &mut Group<'_>) -> Result<(), CommError> {
        for receive in group.receives.iter_mut().filter(|r| !r.begun && !r.done) {
            if let Some(letter) = self.mailbox.find(receive.from, receive.head.tag) {
                self.fits(receive.from, &receive.now, receive.head, letter.head)?;
                receive.rest.copy_from_slice(&letter.bytes);
                receive.done = true;
            } else if receive.from == self.rank() {
                let what = "this rank has sent itself no such message".to_owned();
                return Err(CommError::Shape { call: Kind::Receive.name(), what });
            }
        }
        Ok(())
    }

    /// Whether anything was sent.
    fn send_what_fits(&mut self, group: &mut Group<'_>) -> bool {
        let mut moved = false;
        for i in group.next_sends().collect::<Vec<_>>() {
            let send = &mut group.sends[i];
            while !send.done && self.has_room(send.to, self.mailbox.sent[send.to] + 1) {
                let (piece, more) = send.rest.split_at(send.rest.len().min(MAIL_BYTES));
                let number = self.mailbox.sent[send.to] + 1;
                self.put_piece(send.to, number, send.head, piece);
                send.rest = more;
                send.done = more.is_empty();
                moved = true;
            }
        }
        moved
    }

    /// Whether anything came. Each piece goes where it belongs, or aside.
    fn take_what_came(&mut self, group: &mut Group<'_>) -> Result<bool, CommError> {
        let mut moved = false;
        for from in self.senders().collect::<Vec<_>>() {
            moved = true;
            let head = self.next_head(from);
            let open = |r: &&mut Awaited<'_>| !r.done && r.from == from;
            let begun = group.receives.iter_mut().filter(open).find(|r| r.begun);
            let receive = match begun {
                Some(receive) => Some(receive),
                None if self.mailbox.partial[from].is_some() => None,
                None => group.receives.iter_mut().filter(open).find(|r| r.head.tag == head.tag),
            };
            let Some(receive) = receive else {
                self.lay_aside(from);
                // It may be the rest of one that is asked for.
                self.take_kept(group)?;
                continue;
            };
            if !receive.begun {
                self.fits(from, &receive.now, receive.head, head)?;
                receive.begun = true;
            }
            let rest = std::mem::take(&mut receive.rest);
            let (piece, more) = rest.split_at_mut(rest.len().min(MAIL_BYTES));
            self.take_piece(from, piece);
            receive.done = more.is_empty();
            receive.rest = more;
        }
        Ok(moved)
    }
}
