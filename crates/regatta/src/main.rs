//! The `regatta` command.

#[allow(dead_code)]
mod draw;

fn main() {}
