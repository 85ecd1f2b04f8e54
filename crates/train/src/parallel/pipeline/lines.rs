//! What stages of a pipeline send each other: the stream behind a chunk, and its gradient.
//!
//! Sending goes on in the background. The next message is received in the background, too, while
//! this rank works on the one before.

use std::sync::Arc;

use regatta_comm::{Comm, CommError, Counts, Kind, OwnedCall, Pending};

use super::{Action, Stage, Way};
use crate::memory::{Format, Tensor};
use crate::model::{Home, Lent, Run};
use crate::parallel::{Groups, Link};

/// The links of a rank, for one step.
pub struct Lines {
    forward: Line,
    backward: Line,
}

struct Line {
    link: Link,
    /// Messages that are still to be received.
    left: usize,
    coming: Option<(Pending, Home, Format)>,
    sent: Vec<(Pending, Home, Format)>,
}

impl Lines {
    /// For these actions.
    pub fn new(groups: &Groups, stage: &Stage, actions: &[Action]) -> Self {
        let line = |link: &Link, way: Way| {
            let received = actions.iter().filter_map(|action| stage.schedule.receives(*action));
            let left = received.filter(|message| message.way == way).count();
            Line { link: link.clone(), left, coming: None, sent: Vec::new() }
        };
        Self {
            forward: line(&groups.forward, Way::Forward),
            backward: line(&groups.backward, Way::Backward),
        }
    }

    /// Waits for the next message of so many numbers.
    pub fn receive(&mut self, way: Way, run: &Run<'_>, elements: usize) -> Result<Lent, CommError> {
        let line = self.line(way);
        line.expect(run, elements);
        let Some((pending, home, format)) = line.coming.take() else {
            return Err(no_link("receive"));
        };
        let message = home.lent(Tensor::from_buffer(pending.wait()?.output, format));
        line.expect(run, elements);
        Ok(message)
    }

    /// Sends a message.
    pub fn send(&mut self, way: Way, message: Lent) -> Result<(), CommError> {
        let line = self.line(way);
        let Some(comm) = &line.link.to else { return Err(no_link("send")) };
        line.sent.push(start(comm, Kind::Send, 1, message));
        Ok(())
    }

    /// Waits until all that was sent is.
    pub fn finish(self) -> Result<(), CommError> {
        for (pending, home, format) in self.forward.sent.into_iter().chain(self.backward.sent) {
            drop(home.lent(Tensor::from_buffer(pending.wait()?.output, format)));
        }
        Ok(())
    }

    fn line(&mut self, way: Way) -> &mut Line {
        match way {
            Way::Forward => &mut self.forward,
            Way::Backward => &mut self.backward,
        }
    }
}

impl Line {
    /// Begins to receive the next message, if there is to be one and it is not on its way.
    fn expect(&mut self, run: &Run<'_>, elements: usize) {
        if let Some(comm) =
            self.link.from.as_ref().filter(|_| self.coming.is_none() && self.left > 0)
        {
            self.left -= 1;
            self.coming = Some(start(comm, Kind::Receive, 0, run.real(elements)));
        }
    }
}

fn start(comm: &Arc<dyn Comm>, kind: Kind, other: u32, message: Lent) -> (Pending, Home, Format) {
    let (tensor, home) = message.take();
    let (format, counts) = (tensor.format(), Counts::Equal(tensor.len()));
    let mut call = OwnedCall::new(kind, format.into(), counts, tensor.into_buffer());
    call.root = other;
    (comm.start(call), home, format)
}

/// A schedule that was made for other links than there are.
fn no_link(call: &'static str) -> CommError {
    CommError::Shape { call, what: "the pipeline has no link there".to_owned() }
}
