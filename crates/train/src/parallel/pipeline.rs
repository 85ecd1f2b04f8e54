//! What stages of a pipeline send each other: the stream behind a chunk, and its gradient.
//!
//! Sending goes on in the background. The next message is received in the background, too, while
//! this rank works on the one before.

use std::collections::VecDeque;

use regatta_comm::CommError;

use crate::model::{Lent, Run};
use crate::parallel::message::Message;
use crate::parallel::{Groups, Link};
use regatta_predict::pipeline::{Action, Stage, Way};

/// The links of a rank, for one step.
pub struct Lines {
    forward: Line,
    backward: Line,
}

struct Line {
    link: Link,
    /// Messages that are still to be received.
    left: usize,
    coming: Option<Message>,
    sent: VecDeque<Message>,
}

/// Messages of a line that are being sent at once, at most: each needs memory. A schedule needs no
/// more than one to come to its end.
const UNDER_WAY: usize = 2;

impl Lines {
    /// For these actions.
    pub fn new(groups: &Groups, stage: &Stage, actions: &[Action]) -> Self {
        let line = |link: &Link, way: Way| {
            let received = actions.iter().filter_map(|action| stage.schedule.receives(*action));
            let left = received.filter(|message| message.way == way).count();
            Line { link: link.clone(), left, coming: None, sent: VecDeque::new() }
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
        let Some(coming) = line.coming.take() else { return Err(no_link("receive")) };
        let message = coming.wait()?;
        line.expect(run, elements);
        Ok(message)
    }

    /// Sends a message; waits only for those that were sent long before it.
    pub fn send(&mut self, way: Way, message: Lent) -> Result<(), CommError> {
        let line = self.line(way);
        let Some(comm) = &line.link.to else { return Err(no_link("send")) };
        line.sent.push_back(Message::send(&**comm, message));
        while line.sent.len() > UNDER_WAY {
            line.sent.pop_front().map_or(Ok(()), |oldest| oldest.wait().map(drop))?;
        }
        Ok(())
    }

    /// Waits until all that was sent is.
    pub fn finish(self) -> Result<(), CommError> {
        let mut sent = self.forward.sent.into_iter().chain(self.backward.sent);
        sent.try_for_each(|message| message.wait().map(drop))
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
            self.coming = Some(Message::receive(&**comm, run.real(elements)));
        }
    }
}

/// A schedule that was made for other links than there are.
fn no_link(call: &'static str) -> CommError {
    CommError::Shape { call, what: "the pipeline has no link there".to_owned() }
}
