//! Tracks which steps of a program are ready. The program's rounds are one valid order, but a step
//! of a later round may start as soon as its bytes are available: a rank forwards the beginning of
//! a message while it receives the rest. Does no I/O; the caller reports completions.
//!
//! Long steps are cut into segments, identically on both sides. Steps that touch the same bytes run
//! in program order regardless of arrival order, so results are bit-identical.

use std::ops::Range;

use super::block_layout::BlockLayout;
use crate::CallKind;
use crate::schedule::{BlockRange, BufferKind, Program, ProgramStep};

/// Segments of one step in flight at once: one moves, the next ones are ready.
const MAX_SEGMENTS_IN_FLIGHT: usize = 3;

/// How many steps beyond the current round may start early.
const LOOKAHEAD_STEPS: usize = 16;

/// How far before a reduction its feeding copy is searched.
const COPY_WINDOW_STEPS: usize = 8;

/// Bytes of one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ByteRange {
    pub buffer: BufferKind,
    pub bytes: Range<usize>,
}

impl ByteRange {
    fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (&self.bytes, &other.bytes);
        self.buffer == other.buffer && a.start.max(b.start) < a.end.min(b.end)
    }

    fn part(&self, within: &Range<usize>) -> Self {
        let start = self.bytes.start;
        Self { buffer: self.buffer, bytes: start + within.start..start + within.end }
    }
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepKind {
    /// Sends the bytes it reads.
    Send(u32),
    /// Writes the received bytes, reduced with the bytes it reads, if any.
    Receive(u32),
    /// Writes the bytes it reads.
    Copy,
}

/// A step, or a segment of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepOp {
    pub kind: StepKind,
    pub reads: Option<ByteRange>,
    pub writes: Option<ByteRange>,
}

impl StepOp {
    fn length(&self) -> usize {
        self.reads.as_ref().or(self.writes.as_ref()).map_or(0, |range| range.bytes.len())
    }

    fn part(&self, within: &Range<usize>) -> Self {
        let part = |range: &Option<ByteRange>| range.as_ref().map(|range| range.part(within));
        Self { kind: self.kind, reads: part(&self.reads), writes: part(&self.writes) }
    }

    /// Whether this must run after `earlier`.
    fn depends_on(&self, earlier: &Self) -> bool {
        let overlap = |a: &Option<ByteRange>, b: &Option<ByteRange>| {
            a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| a.overlaps(b))
        };
        overlap(&self.reads, &earlier.writes)
            || overlap(&self.writes, &earlier.writes)
            || overlap(&self.writes, &earlier.reads)
    }
}

#[derive(Debug)]
struct StepProgress {
    round: usize,
    op: StepOp,
    segments: usize,
    /// Number of segments started.
    started: usize,
    /// Segments in flight.
    in_flight: Vec<usize>,
}

impl StepProgress {
    fn is_complete(&self) -> bool {
        self.started == self.segments && self.in_flight.is_empty()
    }

    /// The first incomplete segment.
    fn first_incomplete(&self) -> usize {
        self.in_flight.iter().copied().min().unwrap_or(self.started)
    }
}

/// Step index and segment index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentId(usize, usize);

/// The steps of a program and their progress.
#[derive(Debug)]
pub(super) struct DependencyScheduler {
    steps: Vec<StepProgress>,
    /// The first incomplete step.
    first: usize,
    segment: usize,
    /// Whether each round must complete before the next starts: the empty messages of a barrier
    /// have no byte dependencies.
    round_barriers: bool,
}

impl DependencyScheduler {
    /// Fails with the block range that a buffer does not have.
    pub(super) fn new(
        program: &Program,
        layout: &BlockLayout,
        segment: usize,
    ) -> Result<Self, BlockRange> {
        let mut ops: Vec<(usize, StepOp)> = Vec::new();
        for (round, steps) in program.rounds.iter().enumerate() {
            // Receives first, so that early messages already have a destination buffer.
            for turn in 0..3 {
                for step in steps.iter().filter(|step| post_order(step) == turn) {
                    ops.push((round, resolve(step, layout)?));
                }
            }
        }
        elide_copies(&mut ops);
        let progress = |(round, op): (usize, StepOp)| {
            let segments = segments(op.length(), segment);
            StepProgress { round, op, segments, started: 0, in_flight: Vec::new() }
        };
        let steps = ops.into_iter().map(progress).collect();
        Ok(Self { steps, first: 0, segment, round_barriers: layout.kind == CallKind::Barrier })
    }

    pub(super) fn is_complete(&self) -> bool {
        self.first == self.steps.len()
    }

    /// Starts a ready segment, if there is one. Messages go first, because peers wait for them.
    pub(super) fn next_ready(&mut self) -> Option<(SegmentId, StepOp)> {
        let window = self.first..self.window_end();
        let is_copy = |at: &usize| self.steps[*at].op.kind == StepKind::Copy;
        let ready = |at: &usize| self.is_ready(*at);
        let message = window.clone().filter(|at| !is_copy(at)).find(ready);
        let at = message.or_else(|| window.filter(is_copy).find(ready))?;
        let bytes = self.segment_bytes(at, self.steps[at].started);
        let step = &mut self.steps[at];
        let id = SegmentId(at, step.started);
        step.in_flight.push(step.started);
        step.started += 1;
        Some((id, step.op.part(&bytes)))
    }

