//! Errors of GEMMs.

use std::fmt;

use regatta_comm::gpu_runtime::Vendor;

use super::descriptors::StatusError;
use super::gemm::Gemm;

/// A GEMM that was not queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GemmError {
    /// The library has no algorithm, for example for the epilogue.
    Unsupported { vendor: Vendor, gemm: Box<Gemm>, cause: StatusError },
    /// A function of the library failed.
    Status { vendor: Vendor, cause: StatusError },
    /// There is no memory for the workspace.
    Workspace { bytes: usize, cause: String },
}

impl fmt::Display for GemmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { vendor, gemm, cause } => {
                let Gemm { m, n, k, input, output, epilogue, .. } = **gemm;
                let StatusError { function, code } = cause;
                let prefix = prefix(*vendor);
                write!(
                    f,
                    "{prefix} has no algorithm for m={m}, n={n}, k={k}, {input} to {output}"
                )?;
                write!(f, ", epilogue {epilogue:?} ({prefix}{function} returned status {code})")
            }
            Self::Status { vendor, cause: StatusError { function, code } } => {
                write!(f, "{}{function} returned status {code}", prefix(*vendor))
            }
            Self::Workspace { bytes, cause } => {
                write!(f, "allocating {} MiB of GEMM workspace: {cause}", bytes >> 20)
            }
        }
    }
}

fn prefix(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Nvidia => "cublasLt",
        Vendor::Amd => "hipblasLt",
    }
}
