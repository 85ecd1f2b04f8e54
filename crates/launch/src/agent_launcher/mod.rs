//! Launches one agent per node with the scheduler's launcher (`srun`, `mpiexec`, `flux run`) or
//! `ssh`.
//!
//! [`command`] builds the command lines without I/O, a thread in `driver` runs them, and [`handle`]
//! is its interface.

pub mod command;
mod driver;
pub mod handle;
pub mod slurm_gres;
pub(crate) mod state;
