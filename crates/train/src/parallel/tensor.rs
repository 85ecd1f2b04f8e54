//! Tensor parallel: ranks share every matrix. Products from the stream are shared by their outputs,
//! products back to it by their inputs, so that between the two nobody needs to talk.
//!
//! With sequence parallelism the ranks share the rows of the stream, too, where it is not
//! multiplied: all rows come together before a product, and each rank gets its own, summed, behind
//! the next. Without it all ranks have all rows, and sums go to all. The backward pass goes the same
//! ways in the other direction: what gathers there scatters here.

use std::ops::Range;
use std::sync::Arc;

use regatta_comm::{Comm, CommError, Counts, Kind, OwnedCall, ReduceOp};

use super::Waits;
use crate::model::{Held, Lent, Run};
use regatta_device::memory::{Tensor, ViewMut};
use regatta_predict::shape::{Block, Share};

/// The ranks that share matrices, seen by one of them.
#[derive(Clone)]
pub struct Group {
    company: Option<Arc<dyn Comm>>,
    /// Which of them this is.
    pub share: Share,
    /// Whether they share the rows of the stream.
    pub sequence: bool,
    /// How long passes waited for the others.
    pub waits: Waits,
}

impl Group {
    /// No other ranks.
    pub fn alone() -> Self {
        Self { company: None, share: Share::ALL, sequence: false, waits: Waits::default() }
    }

    /// The ranks of a communicator, if there are several.
    pub fn new(company: Option<Arc<dyn Comm>>, sequence: bool) -> Self {
        let Some(comm) = &company else { return Self::alone() };
        let share = Share { rank: comm.rank() as usize, ranks: comm.size() as usize };
        Self { company, share, sequence, waits: Waits::default() }
    }

    /// This rank's rows of the stream.
    pub fn rows(&self, rows: usize) -> Range<usize> {
        if self.sequence { self.share.of(rows) } else { 0..rows }
    }

    /// This rank's rows of the stream become all rows.
    pub fn enter(&self, run: &Run<'_>, own: Lent) -> Result<Lent, CommError> {
        match &self.company {
            Some(_) if self.sequence => self.together(run, own),
            _ => Ok(own),
        }
    }

    /// What all ranks have, one after the other.
    pub fn together(&self, run: &Run<'_>, own: Lent) -> Result<Lent, CommError> {
        let Some(comm) = &self.company else { return Ok(own) };
        let all = run.like(&own, own.len() * self.share.ranks);
        self.waits.count(|| moved(&**comm, Kind::AllGather, own, all))
    }

    /// What this rank adds to all rows becomes the sum of all ranks', of its own rows.
    pub fn leave(&self, run: &Run<'_>, part: Lent) -> Result<Lent, CommError> {
        match &self.company {
            None => Ok(part),
            Some(comm) if self.sequence => {
                let own = run.like(&part, part.len() / self.share.ranks);
                self.waits.count(|| moved(&**comm, Kind::ReduceScatter, part, own))
            }
            Some(comm) => {
                let (tensor, home) = part.take();
                Ok(home.lent(self.waits.count(|| sum(&**comm, tensor))?))
            }
        }
    }

    /// All rows of a gradient of the stream of which this rank has its own.
    pub fn gather<'t>(&self, run: &Run<'_>, own: Held<'t>) -> Result<Held<'t>, CommError> {
        if !self.sequence {
            return Ok(own);
        }
        let mut rows = run.activation(own.len());
        run.device.copy(own.view(), rows.view_mut());
        self.enter(run, rows).map(Held::Own)
    }

    /// Sums the gradients of norms, which ranks with rows of their own have parts of.
    pub fn settle(
        &self,
        run: &Run<'_>,
        block: &Block,
        mut grads: ViewMut<'_>,
    ) -> Result<(), CommError> {
        let Some(comm) = self.company.as_ref().filter(|_| self.sequence) else { return Ok(()) };
        let norms = || block.parameters.iter().filter(|p| p.name.contains(".norm"));
        let mut all = run.real(norms().map(|p| p.len()).sum());
        let mut start = 0;
        for norm in norms() {
            let mut there = all.view_mut();
            run.device.copy(grads.part(norm.range()).view(), there.part(start..start + norm.len()));
            start += norm.len();
        }
        let (tensor, home) = all.take();
        let all = home.lent(self.waits.count(|| sum(&**comm, tensor))?);
        let mut start = 0;
        for norm in norms() {
            let here = all.view().part(start..start + norm.len());
            run.device.copy(here, grads.part(norm.range()));
            start += norm.len();
        }
        Ok(())
    }
}

/// The sum of all ranks' numbers.
fn sum(comm: &dyn Comm, tensor: Tensor) -> Result<Tensor, CommError> {
    let format = tensor.format();
    let mut call = OwnedCall::all_reduce(format.into(), ReduceOp::Sum, tensor.into_buffer());
    comm.run_owned(&mut call, 1)?;
    Ok(Tensor::from_buffer(call.output, format))
}

/// The same in place, through memory that can be sent.
pub fn sum_of(comm: &dyn Comm, run: &Run<'_>, mut numbers: ViewMut<'_>) -> Result<(), CommError> {
    let mut copy = run.real(numbers.len());
    run.device.copy(numbers.view(), copy.view_mut());
    let (tensor, home) = copy.take();
    let copy = home.lent(sum(comm, tensor)?);
    run.device.copy(copy.view(), numbers.again());
    Ok(())
}

/// Does a collective from one tensor to another, and gives the first one back.
fn moved(comm: &dyn Comm, kind: Kind, input: Lent, output: Lent) -> Result<Lent, CommError> {
    let each = input.len().min(output.len());
    let ((input, lender), (output, home)) = (input.take(), output.take());
    let format = output.format();
    let mut call = OwnedCall::new(kind, format.into(), Counts::Equal(each), output.into_buffer());
    call.input = Some(input.into_buffer());
    comm.run_owned(&mut call, 1)?;
    if let Some(input) = call.input {
        drop(lender.lent(Tensor::from_buffer(input, format)));
    }
    Ok(home.lent(Tensor::from_buffer(call.output, format)))
}
