//! ZeRO: ranks with the same parameters share what belongs to them. Each has an equal range of the
//! numbers of every block, gets the sums of that range's gradients, and updates it.
//!
//! Where ranks share state inside a node and repeat it across (hybrid sharding), the sums of a share
//! go on to the ranks with the same share.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_comm::{Comm, CommError, Counts, Kind, OwnedCall, Pending, ReduceOp};

use super::{Company, Exchange};
use regatta_device::device::Device;
use regatta_device::memory::{Format, Tensor};

/// What ranks share instead of having it whole; each level has that of those before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zero {
    /// Nothing.
    #[default]
    Nothing,
    /// What the optimizer remembers.
    Moments,
    /// Gradients.
    Gradients,
    /// Parameters.
    Parameters,
}

impl Zero {
    /// By its usual number, 0 to 3.
    pub fn level(number: usize) -> Option<Self> {
        [Self::Nothing, Self::Moments, Self::Gradients, Self::Parameters].get(number).copied()
    }
}

/// Begins to sum all ranks' numbers; each rank gets its range, in its place.
pub fn scatter(comm: &dyn Comm, all: Tensor) -> Pending {
    in_parts(comm, Kind::ReduceScatter, all)
}

/// Begins to bring the ranges of all ranks together, which are each in their places.
pub fn gather(comm: &dyn Comm, all: Tensor) -> Pending {
    in_parts(comm, Kind::AllGather, all)
}

fn in_parts(comm: &dyn Comm, kind: Kind, all: Tensor) -> Pending {
    let (format, each) = (all.format(), all.len() / comm.size() as usize);
    comm.start(OwnedCall::new(kind, format.into(), Counts::Equal(each), all.into_buffer()))
}

/// Begins to bring the ranges of all ranks together elsewhere.
pub fn gather_into(comm: &dyn Comm, own: Tensor, all: Tensor) -> Pending {
    let (dtype, counts) = (own.format().into(), Counts::Equal(own.len()));
    let call = OwnedCall::new(Kind::AllGather, dtype, counts, all.into_buffer());
    comm.start(OwnedCall { input: Some(own.into_buffer()), ..call })
}

/// Begins to sum all ranks' numbers, for all.
pub fn sum(comm: &dyn Comm, numbers: Tensor) -> Pending {
    let dtype = numbers.format().into();
    comm.start(OwnedCall::all_reduce(dtype, ReduceOp::Sum, numbers.into_buffer()))
}

/// Waits, gives back what came out, and counts the time.
pub fn waited(pending: Pending, format: Format, time: &mut Duration) -> Result<Tensor, CommError> {
    let began = Instant::now();
    let done = ended(pending, format);
    *time += began.elapsed();
    done
}

/// Waits, and gives back what came out.
pub fn ended(pending: Pending, format: Format) -> Result<Tensor, CommError> {
    Ok(Tensor::from_buffer(pending.wait()?.output, format))
}

/// Whole gradients of which each rank needs the sums of its range: ZeRO 1.
pub struct Scatter {
    shard: Arc<dyn Comm>,
    replica: Company,
    /// Those whose ranges are summed in the shard.
    scattering: VecDeque<(usize, Format, Pending)>,
    /// Those whose sums go on to the ranks with the same range.
    summing: VecDeque<(usize, Tensor, Pending)>,
    /// Memory for such sums that is not in use.
    free: Vec<Tensor>,
    /// Bytes of all of it: they stay.
    bytes: usize,
    done: Vec<(usize, Tensor)>,
}

impl Scatter {
    /// Among the ranks that share state, and those that have the same share.
    pub fn new(shard: Arc<dyn Comm>, replica: Company) -> Self {
        let (scattering, summing) = (VecDeque::new(), VecDeque::new());
        Self { shard, replica, scattering, summing, free: Vec::new(), bytes: 0, done: Vec::new() }
    }

    fn own(&self, all: &Tensor) -> Range<usize> {
        let each = all.len() / self.shard.size() as usize;
        let rank = self.shard.rank() as usize;
        rank * each..(rank + 1) * each
    }

    /// Goes on with all but so many that were begun last.
    fn advance(&mut self, device: &dyn Device, left: usize) -> Result<(), CommError> {
        while self.scattering.len() > left
            && let Some((block, format, pending)) = self.scattering.pop_front()
        {
            let all = ended(pending, format)?;
            let Some(replica) = self.replica.clone() else {
                self.done.push((block, all));
                continue;
            };
            let mut share = self.room(&*replica, self.own(&all).len(), format);
            device.copy(all.view().part(self.own(&all)), share.view_mut());
            self.summing.push_back((block, all, sum(&*replica, share)));
        }
        while self.summing.len() > left
            && let Some((block, mut all, pending)) = self.summing.pop_front()
        {
            let (own, share) = (self.own(&all), ended(pending, all.format())?);
            device.copy(share.view(), all.view_mut().part(own));
            self.free.push(share);
            self.done.push((block, all));
        }
        Ok(())
    }

    fn room(&mut self, replica: &dyn Comm, elements: usize, format: Format) -> Tensor {
        match self.free.iter().position(|tensor| tensor.len() == elements) {
            Some(at) => self.free.swap_remove(at),
            None => {
                let bytes = elements * format.size();
                self.bytes += bytes;
                Tensor::from_buffer(replica.buffer(bytes), format)
            }
        }
    }
}

impl Exchange for Scatter {
    fn memory(&self, device: &dyn Device, elements: usize) -> Tensor {
        let format = device.real_format();
        Tensor::from_buffer(self.shard.buffer(elements * format.size()), format)
    }

    fn ready(
        &mut self,
        device: &dyn Device,
        block: usize,
        gradients: Tensor,
    ) -> Result<(), CommError> {
        let format = gradients.format();
        self.scattering.push_back((block, format, scatter(&*self.shard, gradients)));
        // The one before had all of this block's pass for its way.
        if self.replica.is_some() { self.advance(device, 1) } else { Ok(()) }
    }

    fn finish(&mut self, device: &dyn Device) -> Result<Vec<(usize, Tensor)>, CommError> {
        self.advance(device, 0)?;
        Ok(std::mem::take(&mut self.done))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
