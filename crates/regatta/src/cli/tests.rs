//! Tests of the command line.

use clap::{CommandFactory, Parser};

use super::*;
use crate::args::bench::BenchCommand;

/// Parses the words after `regatta bench`.
pub fn parse_bench<W: Into<OsString>>(
    words: impl IntoIterator<Item = W>,
) -> Result<BenchCommand, clap::Error> {
    let words = words.into_iter().map(Into::into);
    let words = ["regatta", "bench"].map(OsString::from).into_iter().chain(words);
    match Cli::try_parse_from(words)?.command {
        Command::Bench(args) => Ok(args.command),
        other => panic!("not a benchmark: {other:?}"),
    }
}

/// Parses the words after `regatta train`.
pub fn parse_train(words: &str) -> Result<TrainArgs, clap::Error> {
    let words = ["regatta", "train"].into_iter().chain(words.split_whitespace());
    match Cli::try_parse_from(words)?.command {
        Command::Train(args) => Ok(*args),
        other => panic!("not a training: {other:?}"),
    }
}

/// The examples in a help text: lines with `regatta` up to the explanation, which follows two spaces.
fn examples(help: &str) -> Vec<String> {
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    let commands = lines.filter(|line| !line.starts_with(' ') && line.contains("regatta "));
    let without_comment = |line: &str| line.split("  ").next().unwrap_or(line).to_owned();
    commands.map(without_comment).collect()
}

#[test]
fn examples_in_the_help_are_valid_command_lines() {
    let cli = Cli::command();
    let helps = [&cli].into_iter().chain(cli.get_subcommands());
    let helps = helps.filter_map(|command| command.get_after_long_help());
    let all: Vec<String> = helps.flat_map(|help| examples(&help.to_string())).collect();
    assert!(all.len() > 40, "{all:?}");
    // Commands in a shell's quotes or substitutions are not parsed.
    for example in all.iter().filter(|example| !example.contains("$(")) {
        let command = &example[example.find("regatta ").unwrap()..];
        let command = command.split([';', '|', '>']).next().unwrap_or(command);
        let parsed = Cli::try_parse_from(shlex::split(command).unwrap());
        assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
    }
}
