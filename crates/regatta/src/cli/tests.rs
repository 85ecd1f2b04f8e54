//! Tests of the command line.

use clap::{CommandFactory, Parser};

use super::*;

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
