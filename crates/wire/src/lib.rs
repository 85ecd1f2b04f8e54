//! Authenticated, encrypted, framed links between the processes of a job, with heartbeats. No I/O, except that
//! secrets and nonces come from the kernel's random number generator, and [`clock`] reads the time.

pub mod clock;
pub mod framing;
pub mod link;
pub mod secret;
