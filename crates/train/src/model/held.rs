//! A tensor that is one's own, or somebody else's for now.

use std::ops::Deref;

use super::{Lent, Run};
use regatta_device::memory::Tensor;

/// A tensor that is one's own, or somebody else's for now.
#[derive(Debug)]
pub enum Held<'a> {
    /// One's own.
    Own(Lent),
    /// Somebody else's.
    Other(&'a Tensor),
}

impl Held<'_> {
    /// One's own, of which a copy is made if need be.
    pub fn owned(self, run: &Run<'_>) -> Lent {
        match self {
            Self::Own(tensor) => tensor,
            Self::Other(tensor) => {
                let mut copy = run.like(tensor, tensor.len());
                run.device.copy(tensor.view(), copy.view_mut());
                copy
            }
        }
    }
}

impl Deref for Held<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        match self {
            Self::Own(tensor) => tensor,
            Self::Other(tensor) => tensor,
        }
    }
}
