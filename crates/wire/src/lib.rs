//! Authenticated, encrypted, framed links between the processes of a job, with heartbeats, and a
//! reactor that drives many of them. Everything but [`reactor`] does no I/O, except that secrets and
//! nonces come from the kernel's random number generator, and [`clock`] reads the time.

pub mod clock;
pub mod framing;
pub mod link;
pub mod reactor;
pub mod secret;
