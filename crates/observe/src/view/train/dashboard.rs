//! The dashboard of a run, for a terminal of any size.

use anstyle::{AnsiColor, Style};
use regatta_draw::bar;
use regatta_draw::layout::{Content, Section, stack};
use regatta_draw::line::{BOLD, DIM, PLAIN, StyledLine, WARNING, flow};
use regatta_draw::screen::TerminalSize;
use regatta_draw::terminal_plot::{Layer, TerminalPlot};
use regatta_draw::text::{sanitize, to_ascii, truncate, wrap};
use regatta_model::run_folder::GpuMemory;
use regatta_model::train_event::RunInfo;
use regatta_model::units::{
    format_count, format_duration, format_elapsed, format_loss, format_memory, format_params,
    format_si, format_si_unit, format_time, format_token_rate, pluralize,
};

use super::history::{PHASES, RunHistory};

/// Minimum rows of the loss plot, including its x-axis.
const MIN_PLOT_ROWS: usize = 5;
/// Minimum width of a terminal for the dashboard.
const MIN_WIDTH: usize = 40;
/// Separator of items in header and footer.
pub(super) const ITEM_GAP: &str = "   ";
/// Separator of values.
pub(super) const VALUE_GAP: &str = "  ";

/// Pattern and style of each phase of a step. Patterns differ, for terminals without colours.
const PHASE_STYLES: [(char, Style); PHASES] = [
    ('░', AnsiColor::White.on_default()),
    ('▓', AnsiColor::Cyan.on_default()),
    ('█', AnsiColor::Blue.on_default()),
    ('▒', AnsiColor::Red.on_default()),
    ('▚', AnsiColor::Green.on_default()),
    ('▞', AnsiColor::Magenta.on_default()),
    ('·', Style::new().dimmed()),
];

/// Style of training losses.
const TRAIN_STYLE: Style = AnsiColor::Cyan.on_default();
/// Style and marker of validation losses.
const VAL_STYLE: Style = AnsiColor::Yellow.on_default().bold();
const VAL_MARKER: char = 'o';

/// Renders the dashboard. It never exceeds the terminal: in a low one, metrics take precedence over
/// the loss plot, and the plot over step times, header and footer; in a narrow one, it is a single line.
pub fn render(history: &RunHistory, size: TerminalSize, now: f64) -> Vec<StyledLine> {
    // The last column stays empty, because terminals differ in whether a full line wraps.
    let width = size.width.saturating_sub(1);
    if size.width < MIN_WIDTH {
        let loss = history.last_step.as_ref().map(|step| format_loss(step.loss));
        let loss = loss.map_or_else(String::new, |loss| format!("{VALUE_GAP}loss {loss}"));
        return vec![fit(&(progress_text(history, now) + &loss), PLAIN, width)];
    }
    let styled = |lines: Vec<String>, style: Style| {
        Content::Lines(lines.iter().map(|line| fit(line.trim_end(), style, width)).collect())
    };
    let mut metrics = vec![progress_bar(history, width, now)];
    metrics.extend(wrap(&current_metrics(history), VALUE_GAP, width));
    let plot = |rows: usize| draw_losses(history, width, rows);
    let min_plot = if history.train_losses.points().is_empty() { 0 } else { MIN_PLOT_ROWS };
    let sections = vec![
        Section { order: 3, content: styled(header(&history.about, width), BOLD) },
        Section { order: 0, content: styled(metrics, PLAIN) },
        Section { order: 1, content: Content::Fill(min_plot, &plot) },
        Section { order: 2, content: Content::Lines(step_times(history, width)) },
        Section { order: 4, content: Content::Lines(vec![footer(history, width)]) },
    ];
    stack(sections, size.height.saturating_sub(1).max(1))
}

/// The plot of the losses over the steps of the run.
fn draw_losses(history: &RunHistory, width: usize, rows: usize) -> Vec<StyledLine> {
    let train = Layer { points: history.train_losses.points(), style: TRAIN_STYLE, marker: None };
    let points = history.val_losses.points();
    let val = Layer { points, style: VAL_STYLE, marker: Some(VAL_MARKER) };
    TerminalPlot { layers: &[train, val], x_max: history.steps() as f64 }.draw(width, rows)
}

/// Truncates a line.
fn fit(line: &str, style: Style, width: usize) -> StyledLine {
    StyledLine::new(truncate(line, width, '…'), style)
}

/// A name from outside, safe to print.
fn name(text: &str) -> String {
    to_ascii(&sanitize(text))
}

pub(super) fn header(about: &RunInfo, width: usize) -> Vec<String> {
    let ranks = match about.hosts {
        0 | 1 => pluralize(about.ranks, "rank"),
        hosts => format!("{} on {hosts} hosts", pluralize(about.ranks, "rank")),
    };
    let ranks = match about.mesh.as_str() {
        "" => ranks,
        layout => format!("{ranks} ({})", name(layout)),
    };
    let per_rank = if about.ranks == 1 { "" } else { " per rank" };
    let mut items = vec![
        format!("{}, {} parameters", name(&about.model), format_params(about.parameters as f64)),
        match about.threads {
            0 => ranks,
            threads => format!("{ranks}, {}{per_rank}", pluralize(threads, "thread")),
        },
        format!("{} ({})", name(&about.precision), name(&about.kernels)),
        format!("{}, {} tokens", name(&about.data), format_count(about.data_tokens as f64)),
    ];
    if about.micro_batch_auto {
        items.push(format!("micro-batch {} (auto)", about.micro_batch));
    }
    wrap(&items, ITEM_GAP, width)
}

