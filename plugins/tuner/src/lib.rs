//! The tuner plug-in of NCCL and RCCL: selects the algorithm, protocol and number of channels of a
//! collective from a table that was measured on this machine.
//!
//! NCCL loads the library that `NCCL_TUNER_PLUGIN` names, chooses the newest table of functions that it
//! knows, and calls them: [`abi::v3`] to [`abi::v5`]. Each version converts NCCL's arguments to one model,
//! that of `regatta_nccl_tuning`; [`session`] holds the table of the process. The plug-in is inert unless
//! `REGATTA_TUNER` names a table.
//!
//! All ranks of a communicator must select the same algorithm, or they wait for each other forever. So the
//! table is read once per process, and a selection depends on nothing but what is equal on all ranks.
//!
//! Every function returns success, also after a panic: NCCL ends a job whose tuner fails.

pub mod abi;
pub mod explain;
pub mod session;
