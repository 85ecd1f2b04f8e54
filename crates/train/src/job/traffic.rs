//! What is sent in steps, expected and counted. Validations send, too, and are not part of it.

use crate::metrics::SentBytes;
use crate::parallel::cost::Sends;
use crate::parallel::{Axis, Groups};

/// What a rank sends on each axis.
#[derive(Debug)]
pub struct Traffic {
    /// In a step.
    expected: Sends,
    /// In all steps so far.
    counted: [u64; Axis::ALL.len()],
    steps: u64,
}

/// What was counted before a step.
pub struct Before([u64; Axis::ALL.len()]);

impl Traffic {
    /// Nothing yet.
    pub fn new(expected: Sends) -> Self {
        Self { expected, counted: Default::default(), steps: 0 }
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
            let axis = axis.name().to_owned();
            (expected > 0 || measured > 0).then_some(SentBytes { axis, expected, measured })
        };
        Axis::ALL.into_iter().zip(self.counted).filter_map(one).collect()
    }
}