    pub(super) fn complete(&mut self, SegmentId(at, segment): SegmentId) {
        self.steps[at].in_flight.retain(|other| *other != segment);
        while self.steps.get(self.first).is_some_and(StepProgress::is_complete) {
            self.first += 1;
        }
    }

    /// End of the steps that may start. It covers the whole current round, because ranks could
    /// otherwise deadlock, and a few steps beyond it.
    fn window_end(&self) -> usize {
        let Some(round) = self.steps.get(self.first).map(|step| step.round) else { return 0 };
        let rest = &self.steps[self.first..];
        let end = self.first + rest.partition_point(|step| step.round <= round);
        (end + LOOKAHEAD_STEPS).min(self.steps.len())
    }

    fn segment_bytes(&self, at: usize, segment: usize) -> Range<usize> {
        let StepProgress { op, segments, .. } = &self.steps[at];
        let start = segment * self.segment;
        let end = if segment + 1 == *segments { op.length() } else { start + self.segment };
        start..end
    }

    /// Whether the next segment of a step can start.
    fn is_ready(&self, at: usize) -> bool {
        let step = &self.steps[at];
        let limit = if step.op.kind == StepKind::Copy { 1 } else { MAX_SEGMENTS_IN_FLIGHT };
        if step.started == step.segments || step.in_flight.len() >= limit {
            return false;
        }
        let next = step.op.part(&self.segment_bytes(at, step.started));
        let mut earlier = self.steps[self.first..at].iter().enumerate();
        !earlier.any(|(i, earlier)| {
            if earlier.is_complete() {
                return false;
            }
            // Messages between two ranks keep their order.
            let behind = earlier.started < earlier.segments && earlier.op.kind == next.kind;
            let left = earlier.first_incomplete() * self.segment..earlier.op.length();
            (behind && next.kind != StepKind::Copy)
                || (self.round_barriers && earlier.round < step.round)
                || next.depends_on(&self.steps[self.first + i].op.part(&left))
        })
    }
}

/// Number of segments of a step; identical on both sides.
fn segments(length: usize, segment: usize) -> usize {
    if length < 2 * segment { 1 } else { length.div_ceil(segment) }
}

fn post_order(step: &ProgramStep) -> usize {
    match step {
        ProgramStep::Receive { .. } => 0,
        ProgramStep::Send { .. } => 1,
        ProgramStep::Copy { .. } => 2,
    }
}

/// Resolves a step's blocks to bytes.
fn resolve(step: &ProgramStep, layout: &BlockLayout) -> Result<StepOp, BlockRange> {
    let byte_range = |range: &BlockRange| layout.byte_range(range).ok_or_else(|| range.clone());
    let kind = match step {
        ProgramStep::Send { to, .. } => StepKind::Send(*to),
        ProgramStep::Receive { from, .. } => StepKind::Receive(*from),
        ProgramStep::Copy { .. } => StepKind::Copy,
    };
    let reads = step.reads().map(byte_range).transpose()?;
    let writes = step.writes().map(byte_range).transpose()?;
    if let (Some(from), Some(to), ProgramStep::Copy { to: range, .. }) = (&reads, &writes, step)
        && from.bytes.len() != to.bytes.len()
    {
        return Err(range.clone());
    }
    Ok(StepOp { kind, reads, writes })
}

/// Removes copies of a range to itself, and copies that only prepare the destination of a
/// reduction: the reduction then reads the source of the copy.
fn elide_copies(ops: &mut Vec<(usize, StepOp)>) {
    ops.retain(|(_, op)| op.kind != StepKind::Copy || op.reads != op.writes);
    let mut elided: Vec<usize> = Vec::new();
    for at in 0..ops.len() {
        let op = &ops[at].1;
        if !matches!(op.kind, StepKind::Receive(_)) || op.reads.is_none() {
            continue;
        }
        if let Some((copy, from)) = feeding_copy(ops, at) {
            ops[at].1.reads = Some(from);
            elided.push(copy);
        }
    }
    elided.sort_unstable();
    let mut at = 0..;
    ops.retain(|_| at.next().is_none_or(|at| elided.binary_search(&at).is_err()));
}

/// The copy that fills the destination of a reduction, and its source.
fn feeding_copy(ops: &[(usize, StepOp)], at: usize) -> Option<(usize, ByteRange)> {
    let reduction = &ops[at].1;
    let before = at.saturating_sub(COPY_WINDOW_STEPS)..at;
    let conflicts = |op: &StepOp| op.depends_on(reduction) || reduction.depends_on(op);
    let copy = before.rev().find(|at| conflicts(&ops[*at].1))?;
    let StepOp { kind, reads, writes } = &ops[copy].1;
    if *kind != StepKind::Copy || *writes != reduction.writes {
        return None;
    }
    let from = reads.clone()?;
    let unchanged =
        |(_, op): &(usize, StepOp)| op.writes.as_ref().is_none_or(|writes| !writes.overlaps(&from));
    ops[copy + 1..=at].iter().all(unchanged).then_some((copy, from))
}
