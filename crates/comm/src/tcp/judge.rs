//! Rank 0 decides what is wrong, so that all ranks say the same. No I/O; time is an argument.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::control::{Down, Fault, Left, Up};
use super::inquiry::{Finding, Inquiry, Place, Question};

/// How long an answer may take that a thread of its own gives.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// If a rank's connection with another breaks, the other is most likely gone; but it may have ended
/// because of a third, which then is heard of within this time.
const SAW_AFTER: Duration = Duration::from_millis(200);

/// What was under way when all were asked is stuck if it still is after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whom something is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// One rank.
    Rank(u32),
    /// All of them, rank 0 too.
    All,
}

/// What rank 0 knows of all.
#[derive(Debug, Default)]
pub struct Judge {
    /// Who has left which communicator.
    left: HashMap<u64, BTreeMap<u32, Left>>,
    /// Who ended well, and what had been told last before that.
    ended: HashMap<u32, Option<Fault>>,
    lost: HashSet<u32>,
    told: Option<Fault>,
    /// Communicators that are over.
    over: HashSet<u64>,
    saws: Vec<(Instant, Saw)>,
    /// Whether who was seen to be gone answers; if so, it is the path that is broken.
    probes: BTreeMap<u64, (Instant, Saw)>,
    inquiries: BTreeMap<u64, Inquiry>,
    /// Those that are to be made once more.
    again: Vec<(Instant, Inquiry)>,
    next: u64,
    out: Vec<(To, Down)>,
}

/// A rank's connection with another broke.
#[derive(Debug, Clone)]
struct Saw {
    by: u32,
    channel: u64,
    rank: u32,
    /// Whether the one who saw it was sending.
    sends: bool,
    why: String,
}

impl Judge {
    /// What is to be told now.
    pub fn take(&mut self) -> Vec<(To, Down)> {
        std::mem::take(&mut self.out)
    }

    /// A rank told something.
    pub fn hear(&mut self, from: u32, up: Up, now: Instant) {
        match up {
            Up::Saw { channel, rank, sends, why } => {
                self.saws.push((now + SAW_AFTER, Saw { by: from, channel, rank, sends, why }));
            }
            Up::Ask { channel, call, awaited, members, late } => {
                self.ask(from, Question { channel, call, awaited, members }, late, now);
            }
            Up::Answer { inquiry, calls, called, traffic, waits } => {
                let place = Place { calls, called, traffic, waits };
                if let Some((_, saw)) = self.probes.remove(&inquiry) {
                    self.broken(saw);
                } else if let Some(open) = self.inquiries.get_mut(&inquiry) {
                    open.answers.insert(from, place);
                    self.go_on(inquiry, now);
                }
            }
            Up::Report { channel, fault } => self.rule(channel, fault),
            Up::Left(left) => {
                self.left.entry(left.channel).or_default().insert(from, left);
            }
            Up::Bye => {
                self.ended.insert(from, self.told.clone());
                // Nobody can ask any more once rank 0 is gone.
                if from == 0 {
                    let own = self.left.values().filter_map(|left| left.get(&0));
                    let tell = |left: &Left| Down::Left { rank: 0, left: left.clone() };
                    self.out.extend(own.map(|left| (To::All, tell(left))));
                    self.out.push((To::All, Down::Bye));
                }
            }
        }
    }

    /// A rank's connection is over.
    pub fn closed(&mut self, rank: u32, why: &str) {
        if !self.ended.contains_key(&rank) && self.lost.insert(rank) {
            self.tell(None, Fault::Lost { rank, why: why.to_owned() });
            self.saws.clear();
            self.probes.clear();
        }
    }

    /// Time passed.
    pub fn tick(&mut self, now: Instant) {
        let (due, rest) = std::mem::take(&mut self.saws).into_iter().partition(|s| s.0 <= now);
        self.saws = rest;
        let due: Vec<(Instant, Saw)> = due;
        due.into_iter().for_each(|(_, saw)| self.look_into(saw, now));
        let silent = self.probes.iter().filter(|(_, (until, _))| *until <= now).map(|(id, _)| *id);
        for id in silent.collect::<Vec<_>>() {
            if let Some((_, saw)) = self.probes.remove(&id) {
                self.closed(saw.rank, &saw.why);
            }
        }
        let over = self.inquiries.iter().filter(|(_, i)| i.until <= now).map(|(id, _)| *id);
        for id in over.collect::<Vec<_>>() {
            self.conclude(id, now);
        }
        let (due, rest) = std::mem::take(&mut self.again).into_iter().partition(|a| a.0 <= now);
        self.again = rest;
        let due: Vec<(Instant, Inquiry)> = due;
        due.into_iter().for_each(|(_, inquiry)| self.inquire(inquiry, now));
    }

