//! Collectives that are done in parts, by several engines: each knows of its part only, and what
//! went wrong is to be told of the whole.

use crate::background::{Abort, Over};
use crate::blame::Waits;
use crate::{CommError, Signature};

/// What is known of the whole.
pub trait Whole: Send {
    /// A collective begins. In debug mode it returns when all ranks have begun the same.
    fn begin(&mut self, signature: Signature) -> Result<(), CommError>;

    /// It is done.
    fn end(&mut self);

    /// A part failed, with an error in the numbers of the whole. Gives what all ranks are told.
    fn explain(&mut self, error: CommError) -> CommError;

    /// What all were told, if it is over already.
    fn verdict(&self) -> Option<CommError>;

    /// Has something done, by another thread, as soon as it is known to be over: parts may wait for
    /// each other in ways that do not hear of it. `waits` tells for whom.
    fn when_over(&self, call: Abort, waits: Waits);

    /// How to make it give up.
    fn abort(&self) -> Abort;

    /// How to ask whether it is over.
    fn over(&self) -> Over;
}
