//! Text for a terminal.

use std::fmt::Write;

use regatta_draw::text::wrap;

use super::{Span, Timeline, has_virtual_stages, labels, passes};

/// Minimum width.
const MIN_WIDTH: usize = 40;
/// Width of the idle percentage at the end of a row.
const TAIL: usize = 5;

/// Length of a mean action in a drawing that shows only the start and the end, over that of a label: forward
/// passes are shorter.
const CUT_LABELS: f64 = 1.5;
/// Where a drawing omits the middle of the step.
const CUT: &str = " // ";

/// Renders a timeline in `width` columns, at least 40: one row per stage, dots where it idles, its idle
/// percentage at the end, and a legend below. If the actions would be narrower than a column, only the start
/// and the end of the step are drawn.
pub fn text(timeline: &Timeline, width: usize) -> String {
    let stages = timeline.ranks.len();
    let name = |stage: usize| format!("stage {stage} ");
    let margin = name(stages.saturating_sub(1)).len();
    let columns = width.max(MIN_WIDTH).saturating_sub(margin + TAIL).max(1);
    let (scale, is_cut) = columns_per_unit(timeline, columns);
    let mut text = String::new();
    for stage in 0..stages {
        let (mut cells, idle) = (row(timeline, stage, scale), 100.0 * timeline.idle(stage));
        if is_cut {
            let half = columns.saturating_sub(CUT.len()) / 2;
            cells.replace_range(half..cells.len() - half, CUT);
        }
        // Writing to a String is infallible.
        let _ = writeln!(text, "{:margin$}{cells}{idle:>4.0}%", name(stage));
    }
    let names = passes(timeline).into_iter();
    let names = names.map(|(pass, name)| format!("{} {name},", pass.letter()));
    let names: Vec<String> =
        names.chain([". idle (end of row: % of the step)".to_owned()]).collect();
    wrap(&names, " ", width.max(MIN_WIDTH)).iter().for_each(|line| text += &format!("{line}\n"));
    if is_cut {
        let _ = writeln!(text, "{} omitted: the middle of the step", CUT.trim());
    }
    text
}

/// Columns per unit of time, and whether the timeline is then wider than `columns`: as many columns as fit,
/// and if possible whole ones for the shortest action, so that equal cells look equal.
fn columns_per_unit(timeline: &Timeline, columns: usize) -> (f64, bool) {
    if timeline.total <= 0.0 {
        return (0.0, false);
    }
    let max = columns as f64 / timeline.total;
    let lengths = timeline.ranks.iter().flatten().map(|span| span.end - span.start);
    let lengths: Vec<f64> = lengths.filter(|length| *length > 0.0).collect();
    let shortest = lengths.iter().copied().fold(f64::INFINITY, f64::min);
    // Tolerates rounding errors.
    let shortest_columns = (max * shortest + 1e-9).floor();
    if shortest_columns >= 1.0 {
        return (shortest_columns / shortest, false);
    }
    let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
    let micro_batches = timeline.ranks.iter().flatten().map(|span| span.action.micro_batch);
    let label = format!("F{}", micro_batches.max().unwrap_or(0)).len();
    let cut = CUT_LABELS * label as f64 / mean;
    // Actions of very different lengths may fit at this scale, except for the shortest ones.
    if cut > max { (cut, true) } else { (max, false) }
}

