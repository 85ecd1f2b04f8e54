//! What is sent in steps, expected and counted. Validations send, too, and are not part of it.

use crate::metrics::{HeldBytes, SentBytes};
use crate::parallel::cost::{Cost, Holds, Sends};
use crate::parallel::{Axis, Groups};
use crate::state::Bytes;
use crate::step::Engine;

/// What a rank holds, and sends on each axis.
#[derive(Debug)]
pub struct Traffic {
    /// What it was expected to hold.
    holds: Holds,
    /// And to send in a step.
    expected: Sends,
    /// In all steps so far.
    counted: [u64; Axis::ALL.len()],
    steps: u64,
}

/// What was counted before a step.
pub struct Before([u64; Axis::ALL.len()]);

impl Traffic {
    /// Nothing yet.
    pub fn new(Cost { holds, sends: expected, .. }: Cost) -> Self {
        Self { holds, expected, counted: Default::default(), steps: 0 }
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

    /// A step begins.
    pub fn before(groups: &Groups) -> Before {
        Before(Axis::ALL.map(|axis| groups.sent(axis).all_bytes()))
    }

    /// It is over.
    pub fn after(&mut self, Before(before): Before, groups: &Groups) {
        let Before(now) = Self::before(groups);
        let new = now.into_iter().zip(before).map(|(now, before)| now - before);
        self.counted.iter_mut().zip(new).for_each(|(counted, new)| *counted += new);
        self.steps += 1;
    }

    /// A step's, of the axes on which something was expected or sent.
    pub fn figures(&self) -> Vec<SentBytes> {
        let one = |(axis, counted): (Axis, u64)| {
            let expected = self.expected.on(axis);
            let measured = counted.checked_div(self.steps)?;
            let (axis, counted) = (axis.name().to_owned(), Some(measured));
            let sent = SentBytes { axis, expected, measured: counted };
            (expected > 0 || measured > 0).then_some(sent)
        };
        Axis::ALL.into_iter().zip(self.counted).filter_map(one).collect()
    }
}
