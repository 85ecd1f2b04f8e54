//! What of a program can be done now. Its rounds are an order that is always right; but a step of a
//! later round may begin as soon as the bytes that it needs are there, so that a rank passes on the
//! beginning of a message while it receives the rest. No I/O: it is told what is done.
//!
//! Long steps are cut into segments, the same on both sides. Steps that touch the same bytes are
//! done in the order of the program, whatever arrives first, so results are always the same bits.

use std::ops::Range;

use super::cut::Cut;
use crate::Kind;
use crate::schedule::{Piece, Place, Program, Step};

/// How many segments of a step are under way at once: one moves, the next is ready.
const AT_ONCE: usize = 3;

/// How many steps after the round that goes on may begin early.
const AHEAD: usize = 16;

/// A copy is found that is so many steps before the reduction which it prepares.
const BEFORE: usize = 8;

/// Some bytes of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub place: Place,
    pub bytes: Range<usize>,
}

impl Span {
    fn meets(&self, other: &Self) -> bool {
        let (a, b) = (&self.bytes, &other.bytes);
        self.place == other.place && a.start.max(b.start) < a.end.min(b.end)
    }

    fn part(&self, within: &Range<usize>) -> Self {
        let start = self.bytes.start;
        Self { place: self.place, bytes: start + within.start..start + within.end }
    }
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Sends what it reads.
    Send(u32),
    /// Writes what comes, reduced with what it reads, if it does.
    Receive(u32),
    /// Writes what it reads.
    Copy,
}

/// A step, or a segment of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Work {
    pub act: Act,
    pub reads: Option<Span>,
    pub writes: Option<Span>,
}

impl Work {
    fn length(&self) -> usize {
        self.reads.as_ref().or(self.writes.as_ref()).map_or(0, |span| span.bytes.len())
    }

    fn part(&self, within: &Range<usize>) -> Self {
        let part = |span: &Option<Span>| span.as_ref().map(|span| span.part(within));
        Self { act: self.act, reads: part(&self.reads), writes: part(&self.writes) }
    }

    /// Whether it must not be done before an earlier one is.
    fn after(&self, earlier: &Self) -> bool {
        let meet = |a: &Option<Span>, b: &Option<Span>| {
            a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| a.meets(b))
        };
        meet(&self.reads, &earlier.writes)
            || meet(&self.writes, &earlier.writes)
            || meet(&self.writes, &earlier.reads)
    }
}

/// A step that is being done.
#[derive(Debug)]
struct Doing {
    round: usize,
    work: Work,
    segments: usize,
    /// So many segments have begun.
    begun: usize,
    /// Those that are not over.
    open: Vec<usize>,
}

impl Doing {
    fn is_over(&self) -> bool {
        self.begun == self.segments && self.open.is_empty()
    }

    /// The first segment that is not over.
    fn done(&self) -> usize {
        self.open.iter().copied().min().unwrap_or(self.begun)
    }
}

/// Which segment of which step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(usize, usize);

/// A program that is being done.
#[derive(Debug)]
pub(super) struct Flow {
    steps: Vec<Doing>,
    /// The first that is not over.
    first: usize,
    segment: usize,
    /// Rounds have to be over: their messages say something without a byte.
    by_rounds: bool,
}

impl Flow {
    /// Begins. A piece that a buffer has not got is given back.
    pub(super) fn new(program: &Program, cut: &Cut<'_>, segment: usize) -> Result<Self, Piece> {
        let mut works: Vec<(usize, Work)> = Vec::new();
        for (round, steps) in program.rounds.iter().enumerate() {
            // Receives first: what comes early then has a place already.
            for turn in 0..3 {
                for step in steps.iter().filter(|step| turn_of(step) == turn) {
                    works.push((round, resolve(step, cut)?));
                }
            }
        }
        without_copies(&mut works);
        let doing = |(round, work): (usize, Work)| {
            let segments = segments(work.length(), segment);
            Doing { round, work, segments, begun: 0, open: Vec::new() }
        };
        let steps = works.into_iter().map(doing).collect();
        Ok(Self { steps, first: 0, segment, by_rounds: cut.kind == Kind::Barrier })
    }

    pub(super) fn is_over(&self) -> bool {
        self.first == self.steps.len()
    }

    /// Something that can be done now, if there is: messages first, for others wait for them.
    pub(super) fn take(&mut self) -> Option<(Id, Work)> {
        let all = self.first..self.end();
        let is_copy = |at: &usize| self.steps[*at].work.act == Act::Copy;
        let can = |at: &usize| self.can_begin(*at);
        let messages = all.clone().filter(|at| !is_copy(at)).find(can);
        let at = messages.or_else(|| all.filter(is_copy).find(can))?;
        let bytes = self.bytes(at, self.steps[at].begun);
        let step = &mut self.steps[at];
        let id = Id(at, step.begun);
        step.open.push(step.begun);
        step.begun += 1;
        Some((id, step.work.part(&bytes)))
    }

