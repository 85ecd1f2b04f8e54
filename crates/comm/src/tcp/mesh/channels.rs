//! The communicators of this process, as their messages and rank 0 know them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::tcp::control::{Called, Traffic};
use crate::tcp::frame::Head;
use crate::transport::Ticket;

/// How many calls back is known what was called.
const HISTORY: usize = 16;

/// What is wrong with a communicator, as its messages show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// A message is of another call than this rank's.
    Mismatch {
        /// In which call.
        call: u64,
    },
    /// A message has another size than the room for it.
    Size {
        /// Who asked for it.
        of: Ticket,
        /// Bytes that came.
        came: u64,
        /// Bytes that fit.
        room: u64,
    },
}

/// One communicator of this process.
#[derive(Default)]
pub struct Channel {
    /// How many calls were begun.
    pub calls: u64,
    /// The number of what is called now.
    pub what: u32,
    history: VecDeque<(u64, Called)>,
    pub done: Vec<Ticket>,
    /// Bytes that came or went, ever.
    pub moved: u64,
    pub trouble: Option<Trouble>,
    /// The messages of the call that goes on.
    pub traffic: Traffic,
    /// Whom this rank waits for, if it is longer than a moment, and since when.
    pub waits: Option<(Instant, Vec<u32>)>,
}

impl Channel {
    /// A call begins.
    pub fn begin(&mut self, called: Called) {
        self.calls += 1;
        self.traffic.sent.clear();
        self.traffic.came.clear();
        self.traffic.awaited.clear();
        self.what = called.number();
        self.history.push_back((self.calls, called));
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    /// What was called.
    pub fn called(&self, call: u64) -> Option<Called> {
        self.history.iter().find(|(number, _)| *number == call).map(|(_, called)| *called)
    }

    /// What was called of late.
    pub fn recent(&self) -> Vec<(u64, Called)> {
        self.history.iter().copied().collect()
    }
}

/// The communicators of this process.
#[derive(Default)]
pub struct Channels {
    pub(super) open: HashMap<u64, Channel>,
    pub(super) closed: HashSet<u64>,
    /// Whether something was done that another thread may wait for.
    pub(super) news: bool,
}

impl Channels {
    pub fn get(&mut self, channel: u64) -> &mut Channel {
        self.open.entry(channel).or_default()
    }

    pub fn peek(&self, channel: u64) -> Option<&Channel> {
        self.open.get(&channel)
    }

    /// Whom this rank waits for in all of them, and how long already.
    pub fn waits(&self, now: Instant) -> impl Iterator<Item = (u32, Duration)> + '_ {
        let waits = self.open.values().filter_map(|channel| channel.waits.as_ref());
        waits.flat_map(move |(since, ranks)| {
            let waited = now.saturating_duration_since(*since);
            ranks.iter().map(move |rank| (*rank, waited))
        })
    }

    pub fn done(&mut self, channel: u64, ticket: Ticket) {
        self.news = true;
        self.get(channel).done.push(ticket);
    }

    pub fn moved(&mut self, channel: u64, bytes: usize) {
        if let Some(channel) = self.open.get_mut(&channel) {
            channel.moved += bytes as u64;
        }
    }

    pub(super) fn trouble(&mut self, channel: u64, trouble: Trouble) {
        self.news = true;
        self.get(channel).trouble.get_or_insert(trouble);
    }

    /// Whether a message that nobody has asked for may still be asked for. One of a call that this
    /// rank is through with, or does differently, is trouble.
    pub fn may_be_early(&mut self, head: &Head) -> bool {
        let key = head.key;
        if self.closed.contains(&key.channel) {
            return false;
        }
        let Some(channel) = self.open.get_mut(&key.channel) else { return true };
        let other = key.number == channel.calls && head.what != channel.what;
        if !key.tagged && (key.number < channel.calls || other) {
            self.trouble(key.channel, Trouble::Mismatch { call: key.number });
            return false;
        }
        true
    }
}
