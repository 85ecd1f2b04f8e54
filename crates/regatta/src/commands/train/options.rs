//! The configuration that the command line asks for.

use anyhow::{Result, bail};
use regatta_train::config::{self, Resolved};
use regatta_train::run::CONFIG as CONFIG_FILE;

use super::args::TrainArgs;

/// What `--smoke` trains unless something else is asked for.
const SMOKE: &str = "mlp";
/// How `--smoke` trains, unless a key says otherwise: little, on any number of ranks, from the start.
const SMOKE_KEYS: [&str; 6] = [
    "train.steps=50",
    "train.batch_per_rank=8",
    "train.eval_every=0",
    "optimizer.warmup=5",
    "checkpoint.every=0",
    "checkpoint.resume=never",
];

/// How `--measure` trains, whatever keys say: nothing is kept, and nothing sent or held but for steps.
const MEASURE_KEYS: [&str; 4] =
    ["train.steps=3", "train.eval_every=0", "checkpoint.every=0", "checkpoint.resume=never"];

/// Reads the configuration.
pub fn resolved(args: &TrainArgs) -> Result<Resolved> {
    let mut words: Vec<String> = args.words().into_iter().map(str::to_owned).collect();
    let is_key = |word: &String| word.contains('=');
    if let Some(folder) = &args.resume {
        if let Some(config) = words.first().filter(|word| !is_key(word)) {
            bail!(
                "--resume takes the configuration from {}: leave {config} out, or go on from the \
                 other run with checkpoint.resume={}",
                folder.join(CONFIG_FILE).display(),
                folder.display()
            );
        }
        // Whatever the run itself began from, now it goes on from its own checkpoints.
        words.insert(0, folder.join(CONFIG_FILE).to_string_lossy().into_owned());
        words.insert(1, "checkpoint.resume=auto".to_owned());
    } else if args.smoke {
        if words.first().is_none_or(is_key) {
            words.insert(0, SMOKE.to_owned());
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

    fn asked(line: &str) -> Result<Resolved> {
        let words = format!("regatta train {line}");
        let Command::Train(args) = Cli::try_parse_from(words.split_whitespace())?.command else {
            bail!("no training");
        };
        resolved(&args)
    }

    #[test]
    fn words_and_options_make_a_configuration() {
        assert_eq!(asked("").unwrap().name, "tiny");
        assert_eq!(asked("steps=3 -n 2").unwrap().config.train.steps, 3);
        let all = asked("gpt2 --json steps=3 --run-dir here rate=1e-2").unwrap();
        assert_eq!((all.name.as_str(), all.config.optimizer.rate), ("gpt2", 0.01));
        assert_eq!(asked("--smoke").unwrap().name, "mlp");
        assert_eq!(asked("--smoke").unwrap().config.train.steps, 50);
        assert_eq!(asked("--smoke steps=5").unwrap().name, "mlp");
        assert_eq!(asked("--smoke steps=5").unwrap().config.train.steps, 5);
        assert_eq!(asked("--smoke tiny").unwrap().name, "tiny");
        for wrong in ["setps=3", "tiny gpt2", "--keys --presets", "--resume a --run-dir b", "-n 0"]
        {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_run_goes_on_with_its_own_configuration() {
        let folder = std::env::temp_dir().join(format!("regatta-resume-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let first = asked("mlp steps=77 resume=never").unwrap();
        std::fs::write(folder.join(CONFIG_FILE), first.to_toml()).unwrap();
        let line = format!("--resume {}", folder.display());
        let again = asked(&line).unwrap();
        assert_eq!(again.config.train.steps, 77);
        assert_eq!(again.config.checkpoint.resume, config::Resume::Auto);
        assert_eq!(asked(&format!("{line} steps=99")).unwrap().config.train.steps, 99);
        let error = asked(&format!("{line} gpt2")).unwrap_err().to_string();
        assert!(error.contains("leave gpt2 out"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
        let error = asked(&line).unwrap_err().to_string();
        assert!(error.contains("config.toml"), "{error}");
    }
}
