//! Why a run has no checkpoint to read, and the fix.

use std::path::Path;

use regatta_train::config::{Config, MAX_CONFIG_BYTES};
use regatta_train::{regular_file, run_paths};

use super::folder::{self, RunKind, RunState};

/// The message for a run folder without a checkpoint; `None` if it is not one.
pub fn message(path: &Path) -> Option<String> {
    let run = folder::read(path)?;
    let file = path.join(run_paths::CONFIG);
    let text = regular_file::read_to_string(&file, MAX_CONFIG_BYTES).unwrap_or_default();
    let interval = Config::from_toml(&file, &text).map_or(0, |config| config.checkpoint.interval);
    let path = path.display().to_string();
    Some(match run.kind {
        RunKind::Bench => format!("{path} is a run of `regatta bench`, which has no checkpoints"),
        RunKind::Train if interval == 0 => {
            let state = run.state.name();
            format!(
                "{path} has no checkpoint (the run is {state}): checkpoint.interval is 0, so none is \
                 saved; start a new run with another checkpoint.interval"
            )
        }
        RunKind::Train | RunKind::Launch => without_checkpoint(&path, run.state, interval),
    })
}

/// The message for a run with this `checkpoint.interval`, which is 0 if unknown.
fn without_checkpoint(path: &str, state: RunState, interval: u64) -> String {
    let when = match interval {
        0 => String::new(),
        1 => ", which it saves after each step".to_owned(),
        steps => format!(", which it saves every {steps} steps (checkpoint.interval)"),
    };
    let what = match state {
        RunState::Running => {
            return format!(
                "{path} has no checkpoint yet: the run is running; wait for its first checkpoint{when}"
            );
        }
        RunState::Finished => "finished without one",
        RunState::Stopped => "stopped before its first one",
        RunState::Failed => "failed before its first one",
    };
    format!(
        "{path} has no checkpoint: the run {what} (`regatta runs show {path}` shows more); start it over \
         with `regatta train --resume {path} checkpoint.resume=never`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_the_state_and_the_fix() {
        let message = |state, interval| without_checkpoint("r", state, interval);
        let running = message(RunState::Running, 50);
        assert_eq!(
            running,
            "r has no checkpoint yet: the run is running; wait for its first checkpoint, which it saves \
             every 50 steps (checkpoint.interval)"
        );
        assert!(message(RunState::Running, 0).ends_with("its first checkpoint"));
        for (state, what) in [(RunState::Stopped, "stopped before"), (RunState::Failed, "failed")] {
            let text = message(state, 50);
            assert!(text.starts_with(&format!("r has no checkpoint: the run {what}")), "{text}");
            assert!(text.ends_with("`regatta train --resume r checkpoint.resume=never`"), "{text}");
        }
    }
}
