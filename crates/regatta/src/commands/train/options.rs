//! The configuration resolved from the command line.

use anyhow::{Result, bail};
use regatta_train::config::{self, Resolved};
use regatta_train::run_paths::CONFIG as CONFIG_FILE;

use super::args::TrainArgs;

/// Default preset of `--smoke`.
const SMOKE_PRESET: &str = "mlp";
/// Defaults of `--smoke`, below the user's overrides: a short run for any number of ranks, without
/// checkpoints.
const SMOKE_KEYS: [&str; 6] = [
    "train.steps=50",
    "train.batch_per_replica=8",
    "train.eval_interval=0",
    "optimizer.warmup_steps=5",
    "checkpoint.interval=0",
    "checkpoint.resume=never",
];

/// Settings of `--measure`, above the user's overrides: evaluations and checkpoints would add to the
/// memory and traffic of the steps.
const MEASURE_KEYS: [&str; 4] =
    ["train.steps=3", "train.eval_interval=0", "checkpoint.interval=0", "checkpoint.resume=never"];

/// Resolves the configuration.
pub fn resolve(args: &TrainArgs) -> Result<Resolved> {
    let mut words: Vec<String> = args.config_words().into_iter().map(str::to_owned).collect();
    let is_override = |word: &String| word.contains('=');
    if let Some(folder) = &args.resume {
        if let Some(config) = words.first().filter(|word| !is_override(word)) {
            bail!(
                "--resume reads the configuration from {}: omit {config}, or start a new run from \
                 this run's checkpoint with checkpoint.resume={}",
                folder.join(CONFIG_FILE).display(),
                folder.display()
            );
        }
        let config = folder.join(CONFIG_FILE);
        if !config.exists() {
            let (folder, config) = (folder.display(), config.display());
            bail!("--resume {folder}: not a run folder: {config} does not exist");
        }
        // A run that started from another run's checkpoint resumes from its own.
        words.insert(0, config.to_string_lossy().into_owned());
        words.insert(1, "checkpoint.resume=auto".to_owned());
    } else if args.smoke {
        if words.first().is_none_or(is_override) {
            words.insert(0, SMOKE_PRESET.to_owned());
        }
        words.splice(1..1, SMOKE_KEYS.map(str::to_owned));
    }
    if args.measure {
        words.extend(MEASURE_KEYS.map(str::to_owned));
    }
    Ok(config::load(&words)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn resolve_line(line: &str) -> Result<Resolved> {
        let words = format!("regatta train {line}");
        let Command::Train(args) = Cli::try_parse_from(words.split_whitespace())?.command else {
            bail!("not a train command");
        };
        resolve(&args)
    }

    #[test]
    fn presets_options_and_overrides_are_resolved() {
        assert_eq!(resolve_line("").unwrap().name, "tiny");
        assert_eq!(resolve_line("steps=3 -n 2").unwrap().config.train.steps, 3);
        let all = resolve_line("gpt2 --json steps=3 --run-dir here lr=1e-2").unwrap();
        assert_eq!((all.name.as_str(), all.config.optimizer.lr), ("gpt2", 0.01));
        assert_eq!(resolve_line("--smoke").unwrap().name, "mlp");
        assert_eq!(resolve_line("--smoke").unwrap().config.train.steps, 50);
        assert_eq!(resolve_line("--smoke steps=5").unwrap().name, "mlp");
        assert_eq!(resolve_line("--smoke steps=5").unwrap().config.train.steps, 5);
        assert_eq!(resolve_line("--smoke tiny").unwrap().name, "tiny");
        for wrong in ["setps=3", "tiny gpt2", "--keys --presets", "--resume a --run-dir b", "-n 0"]
        {
            assert!(resolve_line(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn resume_uses_the_configuration_of_the_run() {
        let folder = std::env::temp_dir().join(format!("regatta-resume-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let first = resolve_line("mlp steps=77 resume=never").unwrap();
        std::fs::write(folder.join(CONFIG_FILE), first.to_toml()).unwrap();
        let line = format!("--resume {}", folder.display());
        let resumed = resolve_line(&line).unwrap();
        assert_eq!(resumed.config.train.steps, 77);
        assert_eq!(resumed.config.checkpoint.resume, config::Resume::Auto);
        assert_eq!(resolve_line(&format!("{line} steps=99")).unwrap().config.train.steps, 99);
        let error = resolve_line(&format!("{line} gpt2")).unwrap_err().to_string();
        assert!(error.contains("omit gpt2"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
        let error = resolve_line(&line).unwrap_err().to_string();
        assert!(error.contains("not a run folder: "), "{error}");
    }
}
