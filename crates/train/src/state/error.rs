//! Why state cannot be brought to where it is needed.

use regatta_comm::CommError;
use thiserror::Error;

use crate::offload::StoreError;

/// Why a step cannot be done, or state cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StepError {
    /// Another rank is gone, or does something else.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// What is on disk cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}
