//! Pipeline parallelism: the messages between stages, activations forward and gradients backward.
//!
//! Sends complete in the background. The next receive is posted while this rank works on the message
//! before it.

use std::collections::VecDeque;

use regatta_comm::CommError;

use crate::buffer_pool::PooledTensor;
use crate::model::PassCtx;
use crate::parallel::p2p::P2pTransfer;
use crate::parallel::{P2pLink, ProcessGroups, Result};
use regatta_device::ops::Device;
use regatta_predict::pipeline::{Action, Direction, Stage};

/// A rank's links to its neighbour stages, for one step.
pub struct P2pLinks {
    forward: LinkQueue,
    backward: LinkQueue,
}

struct LinkQueue {
    link: P2pLink,
    direction: Direction,
    /// Receives that are not yet posted.
    receives_left: usize,
    receiving: Option<P2pTransfer>,
    sending: VecDeque<P2pTransfer>,
}

/// Limit on concurrent sends per link, because each owns a buffer. No schedule needs more than one to
/// make progress.
const MAX_SENDS_IN_FLIGHT: usize = 2;

impl P2pLinks {
    /// Links for the given actions of a schedule.
    pub fn new(groups: &ProcessGroups, stage: &Stage, actions: &[Action]) -> Self {
        let queue = |link: &P2pLink, direction: Direction| {
            let messages = actions.iter().filter_map(|action| stage.schedule.receives(*action));
            let receives_left = messages.filter(|message| message.direction == direction).count();
            let (receiving, sending) = (None, VecDeque::new());
            LinkQueue { link: link.clone(), direction, receives_left, receiving, sending }
        };
        Self {
            forward: queue(&groups.forward, Direction::Forward),
            backward: queue(&groups.backward, Direction::Backward),
        }
    }

    /// Waits for the next message of `elements` elements, and posts the receive after it.
    pub fn recv(
        &mut self,
        direction: Direction,
        ctx: &PassCtx,
        elements: usize,
    ) -> Result<PooledTensor> {
        let queue = self.queue(direction);
        queue.post_recv(ctx, elements);
        let Some(receiving) = queue.receiving.take() else { return Err(no_link("receive")) };
        let message = receiving.wait(ctx.device)?;
        queue.post_recv(ctx, elements);
        Ok(message)
    }

    /// Starts a send; blocks only while too many earlier ones are in flight.
    pub fn send(
        &mut self,
        direction: Direction,
        device: &dyn Device,
        message: PooledTensor,
    ) -> Result<()> {
        let queue = self.queue(direction);
        let Some(comm) = &queue.link.send_to else { return Err(no_link("send")) };
        queue.sending.push_back(P2pTransfer::send(device, &**comm, message));
        while queue.sending.len() > MAX_SENDS_IN_FLIGHT {
            let oldest = queue.sending.pop_front();
            oldest.map_or(Ok(()), |oldest| oldest.wait(device).map(drop))?;
        }
        Ok(())
    }

    /// Waits until all sends completed.
    pub fn finish(self, device: &dyn Device) -> Result<()> {
        let mut sends = self.forward.sending.into_iter().chain(self.backward.sending);
        sends.try_for_each(|send| send.wait(device).map(drop))
    }

    fn queue(&mut self, direction: Direction) -> &mut LinkQueue {
        match direction {
            Direction::Forward => &mut self.forward,
            Direction::Backward => &mut self.backward,
        }
    }
}

impl LinkQueue {
    /// Posts the next receive unless one is posted or none is left.
    fn post_recv(&mut self, ctx: &PassCtx, elements: usize) {
        let is_due = self.receiving.is_none() && self.receives_left > 0;
        if let Some(comm) = self.link.recv_from.as_ref().filter(|_| is_due) {
            self.receives_left -= 1;
            let buffer = match self.direction {
                Direction::Forward => ctx.residual(elements),
                Direction::Backward => ctx.residual_grad(elements),
            };
            self.receiving = Some(P2pTransfer::recv(ctx.device, &**comm, buffer));
        }
    }
}

/// The schedule does not match the links.
fn no_link(call: &'static str) -> CommError {
    CommError::InvalidCall { call, what: "this pipeline stage has no such link".to_owned() }
}
