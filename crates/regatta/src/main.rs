//! `regatta`: places and launches AI jobs, benchmarks the network, trains models.

mod args;
mod cli;
mod commands;
#[cfg(test)]
mod documented_commands;
mod options;
mod output;
mod plot_file;
mod plugins;
mod shell;
mod system;

use std::process::ExitCode;

use anyhow::Result;
use regatta_launch::signals;

use cli::{Cli, Command};

fn main() -> ExitCode {
    signals::ignore_file_size_signal();
    if !commands::env::is_evaluated() {
        return run_command_line();
    }
    let code = std::panic::catch_unwind(run_command_line).unwrap_or(ExitCode::FAILURE);
    if code != ExitCode::SUCCESS {
        commands::env::stop_script();
    }
    code
}

fn run_command_line() -> ExitCode {
    let result = match Cli::of_process() {
        Ok(cli) => run(cli.command),
        Err(error) if error.use_stderr() => {
            if commands::env::is_evaluated() {
                commands::env::stop_script();
            }
            error.exit()
        }
        Err(help) => output::print(&help.render().ansi().to_string()).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&output::one_line(&error));
            commands::launcher::exit_code(&error)
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    let success = |()| ExitCode::SUCCESS;
    match command {
        Command::Map(args) => commands::map::run(&args),
        Command::Env(args) => commands::env::run(&args).map(success),
        Command::Launch(args) => commands::launch::run(*args),
        Command::Submit(args) => commands::submit::run(&args).map(success),
        Command::Jobs(args) => commands::jobs::run(&args).map(success),
        Command::Bench(args) => commands::bench::run(*args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Comms(args) => commands::comms::run(&args),
        Command::NetLog(args) => commands::net_log::run(&args),
        Command::Plugin(args) => commands::plugin::run(&args),
        Command::Train(args) => commands::train::run(&args),
        Command::Generate(args) => commands::generate::run(&args).map(success),
        Command::Eval(args) => commands::eval::run(&args).map(success),
        Command::Runs(args) => commands::runs::run(&args).map(success),
        Command::Checkpoint(args) => commands::checkpoint::run(&args),
        Command::Data(args) => commands::data::run(&args),
        Command::Agent(args) => commands::agent::run(&args).map(success),
        Command::RankWorker => commands::rank_worker::run(),
        Command::Completions { shell } => commands::completions::run(shell).map(success),
        Command::Man { page } => commands::man::run(page.as_deref()).map(success),
    }
}
