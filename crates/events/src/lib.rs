//! Communication events: which collectives and point-to-point operations a rank ran, when, and how long
//! they took.
//!
//! - [`operation`]: the events, as they are stored and analysed;
//! - [`mod@file`]: the event file: blocks with checksums, readable up to a damage;
//! - [`status`]: the live status of a rank, for hang reports;
//! - [`hang`]: the judgement of what does not complete;
//! - [`record`]: the recorder: a bounded lock-free ring of raw events and the thread that drains it;
//! - [`assemble`]: the state machine that turns raw events into operations.
//!
//! The NCCL profiler plug-in and the training engine's collectives record in the same way.

pub mod assemble;
pub mod clock;
pub mod file;
pub mod hang;
pub mod operation;
pub mod record;
pub mod status;
mod varint;
