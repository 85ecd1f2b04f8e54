//! Rank 0 decides what is wrong, so that all ranks say the same. No I/O; time is an argument.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::control::{Called, Down, Fault, Left, Traffic, Up};

/// How long an answer may take that a thread of its own gives.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// If a rank's connection with another breaks, the other is most likely gone; but it may have ended
/// because of a third, which then is heard of within this time.
const SAW_AFTER: Duration = Duration::from_millis(200);

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
    /// Who ended well, and who is lost.
    ended: HashSet<u32>,
    lost: HashSet<u32>,
    /// Communicators that are over.
    over: HashSet<u64>,
    saws: Vec<(Instant, Saw)>,
    /// Whether who was seen to be gone answers; if so, it is the path that is broken.
    probes: BTreeMap<u64, (Instant, Saw)>,
    inquiries: BTreeMap<u64, Inquiry>,
    next: u64,
    out: Vec<(To, Down)>,
}

/// A rank's connection with another broke.
#[derive(Debug, Clone)]
struct Saw {
    by: u32,
    rank: u32,
    /// Whether the one who saw it was sending.
    sends: bool,
    why: String,
}

/// Where a rank is: how many calls it began, what they were, and its messages in the last.
type Place = (u64, Vec<(u64, Called)>, Traffic);

/// All of a communicator were asked where they are.
#[derive(Debug)]
struct Inquiry {
    /// Who wants to know.
    by: Vec<u32>,
    channel: u64,
    call: u64,
    late_s: u64,
    members: Vec<u32>,
    answers: BTreeMap<u32, Place>,
    until: Instant,
}

impl Judge {
    /// What is to be told now.
    pub fn take(&mut self) -> Vec<(To, Down)> {
        std::mem::take(&mut self.out)
    }