    /// A rank with which a connection broke has ended, or is gone, or is there and answers.
    fn look_into(&mut self, saw: Saw, now: Instant) {
        let Saw { by, channel, rank, .. } = saw;
        if let Some(fault) = self.never_came(channel, rank) {
            return self.rule(channel, fault);
        }
        if self.ended.contains_key(&rank) {
            let left = self.left.values().filter_map(|left| left.get(&rank)).cloned();
            let down = left.map(|left| (To::Rank(by), Down::Left { rank, left }));
            self.out.extend(down);
            return;
        }
        self.next += 1;
        let (inquiry, channel) = (self.next, 0);
        self.out.push((To::Rank(rank), Down::Where { inquiry, channel }));
        self.probes.insert(inquiry, (now + ANSWER_WITHIN, saw));
    }

    /// Both ranks are there, and the path between them is not.
    fn broken(&mut self, saw: Saw) {
        let Saw { by, rank, sends, why, .. } = saw;
        let (from, to) = if sends { (by, rank) } else { (rank, by) };
        self.tell(None, Fault::Path { from, to, why });
    }

    /// Why a rank ended that never was in a communicator, if it is one: something befell it before.
    fn never_came(&self, channel: u64, rank: u32) -> Option<Fault> {
        let before = self.ended.get(&rank)?;
        if self.left.get(&channel).is_some_and(|left| left.contains_key(&rank)) {
            return None;
        }
        let ended = |why: &str| Fault::Aborted { rank, why: why.to_owned() };
        Some(match before {
            None => ended("it ended"),
            // In a call of another communicator.
            Some(fault @ Fault::Disagree { .. }) => ended(&fault.to_string()),
            Some(fault) => fault.clone(),
        })
    }

    fn tell(&mut self, channel: Option<u64>, fault: Fault) {
        self.told = Some(fault.clone());
        self.out.push((To::All, Down::Verdict { channel, fault }));
    }

    /// A verdict is made once. Who comes later has it already.
    fn rule(&mut self, channel: u64, fault: Fault) {
        if self.over.insert(channel) {
            self.tell(Some(channel), fault);
        }
    }

    fn ask(&mut self, by: u32, question: Question, late: Option<u64>, now: Instant) {
        // It waits in vain for who has left before, if it waits for that one at all.
        let in_vain = |(rank, left): &(&u32, &Left)| match question.call {
            Some(call) => left.calls < call,
            None => question.awaited.contains(rank),
        };
        let left = self.left.get(&question.channel).into_iter().flatten().find(in_vain);
        if let Some((rank, left)) = left {
            let down = Down::Left { rank: *rank, left: left.clone() };
            self.out.push((To::Rank(by), down));
            return;
        }
        let channel = question.channel;
        let never = |rank: &u32| self.never_came(channel, *rank);
        if let Some(fault) = question.awaited.iter().find_map(never) {
            return self.rule(channel, fault);
        }
        let Some(late_s) = late else { return };
        let again = self.again.iter_mut().map(|(_, inquiry)| inquiry);
        let mut open = self.inquiries.values_mut().chain(again);
        match open.find(|open| open.question.is_same(&question)) {
            Some(open) => {
                open.by.push(by);
                open.question.awaited.extend(&question.awaited);
            }
            None => self.inquire(Inquiry::new(by, question, late_s, now), now),
        }
    }

    fn inquire(&mut self, mut open: Inquiry, now: Instant) {
        self.next += 1;
        let (inquiry, channel) = (self.next, open.question.channel);
        let ask = |rank: &u32| (To::Rank(*rank), Down::Where { inquiry, channel });
        self.out.extend(open.asked.iter().map(ask));
        open.until = now + ANSWER_WITHIN;
        self.inquiries.insert(inquiry, open);
    }

    /// When all have answered, those are asked whom they wait for, if they have not been.
    fn go_on(&mut self, id: u64, now: Instant) {
        let Some(open) = self.inquiries.get_mut(&id) else { return };
        if open.answers.len() < open.asked.len() {
            return;
        }
        let more = open.further();
        if more.is_empty() {
            return self.conclude(id, now);
        }
        let channel = open.question.channel;
        open.asked.extend(&more);
        let ask = |rank: u32| (To::Rank(rank), Down::Where { inquiry: id, channel });
        self.out.extend(more.into_iter().map(ask));
    }

    fn conclude(&mut self, id: u64, now: Instant) {
        let Some(inquiry) = self.inquiries.remove(&id) else { return };
        let channel = inquiry.question.channel;
        match inquiry.finding() {
            Finding::Fault(fault) => self.rule(channel, fault),
            Finding::Look(again) => self.again.push((now + LOOK_AGAIN, again)),
            Finding::Nothing => {
                let clear = Down::Clear { channel };
                self.out.extend(inquiry.by.iter().map(|by| (To::Rank(*by), clear.clone())));
            }
        }
    }
}