/// Steps done, or the step in progress, and the ETA.
fn progress_text(history: &RunHistory, now: f64) -> String {
    let (done, steps) = (history.done().min(history.steps()), history.steps());
    let eta = match (&history.summary, history.eta(now)) {
        (Some(summary), _) => format!("took {}", format_elapsed(summary.seconds)),
        (None, Some(eta)) => format!("eta {}", format_duration(eta)),
        (None, None) => estimate(&history.about).unwrap_or_else(|| "starting".to_owned()),
    };
    match step_progress(history, now) {
        Some(progress) => format!("{progress}  {eta}"),
        None => {
            let percentage = (100.0 * done as f64 / steps as f64).floor();
            format!("step {done}/{steps}  {percentage:.0}%  {eta}")
        }
    }
}

/// The progress bar, with its text.
fn progress_bar(history: &RunHistory, width: usize, now: f64) -> String {
    let text = progress_text(history, now);
    let steps = history.steps();
    let bar_width = |text: &str| width.saturating_sub(text.chars().count() + 2);
    // Sized for the longest text if possible, so that the bar does not change with the ETA.
    let longest = format!("step {steps}/{steps}  100%  eta 59 min 59 s");
    let (usual, now) = (bar_width(&longest), bar_width(&text));
    let bar_width = [usual.min(now), now].into_iter().find(|width| *width >= 8);
    let Some(bar_width) = bar_width else { return text };
    let done = history.done().min(steps);
    format!("{}  {text}", bar::progress(done as usize, steps as usize, bar_width))
}

/// The step in progress, if it takes long: `step 1/1000  micro-batch 12/480`, or its time if it has one
/// micro-batch only.
pub(super) fn step_progress(history: &RunHistory, now: f64) -> Option<String> {
    let (done, micro_batches) = history.micro_batch?;
    let progress = match micro_batches {
        1 => format!("running for {}", format_duration(history.step_elapsed(now).floor())),
        _ => format!("micro-batch {done}/{micro_batches}"),
    };
    Some(format!("step {}/{}  {progress}", history.done() + 1, history.steps()))
}

/// The estimated time of the run, before its first step is measured.
pub(super) fn estimate(about: &RunInfo) -> Option<String> {
    let seconds = about.estimated_seconds;
    (seconds > 0.0).then(|| format!("about {} (estimate)", format_duration(seconds)))
}

/// `40% of GEMM peak`.
pub(super) fn format_gemm_percentage(percentage: f64) -> String {
    format!("{percentage:.0}% of GEMM peak")
}

/// The current metrics, padded to their usual width so that the layout does not change with their
/// digits.
fn current_metrics(history: &RunHistory) -> Vec<String> {
    let Some(step) = &history.last_step else { return Vec::new() };
    let flops = history.throughput(|step| step.flops_per_second).unwrap_or(0.0);
    let mut metrics = vec![format!("loss {:<6}", format_loss(step.loss))];
    metrics.extend(history.val_loss.map(|loss| format!("val {:<6}", format_loss(loss))));
    metrics.push(format!("grad norm {:<4}", format_si(step.grad_norm)));
    metrics.push(format!("lr {:<7}", format!("{:.2e}", step.lr)));
    metrics.push(format!("{:<11}", format_token_rate(token_rate(history).unwrap_or(0.0))));
    metrics.push(format!("{:<12}", format_si_unit(flops, "FLOP/s")));
    metrics.extend(history.gemm_percentage().map(format_gemm_percentage));
    metrics.extend(step.gpu_memory.map(format_gpu_memory));
    metrics
}

/// `62.3 GiB of 139.8 GiB memory`.
pub(super) fn format_gpu_memory(GpuMemory { peak, total }: GpuMemory) -> String {
    format!("{} of {} memory", format_memory(peak), format_memory(total))
}

pub(super) fn token_rate(history: &RunHistory) -> Option<f64> {
    history.throughput(|step| step.tokens_per_second)
}

/// The step time as a bar of its phases, with a legend.
fn step_times(history: &RunHistory, width: usize) -> Vec<StyledLine> {
    let times = history.step_times();
    let phases = times.phases();
    let sum: f64 = phases.iter().map(|(_, seconds)| seconds).sum();
    if sum <= 0.0 || !sum.is_finite() {
        return Vec::new();
    }
    let parts = PHASE_STYLES.into_iter().zip(phases);
    let parts: Vec<_> = parts.map(|((pattern, style), (_, s))| (pattern, style, s)).collect();
    let mut bar = StyledLine::new(format!("{}/step ", format_time(times.step)), PLAIN);
    bar.append(bar::stacked(&parts, width.saturating_sub(bar.width())));
    let shown = parts.iter().zip(phases).zip(history.visible_phases).filter(|(_, shown)| *shown);
    let entries = shown.map(|(((pattern, style, seconds), (phase, _)), _)| {
        // Communication overlapped with computation takes no step time.
        let exposed = if phase == "communication" { "exposed " } else { "" };
        let mut entry = StyledLine::new(*pattern, *style);
        entry.push(format!(" {exposed}{phase} {:>2.0}%", seconds / sum * 100.0), PLAIN);
        entry
    });
    let mut lines = flow(entries, VALUE_GAP.len(), width);
    lines.iter_mut().for_each(|line| line.truncate(width, '…'));
    lines.insert(0, bar);
    lines
}

/// Legend of the plot, last checkpoint and run folder; after a signal, what it does.
fn footer(history: &RunHistory, width: usize) -> StyledLine {
    if let Some(note) = history.signal_note.as_ref().filter(|_| history.summary.is_none()) {
        return fit(note, WARNING, width);
    }
    let mut text = format!("⠒ train  {VAL_MARKER} val");
    if let Some(step) = history.checkpoint {
        text.push_str(&format!("{ITEM_GAP}checkpoint at step {step}"));
    }
    text.push_str(&format!("{ITEM_GAP}{}", name(&history.about.folder)));
    fit(&text, DIM, width)
}
