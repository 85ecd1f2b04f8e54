//! Messages between two ranks: pieces through a ring of slots for each pair and direction, in the
//! order in which they were sent. One with another tag than is asked for is laid aside.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::ShmEngine;
use super::board::Doing;
use super::layout::{LINE_BYTES, MAIL_BYTES, MAIL_INLINE_BYTES, MAIL_SLOTS};
use super::sign;
use super::wait::Now;
use crate::{Call, CommError, DType, Kind, Signature};

/// Where this rank is with every other.
#[derive(Debug)]
pub struct Mailbox {
    pub(super) sent: Vec<u64>,
    got: Vec<u64>,
    pub(super) aside: Vec<VecDeque<Letter>>,
    /// The message of which not all pieces have come.
    pub(super) partial: Vec<Option<Letter>>,
}

impl Mailbox {
    pub fn new(ranks: usize) -> Self {
        let aside = std::iter::repeat_with(VecDeque::new).take(ranks).collect();
        let partial = std::iter::repeat_with(|| None).take(ranks).collect();
        Self { sent: vec![0; ranks], got: vec![0; ranks], aside, partial }
    }

    /// The first message with a tag that was laid aside.
    pub(super) fn find(&mut self, from: usize, tag: u32) -> Option<Letter> {
        let at = self.aside[from].iter().position(|letter| letter.head.tag == tag)?;
        self.aside[from].remove(at)
    }
}

/// What the line of every piece says of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub tag: u32,
    pub dtype: u8,
    pub bytes: u64,
}

/// A message that came before it was asked for.
#[derive(Debug)]
pub(super) struct Letter {
    pub head: Head,
    pub bytes: Vec<u8>,
}

impl ShmEngine {
    pub(super) fn begin_message(&self, call: &Call<'_>) -> Result<Now, CommError> {
        let signature = Signature { root: call.root, ..call.signature(self.ranks()) };
        let now = Now { doing: Doing::Message(self.calls), signature, digest: 0 };
        self.shared.board.announce(now.doing, sign::encode(&signature));
        match self.shared.verdict(&now) {
            Some(error) => Err(error),
            None => Ok(now),
        }
    }

    pub(super) fn send(&mut self, call: &Call<'_>) -> Result<(), CommError> {
        let now = self.begin_message(call)?;
        let to = call.root as usize;
        let data = call.input.unwrap_or(call.output);
        let head = Head { tag: call.tag, dtype: call.dtype as u8, bytes: data.len() as u64 };
        if to == self.rank() {
            self.mailbox.aside[to].push_back(Letter { head, bytes: data.to_vec() });
            return Ok(());
        }
        let mut rest = data;
        loop {
            let (piece, more) = rest.split_at(rest.len().min(MAIL_BYTES));
            self.send_piece(to, &now, head, piece)?;
            rest = more;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn send_piece(
        &mut self,
        to: usize,
        now: &Now,
        head: Head,
        piece: &[u8],
    ) -> Result<(), CommError> {
        let number = self.mailbox.sent[to] + 1;
        while !self.has_room(to, number) {
            // Others may be sending, too, perhaps in a circle: what they send is taken, or all wait
            // for ever.
            let moves = || self.has_room(to, number) || self.senders().next().is_some();
            self.shared.wait(to, now, moves)?;
            if !self.has_room(to, number) {
                self.senders()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|from| self.lay_aside(from));
            }
        }
        self.put_piece(to, number, head, piece);
        Ok(())
    }

    /// Sends a piece for which there is room.
    pub(super) fn put_piece(&mut self, to: usize, number: u64, head: Head, piece: &[u8]) {
        let (board, rank) = (&self.shared.board, self.rank());
        let line = board.layout.mail(rank, to, number);
        let what = u64::from(head.tag) | u64::from(head.dtype) << 32;
        board.word(line + 8).store(what, Ordering::Relaxed);
        board.word(line + 16).store(head.bytes, Ordering::Relaxed);
        // SAFETY: there is room for it, and nobody reads it before its number is written.
        unsafe {
            let place = self.mail_place(rank, to, number, piece.len());
            std::ptr::copy_nonoverlapping(piece.as_ptr(), place, piece.len());
        }
        board.word(line).store(number, Ordering::Release);
        board.ring();
        self.mailbox.sent[to] = number;
    }

    /// The ranks of whom a piece is there.
    pub(super) fn senders(&self) -> impl Iterator<Item = usize> + '_ {
        self.others().filter(|from| self.has_mail(*from))
    }

