//! `regatta man`: prints a manual page, generated from the command line's declaration.

use std::io::Write;

use anyhow::{Context, Result, bail};

use crate::cli::Cli;

/// Runs the command.
pub fn run(page: Option<&str>) -> Result<()> {
    let mut root = Cli::declaration();
    root.build();
    let Some(command) = page.map_or(Some(&root), |name| root.find_subcommand(name)) else {
        let shown = root.get_subcommands().filter(|c| !c.is_hide_set());
        let names: Vec<&str> = shown.map(|command| command.get_name()).collect();
        let page = page.unwrap_or_default();
        bail!("unknown command {page:?}; the commands are {}", names.join(", "));
    };
    let version = concat!("regatta ", env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).source(version).render(&mut text)?;
    std::io::stdout().write_all(&text).context("standard output")
}
