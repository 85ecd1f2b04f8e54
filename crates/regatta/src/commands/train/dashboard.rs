//! The display of a run as lines of text, for a terminal of any size. No I/O.

use anstyle::{AnsiColor, Style};
use regatta_train::metrics::{About, Ended, StepMetrics, Summary};

use super::bytes;
use super::curve::{self, Curve, MARK};
use super::figures::{duration, loss, parameters, short, si, with_unit};
use super::watch::{self, Watch};
use crate::cli::{FAINT, GOOD, HEADING, WARNING};
use crate::draw::text::{plural, sanitize, to_ascii, truncate, wrap};

/// Rows of the curve, its axis included.
const CURVE_ROWS: std::ops::RangeInclusive<usize> = 4..=13;
/// The widest that bars and curve become: more is hard to look at.
const WIDEST: usize = 120;
/// Between what a line has of different things.
const GAP: &str = "   ";
/// Between figures.
const FIGURES_GAP: &str = "  ";

/// How each part of a step is drawn; without colours by its pattern.
const PARTS: [(char, Style); watch::PARTS] = [
    ('░', AnsiColor::White.on_default()),
    ('▓', AnsiColor::Cyan.on_default()),
    ('█', AnsiColor::Blue.on_default()),
    ('▒', AnsiColor::Red.on_default()),
    ('▚', AnsiColor::Green.on_default()),
    ('▞', AnsiColor::Magenta.on_default()),
    ('·', Style::new().dimmed()),
];

/// A terminal's size, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// The display: never wider or higher than the terminal. Where there is no room for all of it, the
/// figures come first, then the curve, then where the time goes.
pub fn frame(watch: &Watch, size: Size, now: f64) -> Vec<String> {
    // The last column stays empty: a full line may or may not begin the next.
    let width = size.width.saturating_sub(1).clamp(20, WIDEST);
    let rows = size.height.saturating_sub(1).max(1);
    let mut figures = vec![progress(watch, width, now)];
    figures.extend(wrap(&readings(watch), FIGURES_GAP, width));
    figures.truncate(rows);
    let mut left = rows - figures.len();
    let least = if watch.training.points().is_empty() { 0 } else { *CURVE_ROWS.start() };
    let for_curve = if left >= least { least } else { 0 };
    left -= for_curve;
    let mut if_room = |lines: Vec<String>| match left.checked_sub(lines.len()) {
        Some(rest) => {
            left = rest;
            lines
        }
        None => Vec::new(),
    };
    let times = if_room(times(watch, width));
    let header = if_room(header(&watch.about, width));
    let footer = if_room(vec![footer(watch, width)]);
    let curve = Curve {
        training: watch.training.points(),
        validation: watch.validations.points(),
        steps: watch.steps() as f64,
    };
    let curve = match for_curve {
        0 => Vec::new(),
        rows => curve::draw(&curve, width, (rows + left).min(*CURVE_ROWS.end())),
    };
    let title = |line: &String| format!("{HEADING}{}{HEADING:#}", fit(line, width));
    let mut lines: Vec<String> = header.iter().map(title).collect();
    lines.extend(figures.iter().map(|line| fit(line.trim_end(), width)));
    lines.extend(curve);
    lines.extend(times);
    lines.extend(footer);
    lines
}

/// A plain line, cut to a width. Colours may be around it, not in it.
fn fit(line: &str, width: usize) -> String {
    truncate(line, width, '…')
}

/// A foreign name that cannot harm the display.
fn name(text: &str) -> String {
    to_ascii(&sanitize(text))
}

fn header(about: &About, width: usize) -> Vec<String> {
    let ranks = match about.hosts {
        0 | 1 => plural(about.ranks, "rank"),
        hosts => format!("{} on {hosts} hosts", plural(about.ranks, "rank")),
    };
    let ranks = match about.split.as_str() {
        "" => ranks,
        split => format!("{ranks} ({})", name(split)),
    };
    let each = if about.ranks == 1 { "" } else { " each" };
    let parts = [
        format!("{} with {} parameters", name(&about.model), parameters(about.parameters as f64)),
        format!("{ranks}, {}{each}", plural(about.threads, "thread")),
        format!("{} ({})", name(&about.precision), name(&about.kernels)),
        format!("{}, {} tokens", name(&about.data), si(about.data_tokens as f64)),
    ];
    wrap(&parts, GAP, width)
}

/// The bar of steps, with the time left.
fn progress(watch: &Watch, width: usize, now: f64) -> String {
    let (done, steps) = (watch.done().min(watch.steps()), watch.steps());
    let left = match (&watch.ended, watch.left(now)) {
        (Some(summary), _) => format!("took {}", duration(summary.seconds)),
        (None, Some(left)) => format!("{} left", duration(left)),
        (None, None) => "starting".to_owned(),
    };
    let share = done as f64 / steps as f64;
    let text = format!("step {done}/{steps}  {:.0}%  {left}", (share * 100.0).floor());
    let room = |text: &str| width.saturating_sub(text.chars().count() + 2).min(50);
    // As long as beside the longest text, if that is anything: the time left has more or fewer words.
    let longest = format!("step {steps}/{steps}  100%  59 min 59 s left");
    let room = [room(&longest), room(&text)].into_iter().find(|room| *room >= 8);
    let Some(room) = room else { return text };
    let full = (share * room as f64).floor() as usize;
    format!("{}{}  {text}", "█".repeat(full), "░".repeat(room - full))
}

