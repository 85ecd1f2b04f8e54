//! The display of a run as lines of text, for a terminal of any size. No I/O.

use anstyle::{AnsiColor, Style};
use regatta_train::metrics::{About, Ended, StepMetrics, Summary};

use super::curve::{self, Curve, MARK};
use super::figures::{duration, loss, parameters, short, si, with_unit};
use super::watch::Watch;
use crate::cli::{FAINT, GOOD, HEADING, WARNING};
use crate::draw::text::{cut, one_column, plural, printable, wrap};
use crate::table;

/// Rows of the curve, its axis included.
const CURVE_ROWS: std::ops::RangeInclusive<usize> = 4..=13;
/// The widest that bars and curve become: more is hard to look at.
const WIDEST: usize = 120;
/// Between figures of a line.
const GAP: &str = "   ";

/// How each part of a step is drawn; without colours by its pattern.
const PARTS: [(char, Style); 7] = [
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

/// The display: never wider or higher than the terminal.
pub fn frame(watch: &Watch, size: Size, now: f64) -> Vec<String> {
    // The last column stays empty: a full line may or may not begin the next.
    let width = size.width.saturating_sub(1).clamp(20, WIDEST);
    let rows = size.height.saturating_sub(1).max(1);
    let header = header(&watch.about, width);
    let mut figures = vec![progress(watch, width, now)];
    figures.extend(wrap(&readings(watch), GAP, width));
    let times = times(watch, width);
    let footer = vec![footer(watch, width)];
    let used = header.len() + figures.len() + times.len() + footer.len();
    if used > rows {
        figures.truncate(rows);
        return figures.iter().map(|line| fit(line, width)).collect();
    }
    let curve = Curve {
        training: watch.training.points(),
        validation: watch.validations.points(),
        steps: watch.steps() as f64,
    };
    let left = (rows - used).min(*CURVE_ROWS.end());
    let curve = match CURVE_ROWS.contains(&left) {
        true => curve::draw(&curve, width, left),
        false => Vec::new(),
    };
    let title = |line: &String| format!("{HEADING}{}{HEADING:#}", fit(line, width));
    let mut lines: Vec<String> = header.iter().map(title).collect();
    lines.extend(figures.iter().map(|line| fit(line, width)));
    lines.extend(curve);
    lines.extend(times);
    lines.extend(footer);
    lines
}

/// A plain line, cut to a width. Colours may be around it, not in it.
fn fit(line: &str, width: usize) -> String {
    cut(line, width, '…')
}

/// A foreign name that cannot harm the display.
fn name(text: &str) -> String {
    one_column(&printable(text))
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
    let parts = [
        format!("{} with {} parameters", name(&about.model), parameters(about.parameters as f64)),
        format!("{ranks}, {} each", plural(about.threads, "thread")),
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
    let room = width.saturating_sub(text.chars().count() + 2).min(50);
    if room < 8 {
        return text;
    }
    let full = (share * room as f64).floor() as usize;
    format!("{}{}  {text}", "█".repeat(full), "░".repeat(room - full))
}

/// The figures of now.
fn readings(watch: &Watch) -> Vec<String> {
    let Some(step) = &watch.latest else { return Vec::new() };
    let mut all = vec![format!("loss {}", loss(step.loss))];
    all.extend(watch.validation.map(|value| format!("validation {}", loss(value))));
    all.push(format!("gradient {}", si(step.gradient_norm)));
    all.push(format!("rate {:.2e}", step.rate));
    all.push(format!("{} tokens/s", si(tokens_per_second(watch).unwrap_or(0.0))));
    let flops = watch.speed(|step| step.flops_per_second).unwrap_or(0.0);
    all.push(with_unit(flops, "FLOP/s"));
    all.push(format!("counted as {}", printable(&watch.about.flops_formula)));
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
    for ((part, seconds), (pattern, style)) in parts.iter().zip(PARTS) {
        behind += seconds;
        // The ends are rounded, not the lengths, which then are as long as the bar.
        let end = (behind / sum * room as f64).round() as usize;
        let piece = pattern.to_string().repeat(end.saturating_sub(drawn));
        bar.push_str(&format!("{style}{piece}{style:#}"));
        drawn = end.max(drawn);
        let percent = seconds / sum * 100.0;
        if percent >= 0.5 {
            // What nothing hides: the rest of it costs no time.
            let exposed = if *part == "communication" { "exposed " } else { "" };
            legend.push(format!("{pattern} {exposed}{part} {percent:.0}%"));
        }
    }
    let mut lines = vec![bar];
    lines.extend(wrap(&legend, "  ", width).iter().map(|line| keyed(&fit(line, width))));
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
    text.push_str(&format!("{GAP}{}", printable(&watch.about.folder)));
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

/// What is said when it is over.
pub fn closing(summary: &Summary) -> String {
    let (style, ended) = match summary.ended {
        Ended::Done => (GOOD, "done"),
        Ended::Interrupted => (WARNING, "stopped, and kept"),
    };
    let folder = format!("{FAINT}run folder: {}{FAINT:#}\n", printable(&summary.folder));
    let steps = plural(usize::try_from(summary.step).unwrap_or(usize::MAX), "step");
    // No step, no loss.
    if summary.loss.is_nan() {
        return format!("{style}{ended}{style:#}: {steps} before, none now\n{folder}");
    }
    let mut text = format!(
        "{style}{ended}{style:#}: {steps} in {}, loss {}",
        duration(summary.seconds),
        loss(summary.loss)
    );
    if let Some(value) = summary.validation_loss {
        text.push_str(&format!(", validation {}", loss(value)));
    }
    text.push_str(&format!(
        ", {} tokens/s, {}\n{}{folder}",
        si(summary.tokens_per_second),
        with_unit(summary.flops_per_second, "FLOP/s"),
        shared(summary),
    ));
    text
}

/// What rank 0 held, sent, read and wrote where ranks share the work or state is on disk, beside what
/// was expected of it.
fn shared(summary: &Summary) -> String {
    if summary.sent.is_empty() && summary.moved.is_empty() {
        return String::new();
    }
    let row = |what: String, expected: u64, measured: u64| {
        vec![what, with_unit(expected as f64, "B"), with_unit(measured as f64, "B")]
    };
    let held = summary.held.iter().map(|of| row(of.what.clone(), of.expected, of.measured));
    let sent = summary.sent.iter();
    let sent = sent.map(|on| row(format!("sent a step, {}", on.axis), on.expected, on.measured));
    let moved = summary.moved.iter();
    let moved = moved.map(|of| row(format!("{} a step", of.what), of.expected, of.measured));
    let header = ["rank 0 held", "expected", "measured"];
    let lines = table::table(&header, &held.chain(sent).chain(moved).collect::<Vec<_>>());
    format!("{FAINT}{}{FAINT:#}\n", lines.join("\n"))
}

/// A text of the model's, which may be anything.
pub fn sample(text: &str) -> String {
    let lines: Vec<String> = text.trim_end().lines().map(printable).collect();
    format!("{HEADING}what it writes now:{HEADING:#}\n{}\n", lines.join("\n"))
}
