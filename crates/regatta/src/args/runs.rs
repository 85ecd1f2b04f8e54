//! The options of `regatta runs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use regatta_model::run_folder::ROOT;

/// `regatta runs`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunsArgs {
    /// Action [default: list]
    #[command(subcommand)]
    pub command: Option<RunsCommand>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Subcommand)]
pub enum RunsCommand {
    /// Show one run: settings, checkpoints, last metrics and result
    Show(ShowArgs),
    /// Remove old run folders, never a running one; without --yes, only list them
    Prune(PruneArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub root: RootArgs,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Where the run folders are.
#[derive(Debug, Args)]
pub struct RootArgs {
    /// Folder that contains the run folders
    #[arg(long, value_name = "FOLDER", default_value = ROOT)]
    pub root: PathBuf,
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta runs                                  the run folders below runs/, newest first
  regatta runs --root /scratch/me/runs --json   those of another folder, for a script
  regatta runs show mine                        settings, checkpoints, last metrics, result
  regatta runs prune --keep 10                  which runs would go; add --yes to remove them
  regatta runs prune --older-than 30d --yes     remove runs without activity for 30 days

States: running (a process holds the lock of the run), finished, stopped (by a signal, or before the
last step: `regatta train --resume RUN` continues), failed (a rank failed, or the launcher was killed).";

/// `regatta runs show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A run folder, or its name in the folder of --root
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    #[command(flatten)]
    pub root: RootArgs,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// `regatta runs prune`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true).args(["keep", "older_than"]))]
pub struct PruneArgs {
    #[command(flatten)]
    pub root: RootArgs,
    /// Keep the newest COUNT runs
    #[arg(long, value_name = "COUNT")]
    pub keep: Option<usize>,
    /// Keep runs with activity within this time, as in 90m, 12h, 7d or 4w. With --keep, a run is
    /// removed only if both allow it
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    pub older_than: Option<Duration>,
    /// Remove the runs; without it, they are only listed
    #[arg(long)]
    pub yes: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Parses an age such as `7d`.
fn parse_age(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected a number and a unit: s, m, h, d or w, as in 7d";
    const UNITS: [(&str, u64); 5] =
        [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("w", 7 * 86_400)];
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(EXPECTED)?;
    let number: u64 = number.parse().map_err(|_| EXPECTED)?;
    Ok(Duration::from_secs(number.saturating_mul(*seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_a_number_and_a_unit() {
        for (text, seconds) in
            [("90s", 90), ("2m", 120), ("12h", 43_200), ("7d", 604_800), ("1w", 604_800)]
        {
            assert_eq!(parse_age(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for invalid in ["", "7", "d", "7x", "-7d", "7 d", "1.5d"] {
            assert!(parse_age(invalid).is_err(), "{invalid}");
        }
    }
}
