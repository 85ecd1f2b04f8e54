//! An owned or borrowed tensor.

use std::ops::Deref;

use super::PassCtx;
use crate::buffer_pool::PooledTensor;
use regatta_device::tensor::Tensor;

/// An owned or borrowed tensor.
#[derive(Debug)]
pub enum MaybeOwned<'a> {
    /// Owned.
    Owned(PooledTensor),
    /// Borrowed.
    Borrowed(&'a Tensor),
}

impl MaybeOwned<'_> {
    /// The owned tensor, or a copy of the borrowed one.
    pub fn into_owned(self, ctx: &PassCtx) -> PooledTensor {
        match self {
            Self::Owned(tensor) => tensor,
            Self::Borrowed(tensor) => {
                let mut copy = ctx.like(tensor, tensor.len());
                ctx.device.copy(tensor.view(), copy.view_mut());
                copy
            }
        }
    }
}

impl Deref for MaybeOwned<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        match self {
            Self::Owned(tensor) => tensor,
            Self::Borrowed(tensor) => tensor,
        }
    }
}
