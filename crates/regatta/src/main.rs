//! `regatta`: takes an AI training job from one device to a whole supercomputer.

mod cli;
mod commands;
mod draw;
mod options;
mod output;
mod plan;
mod shell;
mod surroundings;
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
        Command::Launch(args) => commands::launch::run(&args),
        Command::Bench(args) => commands::bench::run(*args),
        Command::Train(args) => commands::train::run(&args),
        Command::Generate(args) => commands::generate::run(&args),
        Command::Checkpoint(args) => commands::checkpoint::run(&args),
        Command::Data(args) => commands::data::run(&args),
        Command::Agent(args) => commands::agent::run(&args),
        Command::Completions(args) => commands::docs::completions(args.shell),
        Command::Man(args) => commands::docs::man(args.page.as_deref()),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let style = cli::ERROR;
            output::complain(&format!("{style}error:{style:#} {}\n", sentence(&error)));
            commands::launch::failed(&error)
        }
    }
}

/// The error and its causes in one line. Our own errors spell out their cause, which then must not
/// be said again.
fn sentence(error: &anyhow::Error) -> String {
    let add = |text: String, cause: String| match text.contains(&cause) {
        true => text,
        false => format!("{text}: {cause}"),
    };
    let text = error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), add);
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Whoever read our output has had enough (`regatta map | head`): not a fault.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|e| e.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