/// The cells of a stage; letters only, if most micro-batch numbers do not fit.
fn row(timeline: &Timeline, stage: usize, scale: f64) -> String {
    let (stages, show_chunk) = (timeline.ranks.len(), has_virtual_stages(timeline));
    let column = |time: f64| (time * scale).round() as usize;
    let columns = |span: &Span| column(span.start)..column(span.end);
    let spans = &timeline.ranks[stage];
    let fits = |span: &&Span| labels(span, stages, show_chunk)[1].len() <= columns(span).len();
    let numbered = 2 * spans.iter().filter(fits).count() >= spans.len();
    let mut cells = vec!['.'; column(timeline.total)];
    for span in spans {
        let cell = &mut cells[columns(span)];
        let labels = labels(span, stages, show_chunk);
        match labels.iter().find(|label| label.len() <= cell.len()).filter(|_| numbered) {
            Some(label) => {
                let padded = label.chars().chain(std::iter::repeat(' '));
                cell.iter_mut().zip(padded).for_each(|(cell, letter)| *cell = letter);
            }
            None => cell.fill(span.action.computation.letter()),
        }
    }
    cells.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::ScheduleKind::{self, GPipe, Interleaved, OneFOneB, ZeroBubble};
    use super::super::super::{ChunkCosts, Schedule, simulate};
    use super::*;

    fn render(kind: ScheduleKind, size: (usize, usize, usize), width: usize) -> String {
        let schedule = Schedule::new(kind, size.0, size.1, size.2).unwrap();
        let costs = ChunkCosts::equal_thirds(&vec![3.0; schedule.num_chunks()]);
        text(&simulate(&schedule, &costs).unwrap(), width)
    }

    #[test]
    fn timelines_match_the_golden_texts() {
        let expected = "\
stage 0 F0F1F2............B0  B1  B2    40%
stage 1 ..F0F1F2......B0  B1  B2  ....  40%
stage 2 ....F0F1F2B0  B1  B2  ........  40%
F forward, B backward,
. idle (end of row: % of the step)
";
        assert_eq!(render(GPipe, (3, 1, 3), 50), expected);
        let expected = "\
stage 0 F0 F1 F2 F3 ..................B0    F4 B1    F5 B2    ...B3    ...B4    ...B5      33%
stage 1 ...F0 F1 F2 ............B0    F3 B1    F4 B2    F5 B3    ...B4    ...B5    ......  33%
stage 2 ......F0 F1 ......B0    F2 B1    F3 B2    F4 B3    F5 B4    ...B5    ............  33%
stage 3 .........F0 B0    F1 B1    F2 B2    F3 B3    F4 B4    F5 B5    ..................  33%
F forward, B backward, . idle (end of row: % of the step)
";
        assert_eq!(render(OneFOneB, (4, 1, 6), 100), expected);
        // Virtual stages are lettered.
        let expected = "\
stage 0 F0aF1aF0bF1bF2a...B0b   F3aB1b   F2bB0a   F3bB1a   ...B2b   ...B3b   B2a   B3a     11%
stage 1 ...F0aF1aF0bB0b   F1bB1b   F2aB0a   F3aB1a   F2bB2b   F3bB3b   B2a   B3a   ......  11%
F forward, B backward, . idle (end of row: % of the step)
";
        assert_eq!(render(Interleaved, (2, 2, 4), 100), expected);
        // Weight gradients fill the bubble.
        let expected = "\
stage 0 F0 F1 F2 F3 .........B0    F4 B1    F5 B2    B3    B4    B5      14%
stage 1 ...F0 F1 F2 ......I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5   14%
stage 2 ......F0 F1 ...I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5   14%
stage 3 .........F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5   14%
F forward, B backward, I input gradients, W weight gradients,
. idle (end of row: % of the step)
";
        assert_eq!(render(ZeroBubble, (4, 1, 6), 80), expected);
        // Without room for a column per action, the start and the end of the step, not an aliased picture.
        let expected = "\
stage 0 F0 F1 F2 F3 //   ...B11     20%
stage 1 ...F0 F1 F2 // 11   ......  20%
stage 2 ......F0 F1 // ...........  20%
stage 3 .........F0 // ...........  20%
F forward, B backward,
. idle (end of row: % of the step)
// omitted: the middle of the step
";
        assert_eq!(render(OneFOneB, (4, 1, 12), 30), expected);
        let long = render(OneFOneB, (2, 1, 256), 80);
        assert!(long.starts_with("stage 0 F0  F1  ........B0      F2  B1"), "{long}");
        assert!(long.contains("B254    ....B255") && long.contains("\n// omitted"), "{long}");
    }

    proptest! {
        #[test]
        fn no_line_is_longer_than_the_width(
            stages in 1usize..12, micro_batches in 1usize..30, width in 0usize..200,
            costs in prop::collection::vec(0f64..9.0, 12), message in 0f64..2.0,
        ) {
            let schedule = Schedule::new(ZeroBubble, stages, 1, micro_batches).unwrap();
            let costs = ChunkCosts { message, ..ChunkCosts::equal_thirds(&costs[..stages]) };
            let text = text(&simulate(&schedule, &costs).unwrap(), width);
            prop_assert!(text.lines().all(|line| line.len() <= width.max(MIN_WIDTH)), "{}", text);
            prop_assert!(text.lines().count() > stages);
        }
    }
}
