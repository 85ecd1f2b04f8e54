//! Messages between two ranks: pieces through a ring of slots for each pair and direction, in the
//! order in which they were sent. One with another tag than is asked for is laid aside.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::ShmEngine;
use super::board::Doing;
use super::layout::{LINE_BYTES, MAIL_BYTES, MAIL_INLINE_BYTES, RING};
use super::sign;
use super::wait::Now;
use crate::{Call, CommError, DType, Kind, Signature};

/// Where this rank is with every other.
#[derive(Debug)]
pub struct Mailbox {
    sent: Vec<u64>,
    got: Vec<u64>,
    aside: Vec<VecDeque<Letter>>,
}

impl Mailbox {
    pub fn new(ranks: usize) -> Self {
        let aside = std::iter::repeat_with(VecDeque::new).take(ranks).collect();
        Self { sent: vec![0; ranks], got: vec![0; ranks], aside }
    }
}

/// What the line of every piece says of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    tag: u32,
    dtype: u8,
    bytes: u64,
}

/// A message that came before it was asked for.
#[derive(Debug)]
struct Letter {
    head: Head,
    bytes: Vec<u8>,
}

impl ShmEngine {
    fn begin_message(&self, call: &Call<'_>) -> Result<Now, CommError> {
        let signature = Signature {
            root: call.root,
            count: call.counts.of(self.rank()) as u64,
            ..call.signature(1)
        };
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
            // The other may be sending, too: what it sends is taken, or both wait for ever.
            self.shared.wait(to, now, || self.has_room(to, number) || self.has_mail(to))?;
            if !self.has_room(to, number) {
                let letter = self.take_letter(to, now)?;
                self.mailbox.aside[to].push_back(letter);
            }
        }
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
        Ok(())
    }

    pub(super) fn receive(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let now = self.begin_message(&call)?;
        let from = call.root as usize;
        let wanted =
            Head { tag: call.tag, dtype: call.dtype as u8, bytes: call.output.len() as u64 };
        let aside = &mut self.mailbox.aside[from];
        if let Some(at) = aside.iter().position(|letter| letter.head.tag == wanted.tag)
            && let Some(letter) = aside.remove(at)
        {
            self.fits(from, &now, wanted, letter.head)?;
            call.output.copy_from_slice(&letter.bytes);
            return Ok(());
        }
        if from == self.rank() {
            let what = "this rank has sent itself no such message".to_owned();
            return Err(CommError::Shape { call: call.kind.name(), what });
        }
        loop {
            let head = self.next_head(from, &now)?;
            if head.tag == wanted.tag {
                self.fits(from, &now, wanted, head)?;
                return self.take_pieces(from, &now, call.output);
            }
            let letter = self.take_letter(from, &now)?;
            self.mailbox.aside[from].push_back(letter);
        }
    }

    fn take_letter(&mut self, from: usize, now: &Now) -> Result<Letter, CommError> {
        let head = self.next_head(from, now)?;
        let mut bytes = vec![0; head.bytes as usize];
        self.take_pieces(from, now, &mut bytes)?;
        Ok(Letter { head, bytes })
    }

    /// The message that comes next.
    fn next_head(&self, from: usize, now: &Now) -> Result<Head, CommError> {
        self.shared.wait(from, now, || self.has_mail(from))?;
        let (board, number) = (&self.shared.board, self.mailbox.got[from] + 1);
        let line = board.layout.mail(from, self.rank(), number);
        let what = board.word(line + 8).load(Ordering::Relaxed);
        let bytes = board.word(line + 16).load(Ordering::Relaxed);
        Ok(Head { tag: what as u32, dtype: (what >> 32) as u8, bytes })
    }

    /// Takes a whole message.
    fn take_pieces(&mut self, from: usize, now: &Now, out: &mut [u8]) -> Result<(), CommError> {
        let mut rest = out;
        loop {
            let number = self.mailbox.got[from] + 1;
            self.shared.wait(from, now, || self.has_mail(from))?;
            let (piece, more) = rest.split_at_mut(rest.len().min(MAIL_BYTES));
            // SAFETY: it was sent, and is written again only when it is taken.
            unsafe {
                let place = self.mail_place(from, self.rank(), number, piece.len());
                std::ptr::copy_nonoverlapping(place, piece.as_mut_ptr(), piece.len());
            }
            let board = &self.shared.board;
            board.word(board.layout.taken(from, self.rank())).store(number, Ordering::Release);
            board.ring();
            self.mailbox.got[from] = number;
            rest = more;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// A message of another type or length is one that the ranks do not agree on.
    fn fits(&self, from: usize, now: &Now, wanted: Head, head: Head) -> Result<(), CommError> {
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

    fn has_room(&self, to: usize, number: u64) -> bool {
        let board = &self.shared.board;
        board.word(board.layout.taken(self.rank(), to)).load(Ordering::Acquire) + RING >= number
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
