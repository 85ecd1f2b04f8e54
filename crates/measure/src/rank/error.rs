//! Why a rank cannot measure.

use regatta_comm::CommError;

use crate::roofline::RooflineError;

/// Why a rank cannot measure.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The ranks cannot communicate.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The roofline cannot be measured.
    #[error(transparent)]
    Roofline(#[from] RooflineError),
    /// The ranks use another network.
    #[error(
        "libfabric is not in use: {0}; select a provider with REGATTA_FABRIC, e.g. \
         REGATTA_FABRIC=tcp, and the library with REGATTA_LIBFABRIC"
    )]
    NoLibfabric(String),
    /// No launcher has installed the plug-in of this program.
    #[error(
        "--net-plugin regatta is for ranks that this command launches: in a job, install the plug-in \
         with `regatta plugin install` and pass its path"
    )]
    NoNetPlugin,
    /// No size fits.
    #[error("all sizes exceed the available memory of {0} per rank")]
    NoMemory(String),
    /// The root is not a rank.
    #[error("-r {root} is out of range: the job has ranks 0 to {last}")]
    RootOutOfRange {
        /// The root.
        root: u32,
        /// The last rank.
        last: u32,
    },
    /// A single rank has no pairs.
    #[error("--pairs needs at least two ranks")]
    TooFewRanks,
}
