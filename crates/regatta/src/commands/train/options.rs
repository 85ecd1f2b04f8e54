//! The configuration resolved from the command line.

use anyhow::{Result, bail};
use regatta_model::run_folder::CONFIG as CONFIG_FILE;
use regatta_train::config::{self, Resolved};

use crate::args::train::TrainArgs;

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
            let why = match folder.is_dir() {
                true => format!("no run of regatta train: {} does not exist", config.display()),
                false => "no such folder; `regatta runs` lists run folders".to_owned(),
            };
            bail!("--resume {}: {why}", folder.display());
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
    use super::*;
    use crate::cli::tests::parse_train;

    fn resolve_line(line: &str) -> Result<Resolved> {
        resolve(&parse_train(line)?)
    }

    #[test]
    fn presets_options_and_overrides_are_resolved() {
        assert_eq!(resolve_line("").unwrap().name, "tiny");
        assert_eq!(resolve_line("steps=3 -n 2").unwrap().config.train.steps, 3);
        let all = resolve_line("gpt2 --json steps=3 --run-dir here lr=1e-2").unwrap();
        assert_eq!((all.name.as_str(), all.config.optimizer.lr), ("gpt2", 0.01));
        for (line, name, steps) in [("", "mlp", 50), ("steps=5", "mlp", 5), ("tiny", "tiny", 50)] {
            let smoke = resolve_line(&format!("--smoke {line}")).unwrap();
            assert_eq!((smoke.name.as_str(), smoke.config.train.steps), (name, steps), "{line}");
        }
        let conflicts = ["tiny gpt2", "--keys --presets", "--resume a --run-dir b"];
        for invalid in conflicts.into_iter().chain(["setps=3", "-n 0"]) {
            assert!(resolve_line(invalid).is_err(), "{invalid}");
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
        std::fs::remove_file(folder.join(CONFIG_FILE)).unwrap();
        let error = resolve_line(&line).unwrap_err().to_string();
        assert!(error.contains("no run of regatta train: "), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
        let error = resolve_line(&line).unwrap_err().to_string();
        assert!(error.contains("no such folder; `regatta runs`"), "{error}");
    }
}
