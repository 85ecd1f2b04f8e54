//! `regatta completions`: prints a shell completion script, generated from the command line's declaration.

use std::io::Write;

use anyhow::{Context, Result};

use crate::cli::Cli;

/// Runs the command.
pub fn run(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::declaration(), "regatta", &mut script);
    std::io::stdout().write_all(&script).context("standard output")
}
