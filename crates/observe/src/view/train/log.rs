//! The log lines of a run, and its summary.

use regatta_draw::line::{BOLD, DIM, GOOD, WARNING};
use regatta_draw::text::{sanitize, wrap};
use regatta_model::shell::quote;
use regatta_model::train_event::{EndReason, RunInfo, Summary};
use regatta_model::units::{
    format_duration, format_elapsed, format_loss, format_si_unit, format_token_rate, pluralize,
};

use super::dashboard::{
    ITEM_GAP, VALUE_GAP, estimate, format_gemm_percentage, format_gpu_memory, header,
    step_progress, token_rate,
};
use super::history::{RunHistory, gemm_percentage};
use super::usage;

/// The first lines of a log.
pub fn header_lines(about: &RunInfo) -> String {
    let items = header(about, usize::MAX).join(ITEM_GAP);
    let estimate = estimate(about).map_or_else(String::new, |estimate| {
        let steps = match about.steps.saturating_sub(about.start_step) {
            1 => "1 step takes".to_owned(),
            steps => format!("{steps} steps take"),
        };
        let peak = format_si_unit(about.gemm_flops_per_second, "FLOP/s");
        format!("{steps} {estimate}: half of the measured GEMM peak, {peak}\n")
    });
    format!("{items}\n{estimate}")
}

/// A log line within a long step.
pub fn progress_line(history: &RunHistory, now: f64) -> String {
    step_progress(history, now).map_or_else(String::new, |progress| progress + "\n")
}

/// A log line of a validation.
pub fn validation_line(history: &RunHistory, step: u64, loss: f64) -> String {
    format!("step {step}/{}  val {}\n", history.steps(), format_loss(loss))
}

/// A log line of the last step.
pub fn step_line(history: &RunHistory, now: f64) -> String {
    let (done, steps) = (history.done(), history.steps());
    let mut values = vec![format!("step {done}/{steps}")];
    if let Some(step) = &history.last_step {
        values.push(format!("loss {}", format_loss(step.loss)));
    }
    values.extend(token_rate(history).map(format_token_rate));
    let flops = history.throughput(|step| step.flops_per_second);
    values.extend(flops.map(|flops| format_flops(flops, history.about.gemm_flops_per_second)));
    let memory = history.last_step.as_ref().and_then(|step| step.gpu_memory);
    values.extend(memory.map(format_gpu_memory));
    values.extend(history.eta(now).map(|eta| format!("eta {}", format_duration(eta))));
    values.join(VALUE_GAP) + "\n"
}

/// The summary at the end of a run, wrapped to `width`, and the command to run next.
pub fn summary(summary: &Summary, about: &RunInfo, width: usize) -> String {
    let (style, outcome) = match summary.reason {
        EndReason::Completed => (GOOD, "done"),
        EndReason::Interrupted if summary.checkpoint == Some(summary.step) => {
            (WARNING, "interrupted; checkpoint saved")
        }
        EndReason::Interrupted => (WARNING, "interrupted; no checkpoint saved"),
    };
    let folder = format!(
        "{DIM}run folder: {}{DIM:#}\n{}",
        sanitize(&summary.folder),
        next_command(summary, about)
    );
    // Without a step in this launch there is no loss.
    if summary.loss.is_nan() {
        let step = summary.step;
        return format!("{style}{outcome}{style:#}: already at step {step}\n{folder}");
    }
    let mut time = format_elapsed(summary.seconds);
    if summary.stopped_seconds > 0.0 {
        time.push_str(&format!(" (stopped for {})", format_elapsed(summary.stopped_seconds)));
    }
    let mut values = vec![
        format!("{outcome}: {} in {time}", steps_done(summary)),
        format!("loss {}", format_loss(summary.loss)),
    ];
    values.extend(summary.val_loss.map(|loss| format!("val {}", format_loss(loss))));
    values.push(format_token_rate(summary.tokens_per_second));
    values.push(format_flops(summary.flops_per_second, summary.gemm_flops_per_second));
    let text = wrap(&values, ", ", width.saturating_sub(1)).join(",\n");
    let text = text.replacen(outcome, &format!("{style}{outcome}{style:#}"), 1);
    format!("{text}\n{}{folder}", usage::tables(summary))
}

/// What to run with the checkpoint of a run, if it has one.
fn next_command(summary: &Summary, about: &RunInfo) -> String {
    match (summary.checkpoint, summary.reason) {
        (None, _) => String::new(),
        (_, EndReason::Completed) => {
            format!("generate text: regatta generate {}\n", quote(&sanitize(&summary.folder)))
        }
        (_, EndReason::Interrupted) => format!("resume: {}\n", resume_command(about)),
    }
}

/// The command that resumes a run. In an allocation, its nodes determine the number of ranks.
pub fn resume_command(about: &RunInfo) -> String {
    let ranks = match (about.hosts, about.ranks) {
        (0 | 1, ranks @ 2..) => format!(" -n {ranks}"),
        _ => String::new(),
    };
    format!("regatta train --resume {}{ranks}", quote(&sanitize(&about.folder)))
}

/// The steps of this launch: `300 steps`, or after a resume `300 steps (301 to 600)`.
fn steps_done(summary: &Summary) -> String {
    let Summary { start_step, step, .. } = *summary;
    let count = usize::try_from(step.saturating_sub(start_step)).unwrap_or(usize::MAX);
    let range = match start_step {
        0 => String::new(),
        _ => format!(" ({} to {step})", start_step + 1),
    };
    pluralize(count, "step") + &range
}

/// `157 GFLOP/s (40% of GEMM peak)`.
fn format_flops(flops: f64, gemm_flops: f64) -> String {
    let of_peak = gemm_percentage(flops, gemm_flops).map(format_gemm_percentage);
    let of_peak = of_peak.map_or_else(String::new, |text| format!(" ({text})"));
    format_si_unit(flops, "FLOP/s") + &of_peak
}

/// A text sampled from the model, which may contain any characters.
pub fn sample(text: &str) -> String {
    let lines: Vec<String> = text.trim_matches('\n').lines().map(sanitize).collect();
    format!("{BOLD}sample:{BOLD:#}\n{}\n", lines.join("\n"))
}