    /// A rank told something.
    pub fn hear(&mut self, from: u32, up: Up, now: Instant) {
        match up {
            Up::Saw { rank, sends, why } => {
                self.saws.push((now + SAW_AFTER, Saw { by: from, rank, sends, why }));
            }
            Up::Ask { channel, call, members, late } => {
                self.ask(from, channel, call, members, late, now);
            }
            Up::Answer { inquiry, calls, called, traffic } => {
                if let Some((_, saw)) = self.probes.remove(&inquiry) {
                    self.broken(saw);
                } else if let Some(open) = self.inquiries.get_mut(&inquiry) {
                    open.answers.insert(from, (calls, called, traffic));
                    if open.answers.len() == open.members.len() {
                        self.conclude(inquiry);
                    }
                }
            }
            Up::Report { channel, fault } => self.rule(channel, fault),
            Up::Left(left) => {
                self.left.entry(left.channel).or_default().insert(from, left);
            }
            Up::Bye => {
                self.ended.insert(from);
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
        if !self.ended.contains(&rank) && self.lost.insert(rank) {
            let fault = Fault::Lost { rank, why: why.to_owned() };
            self.out.push((To::All, Down::Verdict { channel: None, fault }));
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
            self.conclude(id);
        }
    }

    /// A rank with which a connection broke has ended, or is gone, or is there and answers.
    fn look_into(&mut self, saw: Saw, now: Instant) {
        let Saw { by, rank, .. } = saw;
        if self.ended.contains(&rank) {
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
        let Saw { by, rank, sends, why } = saw;
        let (from, to) = if sends { (by, rank) } else { (rank, by) };
        let fault = Fault::Path { from, to, why };
        self.out.push((To::All, Down::Verdict { channel: None, fault }));
    }

    /// A verdict is made once. Who comes later has it already.
    fn rule(&mut self, channel: u64, fault: Fault) {
        if self.over.insert(channel) {
            self.out.push((To::All, Down::Verdict { channel: Some(channel), fault }));
        }
    }

    fn ask(
        &mut self,
        by: u32,
        channel: u64,
        call: Option<u64>,
        members: Vec<u32>,
        late: Option<u64>,
        now: Instant,
    ) {
        // It waits in vain for who has left before, if it waits for that one at all.
        let in_vain = |(rank, left): &(&u32, &Left)| match call {
            Some(call) => left.calls < call,
            None => members.contains(rank),
        };
        let left = self.left.get(&channel).into_iter().flatten().find(in_vain);
        if let Some((rank, left)) = left {
            let down = Down::Left { rank: *rank, left: left.clone() };
            self.out.push((To::Rank(by), down));
            return;
        }
        let Some(late_s) = late else { return };
        let Some(call) = call else {
            self.out.push((To::Rank(by), Down::Clear { channel }));
            return;
        };
        let same = |i: &&mut Inquiry| i.channel == channel && i.call == call;
        if let Some(open) = self.inquiries.values_mut().find(same) {
            open.by.push(by);
            return;
        }
        self.next += 1;
        let inquiry = self.next;
        let ask = |rank: &u32| (To::Rank(*rank), Down::Where { inquiry, channel });
        self.out.extend(members.iter().map(ask));
        let (answers, until) = (BTreeMap::new(), now + ANSWER_WITHIN);
        let open = Inquiry { by: vec![by], channel, call, late_s, members, answers, until };
        self.inquiries.insert(inquiry, open);
    }

    fn conclude(&mut self, id: u64) {
        let Some(inquiry) = self.inquiries.remove(&id) else { return };
        match inquiry.fault() {
            Some(fault) => self.rule(inquiry.channel, fault),
            None => {
                let clear = Down::Clear { channel: inquiry.channel };
                self.out.extend(inquiry.by.iter().map(|by| (To::Rank(*by), clear.clone())));
            }
        }
    }
}

impl Inquiry {
    /// What is wrong, if anything is: ranks that called something else, or else ranks that have not
    /// called at all, or do not answer.
    fn fault(&self) -> Option<Fault> {
        let calls = self.answers.values().flat_map(|place| place.1.iter().map(|(n, _)| *n));
        let calls: BTreeSet<u64> = calls.collect();
        if let Some(disagree) = calls.into_iter().find_map(|call| self.disagree(call)) {
            return Some(disagree);
        }
        let there = |rank: &u32| self.answers.get(rank).is_some_and(|a| a.0 >= self.call);
        let missing: Vec<u32> = self.members.iter().copied().filter(|r| !there(r)).collect();
        let (sequence, seconds) = (self.call, self.late_s);
        match missing.is_empty() {
            true => self.slow_path(),
            false => Some(Fault::Late { sequence, seconds, missing }),
        }
    }

    /// All are there and agree, and it takes too long: a message was sent that did not come. If
    /// there are several, the path on which most are.
    fn slow_path(&self) -> Option<Fault> {
        let of = |counts: &[(u32, u64)], rank: u32| {
            counts.iter().find(|(of, _)| *of == rank).map_or(0, |(_, count)| *count)
        };
        let here = |(_, place): &(&u32, &Place)| place.0 == self.call;
        let mut slow: Vec<(u64, u32, u32)> = Vec::new();
        for (&to, (_, _, traffic)) in self.answers.iter().filter(here) {
            for &from in &traffic.awaited {
                let Some((calls, _, theirs)) = self.answers.get(&from) else { continue };
                let came = of(&traffic.came, from);
                // Who is further has sent all.
                let sent = if *calls > self.call { came + 1 } else { of(&theirs.sent, to) };
                slow.extend(sent.checked_sub(came).filter(|n| *n > 0).map(|n| (n, from, to)));
            }
        }
        let (_, from, to) = slow.into_iter().max_by_key(|(n, from, to)| (*n, !from, !to))?;
        let why = format!("in {} s not even 64 KiB came through", self.late_s);
        Some(Fault::Path { from, to, why })
    }

    /// Whether ranks called different things in a call.
    fn disagree(&self, sequence: u64) -> Option<Fault> {
        let of = |called: &[(u64, Called)]| called.iter().find(|(n, _)| *n == sequence).copied();
        let called = self.answers.iter().filter_map(|(rank, place)| Some((*rank, of(&place.1)?.1)));
        let calls: Vec<(u32, Called)> = called.collect();
        let same = |one: &Called| calls.iter().filter(|(_, c)| c == one).count();
        // Of equally many the lowest rank's counts.
        let most = calls.iter().rev().max_by_key(|(_, c)| same(c)).copied()?;
        let odd = calls.iter().find(|(_, c)| *c != most.1).copied()?;
        Some(Fault::Disagree { sequence, most, odd })
    }
}