/// The figures of now, each as wide as it usually gets: lines must not be broken elsewhere, nor
/// figures move, whenever one has a digit more.
fn readings(watch: &Watch) -> Vec<String> {
    let Some(step) = &watch.latest else { return Vec::new() };
    let speed = tokens_per_second(watch).unwrap_or(0.0);
    let flops = watch.speed(|step| step.flops_per_second).unwrap_or(0.0);
    let mut all = vec![format!("loss {:<6}", loss(step.loss))];
    all.extend(watch.validation.map(|value| format!("validation {:<6}", loss(value))));
    all.push(format!("gradient {:<4}", si(step.gradient_norm)));
    all.push(format!("rate {:<7}", format!("{:.2e}", step.rate)));
    all.push(format!("{:<15}", format!("{} tokens/s", si(speed))));
    all.push(format!("{:<12}", with_unit(flops, "FLOP/s")));
    all.push(format!("counted as {}", sanitize(&watch.about.flops_formula)));
    all
}

fn tokens_per_second(watch: &Watch) -> Option<f64> {
    watch.speed(|step: &StepMetrics| step.tokens_per_second)
}

/// Where a step's time goes: a bar, and what it means.
fn times(watch: &Watch, width: usize) -> Vec<String> {
    let seconds = watch.seconds();
    let parts = seconds.parts();
    let sum: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    if sum <= 0.0 || !sum.is_finite() {
        return Vec::new();
    }
    let label = format!("{} a step ", short(seconds.step));
    let room = width.saturating_sub(label.chars().count()).min(60);
    let mut bar = label;
    let (mut behind, mut drawn) = (0.0, 0);
    let mut legend = Vec::new();
    let drawn_as = PARTS.into_iter().zip(watch.notable);
    for ((part, seconds), ((pattern, style), is_notable)) in parts.iter().zip(drawn_as) {
        behind += seconds;
        // The ends are rounded, not the lengths, which then are as long as the bar.
        let end = (behind / sum * room as f64).round() as usize;
        let piece = pattern.to_string().repeat(end.saturating_sub(drawn));
        bar.push_str(&format!("{style}{piece}{style:#}"));
        drawn = end.max(drawn);
        let percent = seconds / sum * 100.0;
        if is_notable {
            // What nothing hides: the rest of it costs no time.
            let exposed = if *part == "communication" { "exposed " } else { "" };
            // As wide as it gets: the legend stays where it is.
            legend.push(format!("{pattern} {exposed}{part} {percent:>2.0}%"));
        }
    }
    let mut lines = vec![bar];
    lines.extend(wrap(&legend, FIGURES_GAP, width).iter().map(|line| keyed(&fit(line, width))));
    lines
}

/// A line of the legend with the patterns in their colours.
fn keyed(line: &str) -> String {
    let colour = |line: String, (pattern, style): (char, Style)| {
        line.replace(pattern, &format!("{style}{pattern}{style:#}"))
    };
    PARTS.into_iter().fold(line.to_owned(), colour)
}

/// What the curve shows, and where everything is kept.
fn footer(watch: &Watch, width: usize) -> String {
    let mut text = format!("⠒ training  {MARK} validation");
    if let Some(step) = watch.checkpoint {
        text.push_str(&format!("{GAP}checkpoint of step {step}"));
    }
    text.push_str(&format!("{GAP}{}", name(&watch.about.folder)));
    format!("{FAINT}{}{FAINT:#}", fit(&text, width))
}

/// The first line of a log.
pub fn first_line(about: &About) -> String {
    format!("{}\n", header(about, usize::MAX).join(GAP))
}

/// A line of a log. `validation` is one that no line had yet.
pub fn line(watch: &Watch, validation: Option<f64>, now: f64) -> String {
    let (done, steps) = (watch.done(), watch.steps());
    let mut parts = vec![format!("step {done}/{steps}")];
    if let Some(step) = &watch.latest {
        parts.push(format!("loss {}", loss(step.loss)));
    }
    parts.extend(validation.map(|value| format!("val {}", loss(value))));
    parts.extend(tokens_per_second(watch).map(|speed| format!("{} tokens/s", si(speed))));
    let flops = watch.speed(|step| step.flops_per_second);
    parts.extend(flops.map(|flops| with_unit(flops, "FLOP/s")));
    parts.extend(watch.left(now).map(|left| format!("left {}", duration(left))));
    parts.join("  ") + "\n"
}

/// What is said when it is over, in lines of at most this width.
pub fn closing(summary: &Summary, width: usize) -> String {
    let (style, ended) = match summary.ended {
        Ended::Done => (GOOD, "done"),
        Ended::Interrupted => (WARNING, "stopped, and kept"),
    };
    let folder = format!("{FAINT}run folder: {}{FAINT:#}\n", sanitize(&summary.folder));
    let steps = plural(usize::try_from(summary.step).unwrap_or(usize::MAX), "step");
    // No step, no loss.
    if summary.loss.is_nan() {
        return format!("{style}{ended}{style:#}: {steps} before, none now\n{folder}");
    }
    let mut all = vec![format!("{ended}: {steps} in {}", duration(summary.seconds))];
    all.push(format!("loss {}", loss(summary.loss)));
    all.extend(summary.validation_loss.map(|value| format!("validation {}", loss(value))));
    all.push(format!("{} tokens/s", si(summary.tokens_per_second)));
    all.push(with_unit(summary.flops_per_second, "FLOP/s"));
    let text = wrap(&all, ", ", width.saturating_sub(1)).join(",\n");
    let text = text.replacen(ended, &format!("{style}{ended}{style:#}"), 1);
    format!("{text}\n{}{folder}", bytes::told(summary))
}

/// A text of the model's, which may be anything.
pub fn sample(text: &str) -> String {
    let lines: Vec<String> = text.trim_end().lines().map(sanitize).collect();
    format!("{HEADING}what it writes now:{HEADING:#}\n{}\n", lines.join("\n"))
}
