//! Connections of one job: they prove its secret, carry frames and show signs of life. No I/O but
//! that a secret is made of the kernel's random numbers.

pub mod link;
pub mod secret;
