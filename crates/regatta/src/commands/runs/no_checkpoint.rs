//! Why a run has no checkpoint to read, and the fix.

use std::path::Path;

use regatta_model::run_folder::RunKind;
use regatta_observe::read::{Run, RunState};
use regatta_train::run_paths::saved_config;

/// The message for a run folder without a checkpoint; `None` if it is not one.
pub fn message(path: &Path) -> Option<String> {
    let run = Run::open(path).ok()?;
    let interval = saved_config(path).map(|config| config.checkpoint.interval);
    let path = path.display().to_string();
    Some(match run.kind() {
        RunKind::Bench | RunKind::Launch => {
            let kind = run.kind();
            format!("{path} is a run of `regatta {kind}`, without a checkpoint of `regatta train`")
        }
        RunKind::Train if interval == Some(0) => {
            let state = run.state();
            format!(
                "{path} has no checkpoint (the run is {state}): checkpoint.interval is 0, so none is \
                 saved; start a new run with another checkpoint.interval"
            )
        }
        RunKind::Train => without_checkpoint(&path, run.state(), interval),
    })
}

/// The message for a training with this `checkpoint.interval`; `None` if it has not even started.
fn without_checkpoint(path: &str, state: RunState, interval: Option<u64>) -> String {
    let when = interval.map_or_else(String::new, |steps| {
        let steps = if steps == 1 { "step".to_owned() } else { format!("{steps} steps") };
        format!(", which it saves every {steps} (checkpoint.interval)")
    });
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
    let fix = match interval {
        Some(_) => format!(" with `regatta train --resume {path} checkpoint.resume=never`"),
        None => String::new(),
    };
    format!(
        "{path} has no checkpoint: the run {what} (`regatta runs show {path}` shows more); start it over{fix}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_the_state_and_the_fix() {
        let message = |state, interval| without_checkpoint("r", state, interval);
        let running = message(RunState::Running, Some(50));
        assert_eq!(
            running,
            "r has no checkpoint yet: the run is running; wait for its first checkpoint, which it saves \
             every 50 steps (checkpoint.interval)"
        );
        assert!(message(RunState::Running, None).ends_with("its first checkpoint"));
        for (state, what) in [(RunState::Stopped, "stopped before"), (RunState::Failed, "failed")] {
            let text = message(state, Some(50));
            assert!(text.starts_with(&format!("r has no checkpoint: the run {what}")), "{text}");
            assert!(text.ends_with("`regatta train --resume r checkpoint.resume=never`"), "{text}");
            assert!(without_checkpoint("r", state, None).ends_with("; start it over"));
        }
    }
}
