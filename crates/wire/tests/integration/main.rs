//! Authenticated connections on loopback.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

mod reactor_lifecycle;
mod reactor_unauthenticated;
#[path = "../support/mod.rs"]
mod support;
