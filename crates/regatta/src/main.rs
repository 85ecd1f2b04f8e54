//! `regatta`: takes an AI training job from one device to a whole supercomputer.

mod cli;
mod commands;
mod draw;
mod options;
mod plan;
mod shell;
mod system;
mod table;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

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
            anstream::eprintln!("{}error:{} {error:#}", cli::ERROR, cli::ERROR.render_reset());
            ExitCode::FAILURE
        }
    }
}

/// Whoever read our output has had enough (`regatta map | head`): not a fault.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|e| e.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
