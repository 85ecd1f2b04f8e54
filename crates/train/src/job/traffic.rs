//! What is sent, read and written in steps, expected and counted. Validations and checkpoints do that,
//! too, and are not part of it.

use crate::state::Bytes;
use crate::step::Engine;
use regatta_predict::axis::Axis;
use regatta_predict::bytes::{HeldBytes, MovedBytes, SentBytes};
use regatta_predict::cost::{Cost, Holds, Sends};
use regatta_predict::moved::Moved;

/// What a rank holds, sends on each axis, and has on disk.
#[derive(Debug)]
pub struct Traffic {
    /// What it was expected to hold.
    holds: Holds,
    /// To send in a step.
    sends: Sends,
    /// And to read and write in a step.
    moves: Moved,
    /// In all steps so far.
    counted: Counted,
    steps: u64,
}

/// What was counted until now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    sent: [u64; Axis::ALL.len()],
    moved: Moved,
}

impl Counted {
    /// Since it began.
    pub fn by(engine: &Engine) -> Self {
        let sent = Axis::ALL.map(|axis| engine.groups.sent(axis).all_bytes());
        Self { sent, moved: engine.state.moved() }
    }
}

impl Traffic {
    /// Nothing yet.
    pub fn new(Cost { holds, sends, moves, .. }: Cost) -> Self {
        Self { holds, sends, moves, counted: Counted::default(), steps: 0 }
    }

    /// What the rank has held at most so far.
    pub fn held(&self, engine: &Engine) -> Vec<HeldBytes> {
        let Bytes { parameters, gradients, moments } = engine.state.bytes();
        let expected = &self.holds;
        let passes = expected.activations + expected.working;
        let all = [
            ("parameters", expected.parameters.most(), parameters.most()),
            ("gradients", expected.gradients.most(), gradients.most()),
            ("optimizer", expected.moments.most(), moments.most()),
            // Nobody tells the two apart while they are in memory.
            ("activations and working", passes, engine.net.passing_bytes()),
        ];
        let one = |(what, expected, measured): (&str, u64, usize)| HeldBytes {
            what: what.to_owned(),
            expected,
            measured: Some(measured as u64),
        };
        all.into_iter().map(one).collect()
    }

    /// A step is over, before which so much was counted.
    pub fn after(&mut self, before: Counted, engine: &Engine) {
        let now = Counted::by(engine);
        let new = now.sent.into_iter().zip(before.sent).map(|(now, before)| now - before);
        self.counted.sent.iter_mut().zip(new).for_each(|(counted, new)| *counted += new);
        self.counted.moved += now.moved - before.moved;
        self.steps += 1;
    }

    /// What a step sends, on the axes on which something was expected or sent.
    pub fn sent(&self) -> Vec<SentBytes> {
        let one = |(axis, counted): (Axis, u64)| {
            let expected = self.sends.on(axis);
            let measured = counted.checked_div(self.steps)?;
            let (axis, counted) = (axis.name().to_owned(), Some(measured));
            let sent = SentBytes { axis, expected, measured: counted };
            (expected > 0 || measured > 0).then_some(sent)
        };
        Axis::ALL.into_iter().zip(self.counted.sent).filter_map(one).collect()
    }

    /// What a step reads and writes, if anything is on disk.
    pub fn moved(&self) -> Vec<MovedBytes> {
        let Moved { read, written } = self.counted.moved;
        let mean = |bytes: u64| bytes.checked_div(self.steps);
        let measured = mean(read).zip(mean(written)).map(|(read, written)| Moved { read, written });
        measured.map_or_else(Vec::new, |_| MovedBytes::both(self.moves, measured))
    }
}
