//! The options of `regatta train`.

use std::path::PathBuf;

use clap::Args;

use regatta_train::config::{self, ConfigError, KeyHint};

use crate::options::{NcclPluginArgs, RankCountArgs};

/// `regatta train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Preset (see --presets) or TOML file [default: tiny]
    pub config: Option<String>,
    /// Configuration overrides, as in steps=100 or optimizer.lr=3e-4 (see --keys)
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,

    /// Smoke test: check in under a minute that training on all ranks works, and time each part
    #[arg(long, conflicts_with = "resume", help_heading = "Modes")]
    pub smoke: bool,
    /// Resume the run in this folder from its latest checkpoint, with its configuration
    #[arg(long, value_name = "RUN_FOLDER", conflicts_with = "run_dir", help_heading = "Modes")]
    pub resume: Option<PathBuf>,
    /// List all configuration keys with descriptions and the defaults, which a preset may override
    /// (see --print-config)
    #[arg(long, conflicts_with_all = ["presets", "print_config"], help_heading = "Modes")]
    pub keys: bool,
    /// List the presets
    #[arg(long, conflicts_with = "print_config", help_heading = "Modes")]
    pub presets: bool,
    /// Print the resolved configuration as TOML, with the source of each value; do not train
    #[arg(long, help_heading = "Modes")]
    pub print_config: bool,

    /// Print the expected memory and traffic of each rank and the pipeline schedule; do not train
    ///
    /// The number of ranks is that of a run: -n; without it, on one machine as many as parallel.dp,
    /// .tp, .cp and .pp need, in an allocation as planned by `regatta map`. With --ranks-per-node, the
    /// output also shows which ranks share a host. All values are estimates: the memory of
    /// parameters, gradients, optimizer state and activations, and the bytes that a rank sends per
    /// step on each mesh axis with any collective algorithm. For an invalid parallel layout, the
    /// error names the nearest valid ones.
    #[arg(
        long,
        conflicts_with_all = ["smoke", "keys", "presets", "print_config"],
        help_heading = "Modes"
    )]
    pub explain: bool,
    /// With --explain: also train three steps, and print the measured memory and traffic of each
    /// rank next to the estimates
    ///
    /// Uses the same ranks as a training run. Writes no checkpoints; only the run folder with
    /// its logs remains.
    #[arg(long, requires = "explain", conflicts_with = "resume", help_heading = "Modes")]
    pub measure: bool,

    /// Print events as JSON lines and nothing else; with --smoke or --explain, one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Run folder [default: a new one in runs/]
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub run_dir: Option<PathBuf>,

    #[command(flatten)]
    pub ranks: TrainRankArgs,
}

/// Which ranks to launch.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Ranks to launch (outside a job)",
    mut_arg("ranks", |arg| arg.short('n').help(
        "Number of ranks [default: as many as the parallel layout needs on one machine; otherwise as \
         planned by `regatta map`]"
    )),
    mut_arg("nodes", |arg| arg.short('N'))
)]
pub struct TrainRankArgs {
    #[command(flatten)]
    pub counts: RankCountArgs,
    #[command(flatten)]
    pub plugins: NcclPluginArgs,
    /// Additional options for `regatta launch`, e.g. '--spares 1 --max-restarts 5'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub launch: Option<String>,
}

impl TrainArgs {
    /// Preset or file and overrides, in command-line order.
    pub fn config_words(&self) -> Vec<&str> {
        self.config.iter().chain(&self.overrides).map(String::as_str).collect()
    }
}

/// The error of an unknown option that is the name of a configuration key: `--steps 100`.
pub fn key_as_option(words: &[String], option: &str) -> Option<String> {
    let name = option.strip_prefix("--")?;
    let at = words.iter().position(|word| {
        word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    let inline = words[at].split_once('=').map(|(_, value)| value);
    let next = words.get(at + 1).map(String::as_str).filter(|word| !word.starts_with('-'));
    let value = inline.or(next).unwrap_or("VALUE");
    let pair = format!("{}={value}", name.replace('-', "_"));
    let hint = match config::load(&[&pair]) {
        Err(ConfigError::UnknownKey { hint, .. }) => match hint {
            KeyHint::AnyKey => return None,
            KeyHint::Use(key) => format!("use {key}={value}"),
            hint => hint.to_string(),
        },
        _ => format!("use {pair}"),
    };
    let keys = "configuration keys are given as KEY=VALUE";
    Some(format!("unexpected argument '{option}': {keys}; {hint}"))
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta train                                 a small model on Shakespeare, half a minute
  regatta train shakespeare-char                a preset: nanoGPT's model size, longer
  regatta train steps=200 hidden_size=256       the default preset with overrides
  regatta train gpt2 data.source=books          GPT-2 on data of `regatta data prepare`
  regatta train gpt2 --print-config > my.toml   write a configuration file to edit
  regatta train my.toml optimizer.lr=3e-4       train with it and one override
  regatta train --resume runs/20261115-120000-4711
                                                resume from the latest checkpoint
  regatta train llama-7b -n 8 tp=2 pp=2 zero=1 --explain
                                                estimate memory and traffic of each rank
  regatta train -n 2 parallel.zero=3 --explain --measure
                                                compare the estimate with three measured steps
  regatta train --smoke                         check that training on all ranks works
  salloc -N 2 regatta train gpt2 data.source=books
                                                on all nodes of an allocation
  regatta launch -n 4 -- regatta train tiny     under regatta launch, like any other program
  regatta train --json | jq 'select(.step).step.loss'
                                                events as JSON lines, for scripts

Exit status:
  0    all steps are finished
  1    an error: configuration, data, disk or loss
  75   stopped by a signal before the last step; a checkpoint is saved, --resume continues
  130  killed by a second Ctrl-C (128 + signal)
  137  a rank was killed, for example for running out of memory";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_given_as_an_option_is_explained() {
        let explain = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            key_as_option(&words, words.iter().find(|w| w.starts_with("--"))?.split('=').next()?)
        };
        let hint = "configuration keys are given as KEY=VALUE; ";
        for (line, expected) in [
            ("train --steps 100", "use steps=100"),
            ("train tiny --steps=100 -n 2", "use steps=100"),
            ("train --seq-len", "use seq_len=VALUE"),
            ("train --batch_size 12", "use train.batch=12"),
            ("train --batch-size=8", "use train.batch=8"),
            ("train --lr 1e-3", "use lr=1e-3"),
            ("train --preset gpt2", "a preset or file is the first argument: `regatta train gpt2`"),
        ] {
            let found = explain(line).unwrap();
            assert!(found.ends_with(&format!("{hint}{expected}")), "{line}: {found}");
        }
        assert_eq!(explain("train --nonsense"), None);
    }
}
