//! Fault handling for collectives that run on several engines. Each engine sees only its part; the
//! fault channel spans the whole communicator, so all ranks report the same error.

use crate::wait_graph::WaitEdges;
use crate::worker::{AbortFn, HasFailedFn};
use crate::{CommError, Result, Signature};

/// The fault channel of a whole communicator.
pub trait FaultChannel: Send {
    /// Starts a collective. In debug mode, returns when all ranks have started the same one.
    fn begin(&mut self, signature: Signature) -> Result;

    /// Completes a collective.
    fn end(&mut self);

    /// Resolves the error of one engine, in ranks of the whole communicator, to the error that all
    /// ranks report.
    fn resolve(&mut self, error: CommError) -> CommError;

    /// The error that all ranks report, if the communicator has failed.
    fn abort_record(&self) -> Option<CommError>;

    /// Registers a callback for the abort of the communicator, invoked on another thread. The
    /// engines may be blocked where they do not see the abort. `waits` returns the ranks they wait
    /// for.
    fn on_abort(&self, abort: AbortFn, waits: WaitEdges);

    /// A function that aborts the communicator.
    fn abort_fn(&self) -> AbortFn;

    /// A function that tells whether the communicator has failed.
    fn has_failed_fn(&self) -> HasFailedFn;
}
