//! `regatta completions` and `regatta man`, generated from the declaration of the flags.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::CommandFactory;

use crate::cli::Cli;

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "regatta", &mut script);
    std::io::stdout().write_all(&script).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a manual page.
pub fn man(page: Option<&str>) -> Result<ExitCode> {
    let mut root = Cli::command();
    root.build();
    let command = match page {
        None => root,
        Some(name) => match root.find_subcommand(name) {
            Some(found) => found.clone(),
            None => {
                let shown = root.get_subcommands().filter(|c| !c.is_hide_set());
                let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
                bail!("unknown command {name:?}; the commands are {}", names.join(", "));
            }
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .source(concat!("regatta ", env!("CARGO_PKG_VERSION")))
        .render(&mut text)?;
    std::io::stdout().write_all(&text).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}
