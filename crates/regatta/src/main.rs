//! `regatta`: takes an AI training job from one device to a whole supercomputer.

mod cli;
mod commands;
mod draw;
mod options;
mod output;
mod plan;
mod shell;
mod system;
mod table;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use output::shown_on;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Map(args) => commands::map::run(&args),
        Command::Env(args) => commands::env::run(&args),
        Command::Completions(args) => commands::docs::completions(args.shell),
        Command::Man(args) => commands::docs::man(args.page.as_deref()),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let style = cli::ERROR;
            let line = format!("{style}error:{style:#} {}\n", sentence(&error));
            // Nobody is left to tell if this fails too.
            let _ = std::io::stderr().write_all(shown_on(&std::io::stderr(), line).as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, less those that the text before tells already.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whoever read our output has had enough (`regatta map | head`): not a fault.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|e| e.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
