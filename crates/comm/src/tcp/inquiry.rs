//! What follows from where ranks are that were asked. No I/O, and no time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::control::{Called, Fault, Traffic};
use crate::blame;

/// What is late.
#[derive(Debug, Clone)]
pub struct Question {
    /// In which communicator.
    pub channel: u64,
    /// In which of its collectives; `None`: a message.
    pub call: Option<u64>,
    /// Whom the one who asks waits for.
    pub awaited: Vec<u32>,
    /// All who take part in the collective.
    pub members: Vec<u32>,
}

impl Question {
    /// Whether all that is asked is asked already. Messages are each rank's own.
    pub fn is_same(&self, other: &Self) -> bool {
        self.channel == other.channel && self.call == other.call && self.call.is_some()
    }
}

/// Where a rank is.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// How many calls it began.
    pub calls: u64,
    /// What they were, of late.
    pub called: Vec<(u64, Called)>,
    /// Its messages in the last.
    pub traffic: Traffic,
    /// Whom it waits for, whatever for, and how many milliseconds already.
    pub waits: Vec<(u32, u64)>,
}

/// Ranks were asked where they are.
#[derive(Debug, Clone)]
pub struct Inquiry {
    /// Who wants to know.
    pub by: Vec<u32>,
    /// What.
    pub question: Question,
    /// Who was asked.
    pub asked: BTreeSet<u32>,
    /// Who answered.
    pub answers: BTreeMap<u32, Place>,
    /// How long answers may take.
    pub until: Instant,
    late_s: u64,
    /// What was under way the last time.
    before: Option<Stuck>,
}

/// From whom, to whom, and how many messages had come on that path.
type Stuck = (u32, u32, u64);

/// What follows from the answers.
pub enum Finding {
    /// This is wrong.
    Fault(Fault),
    /// It may be that a message was just on its way: all are to be asked again.
    Look(Inquiry),
    /// All are there and agree.
    Nothing,
}

impl Inquiry {
    /// Asks all who take part, or of a message, those on whom it depends.
    pub fn new(by: u32, question: Question, late_s: u64, now: Instant) -> Self {
        let mut asked: BTreeSet<u32> = question.members.iter().copied().collect();
        asked.extend(&question.awaited);
        asked.insert(by);
        let answers = BTreeMap::new();
        Self { by: vec![by], question, asked, answers, until: now, late_s, before: None }
    }

    /// Whom those wait for who do not come, if they were not asked.
    pub fn further(&self) -> Vec<u32> {
        let known = |rank: &u32| self.asked.contains(rank);
        let suspects = self.missing().into_iter().chain(self.question.awaited.iter().copied());
        let mut seen = BTreeSet::new();
        let mut open: Vec<u32> = suspects.collect();
        while let Some(rank) = open.pop() {
            if seen.insert(rank) {
                open.extend(self.waits(rank));
            }
        }
        seen.into_iter().filter(|rank| !known(rank)).collect()
    }

    /// What is wrong: ranks that called something else, or else ranks that have not called at all, or
    /// do not answer, or a message that does not come through, or whoever is waited for.
    pub fn finding(&self) -> Finding {
        let calls = self.answers.values().flat_map(|place| place.called.iter().map(|(n, _)| *n));
        let calls: BTreeSet<u64> = calls.collect();
        if let Some(disagree) = calls.into_iter().find_map(|call| self.disagree(call)) {
            return Finding::Fault(disagree);
        }
        if let Some(late) = self.late(&self.missing()) {
            return Finding::Fault(late);
        }
        match (self.under_way(), self.before) {
            (Some((from, to, came)), Some(before)) if (from, to, came) == before => {
                let why = format!("in {} s not even 64 KiB came through", self.late_s);
                return Finding::Fault(Fault::Path { from, to, why });
            }
            (before @ Some(_), None) => {
                return Finding::Look(Self { before, answers: BTreeMap::new(), ..self.clone() });
            }
            _ => {}
        }
        self.late(&self.question.awaited).map_or(Finding::Nothing, Finding::Fault)
    }

    /// Who takes part, and has not come or does not answer.
    fn missing(&self) -> Vec<u32> {
        let Question { call: Some(call), members, .. } = &self.question else { return Vec::new() };
        let there = |rank: &u32| self.answers.get(rank).is_some_and(|a| a.calls >= *call);
        members.iter().copied().filter(|rank| !there(rank)).collect()
    }

    /// Those are late for whom the missing wait in the end.
    fn late(&self, missing: &[u32]) -> Option<Fault> {
        let missing = blame::blamed(missing, |rank| self.waits(rank));
        let (sequence, seconds) = (self.question.call.unwrap_or_default(), self.late_s);
        (!missing.is_empty()).then_some(Fault::Late { sequence, seconds, missing })
    }

    /// Whom a rank waits for, and has for long.
    fn waits(&self, rank: u32) -> Vec<u32> {
        let late = Duration::from_secs(self.late_s);
        let long = |(_, ms): &&(u32, u64)| blame::explains(Duration::from_millis(*ms), late);
        let waits = self.answers.get(&rank).into_iter().flat_map(|place| &place.waits);
        waits.filter(long).map(|(rank, _)| *rank).collect()
    }

    /// All are there and agree, and it takes too long: a message was sent that did not come. If
    /// there are several, the path on which most are.
    fn under_way(&self) -> Option<Stuck> {
        let call = self.question.call?;
        let of = |counts: &[(u32, u64)], rank: u32| {
            counts.iter().find(|(of, _)| *of == rank).map_or(0, |(_, count)| *count)
        };
        let mut slow: Vec<(u64, u32, u32)> = Vec::new();
        for (&to, place) in self.answers.iter().filter(|(_, place)| place.calls == call) {
            for &from in &place.traffic.awaited {
                let Some(theirs) = self.answers.get(&from) else { continue };
                let came = of(&place.traffic.came, from);
                // Who is further has sent all.
                let sent =
                    if theirs.calls > call { came + 1 } else { of(&theirs.traffic.sent, to) };
                slow.extend(sent.checked_sub(came).filter(|n| *n > 0).map(|n| (n, from, to)));
            }
        }
        let (_, from, to) = slow.into_iter().max_by_key(|(n, from, to)| (*n, !from, !to))?;
        let came = self.answers.get(&to).map_or(0, |place| of(&place.traffic.came, from));
        Some((from, to, came))
    }

    /// Whether ranks called different things in a call.
    fn disagree(&self, sequence: u64) -> Option<Fault> {
        let of = |called: &[(u64, Called)]| called.iter().find(|(n, _)| *n == sequence).copied();
        let called =
            self.answers.iter().filter_map(|(rank, place)| Some((*rank, of(&place.called)?.1)));
        let calls: Vec<(u32, Called)> = called.collect();
        let same = |one: &Called| calls.iter().filter(|(_, c)| c == one).count();
        // Of equally many the lowest rank's counts.
        let most = calls.iter().rev().max_by_key(|(_, c)| same(c)).copied()?;
        let odd = calls.iter().find(|(_, c)| *c != most.1).copied()?;
        Some(Fault::Disagree { sequence, most, odd })
    }
}