    /// That is done.
    pub(super) fn done(&mut self, Id(at, segment): Id) {
        self.steps[at].open.retain(|open| *open != segment);
        while self.steps.get(self.first).is_some_and(Doing::is_over) {
            self.first += 1;
        }
    }

    /// All steps of the round that goes on can begin, or ranks would wait for each other in a
    /// circle; of later ones, some.
    fn end(&self) -> usize {
        let Some(round) = self.steps.get(self.first).map(|step| step.round) else { return 0 };
        let rest = &self.steps[self.first..];
        let end = self.first + rest.partition_point(|step| step.round <= round);
        (end + AHEAD).min(self.steps.len())
    }

    fn bytes(&self, at: usize, segment: usize) -> Range<usize> {
        let Doing { work, segments, .. } = &self.steps[at];
        let start = segment * self.segment;
        let end = if segment + 1 == *segments { work.length() } else { start + self.segment };
        start..end
    }

    /// Whether the next segment of a step can begin.
    fn can_begin(&self, at: usize) -> bool {
        let step = &self.steps[at];
        let at_once = if step.work.act == Act::Copy { 1 } else { AT_ONCE };
        if step.begun == step.segments || step.open.len() >= at_once {
            return false;
        }
        let next = step.work.part(&self.bytes(at, step.begun));
        let mut earlier = self.steps[self.first..at].iter().enumerate();
        !earlier.any(|(i, earlier)| {
            if earlier.is_over() {
                return false;
            }
            // Messages between two ranks keep their order.
            let behind = earlier.begun < earlier.segments && earlier.work.act == next.act;
            let left = earlier.done() * self.segment..earlier.work.length();
            (behind && next.act != Act::Copy)
                || (self.by_rounds && earlier.round < step.round)
                || next.after(&self.steps[self.first + i].work.part(&left))
        })
    }
}

/// So many segments has a step of this length. Both sides come to the same.
fn segments(length: usize, segment: usize) -> usize {
    if length < 2 * segment { 1 } else { length.div_ceil(segment) }
}

fn turn_of(step: &Step) -> usize {
    match step {
        Step::Receive { .. } => 0,
        Step::Send { .. } => 1,
        Step::Copy { .. } => 2,
    }
}

/// A step in bytes.
fn resolve(step: &Step, cut: &Cut<'_>) -> Result<Work, Piece> {
    let span = |piece: &Piece| cut.span(piece).ok_or_else(|| piece.clone());
    let (act, reads, writes) = match step {
        Step::Send { to, what } => (Act::Send(*to), Some(span(what)?), None),
        Step::Receive { from, into, reduce } => {
            let into = span(into)?;
            (Act::Receive(*from), reduce.then(|| into.clone()), Some(into))
        }
        Step::Copy { from, to } => (Act::Copy, Some(span(from)?), Some(span(to)?)),
    };
    if let (Some(from), Some(to), Step::Copy { to: piece, .. }) = (&reads, &writes, step)
        && from.bytes.len() != to.bytes.len()
    {
        return Err(piece.clone());
    }
    Ok(Work { act, reads, writes })
}

/// Leaves out copies from a place to itself, and those whose only use is that something is then
/// reduced with them: it can be reduced with what would have been copied.
fn without_copies(works: &mut Vec<(usize, Work)>) {
    works.retain(|(_, work)| work.act != Act::Copy || work.reads != work.writes);
    let mut needless: Vec<usize> = Vec::new();
    for at in 0..works.len() {
        let work = &works[at].1;
        if !matches!(work.act, Act::Receive(_)) || work.reads.is_none() {
            continue;
        }
        if let Some((copy, from)) = prepared(works, at) {
            works[at].1.reads = Some(from);
            needless.push(copy);
        }
    }
    needless.sort_unstable();
    let mut at = 0..;
    works.retain(|_| at.next().is_none_or(|at| needless.binary_search(&at).is_err()));
}

/// The copy that makes what a reduction begins with, and from where it copies.
fn prepared(works: &[(usize, Work)], at: usize) -> Option<(usize, Span)> {
    let reduction = &works[at].1;
    let before = at.saturating_sub(BEFORE)..at;
    let found =
        before.rev().find(|i| works[*i].1.after(reduction) || reduction.after(&works[*i].1));
    let copy =
        found.filter(|i| works[*i].1.act == Act::Copy && works[*i].1.writes == reduction.writes)?;
    let from = works[copy].1.reads.clone()?;
    let unchanged =
        |(_, work): &(usize, Work)| work.writes.as_ref().is_none_or(|writes| !writes.meets(&from));
    works[copy + 1..=at].iter().all(unchanged).then_some((copy, from))
}