    pub(super) fn receive(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let now = self.begin_message(&call)?;
        let from = call.root as usize;
        let wanted =
            Head { tag: call.tag, dtype: call.dtype as u8, bytes: call.output.len() as u64 };
        loop {
            if let Some(letter) = self.mailbox.find(from, wanted.tag) {
                self.fits(from, &now, wanted, letter.head)?;
                call.output.copy_from_slice(&letter.bytes);
                return Ok(());
            }
            if from == self.rank() {
                let what = "this rank has sent itself no such message".to_owned();
                return Err(CommError::Shape { call: call.kind.name(), what });
            }
            self.shared.wait(from, &now, || self.has_mail(from))?;
            let head = self.next_head(from);
            if self.mailbox.partial[from].is_none() && head.tag == wanted.tag {
                self.fits(from, &now, wanted, head)?;
                return self.take_all(from, &now, call.output);
            }
            self.lay_aside(from);
        }
    }

    /// Takes the piece that is there for later.
    pub(super) fn lay_aside(&mut self, from: usize) {
        let begun = self.mailbox.partial[from].take();
        let mut letter =
            begun.unwrap_or_else(|| Letter { head: self.next_head(from), bytes: Vec::new() });
        let done = letter.bytes.len();
        let whole = letter.head.bytes as usize;
        letter.bytes.resize(whole.min(done + MAIL_BYTES), 0);
        self.take_piece(from, &mut letter.bytes[done..]);
        match letter.bytes.len() == whole {
            true => self.mailbox.aside[from].push_back(letter),
            false => self.mailbox.partial[from] = Some(letter),
        }
    }

    /// What the piece that is there belongs to.
    pub(super) fn next_head(&self, from: usize) -> Head {
        let (board, number) = (&self.shared.board, self.mailbox.got[from] + 1);
        let line = board.layout.mail(from, self.rank(), number);
        let what = board.word(line + 8).load(Ordering::Relaxed);
        let bytes = board.word(line + 16).load(Ordering::Relaxed);
        Head { tag: what as u32, dtype: (what >> 32) as u8, bytes }
    }

    /// Takes a whole message.
    fn take_all(&mut self, from: usize, now: &Now, out: &mut [u8]) -> Result<(), CommError> {
        let mut rest = out;
        loop {
            self.shared.wait(from, now, || self.has_mail(from))?;
            let (piece, more) = rest.split_at_mut(rest.len().min(MAIL_BYTES));
            self.take_piece(from, piece);
            rest = more;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Takes the piece that is there.
    pub(super) fn take_piece(&mut self, from: usize, piece: &mut [u8]) {
        let (board, number) = (&self.shared.board, self.mailbox.got[from] + 1);
        // SAFETY: it was sent, and is written again only when it is taken.
        unsafe {
            let place = self.mail_place(from, self.rank(), number, piece.len());
            std::ptr::copy_nonoverlapping(place, piece.as_mut_ptr(), piece.len());
        }
        board.word(board.layout.taken(from, self.rank())).store(number, Ordering::Release);
        board.ring();
        self.mailbox.got[from] = number;
    }

    /// A message of another type or length is one that the ranks do not agree on.
    pub(super) fn fits(
        &self,
        from: usize,
        now: &Now,
        wanted: Head,
        head: Head,
    ) -> Result<(), CommError> {
        if head == wanted {
            return Ok(());
        }
        let dtype = DType::ALL.get(usize::from(head.dtype)).copied().unwrap_or(DType::U8);
        let theirs = Signature {
            kind: Kind::Send,
            dtype,
            root: self.rank() as u32,
            count: head.bytes / dtype.size() as u64,
            ..now.signature
        };
        Err(self.shared.fail(self.shared.disagree(from, now, theirs)))
    }

    /// Whether the piece that comes next is there.
    fn has_mail(&self, from: usize) -> bool {
        let (board, number) = (&self.shared.board, self.mailbox.got[from] + 1);
        board.word(board.layout.mail(from, self.rank(), number)).load(Ordering::Acquire) >= number
    }

    pub(super) fn has_room(&self, to: usize, number: u64) -> bool {
        let board = &self.shared.board;
        board.word(board.layout.taken(self.rank(), to)).load(Ordering::Acquire) + MAIL_SLOTS
            >= number
    }

    /// Where a piece is: in its line, if it fits.
    fn mail_place(&self, from: usize, to: usize, number: u64, bytes: usize) -> *mut u8 {
        let board = &self.shared.board;
        match bytes <= MAIL_INLINE_BYTES {
            true => board.mail(from, to, number).wrapping_add(LINE_BYTES - MAIL_INLINE_BYTES),
            false => board.mail_slot(from, to, number),
        }
    }
}
