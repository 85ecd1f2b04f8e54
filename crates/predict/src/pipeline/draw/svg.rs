//! SVG with light and dark colours.

use std::fmt::Write;

use regatta_model::text::escape_xml;

use super::{Span, Timeline, has_virtual_stages, labels, legend};

/// Sizes in user units.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 60.0;
const TOP: f64 = 52.0;
const ROW: f64 = 30.0;
const BAR: f64 = 24.0;
const LEGEND: f64 = 34.0;
/// Approximate width of a character.
const LETTER: f64 = 7.0;

/// Styles, scoped to the class of the drawing.
const STYLE: &str = "\
.regatta-pipeline{font:12px system-ui,sans-serif}\
.regatta-pipeline text{fill:#222}.regatta-pipeline .paper{fill:#fff}\
.regatta-pipeline .title{font-size:16px;font-weight:600}\
.regatta-pipeline .cell{text-anchor:middle}\
.regatta-pipeline rect{stroke:#fff}.regatta-pipeline .idle{fill:#eee}\
.regatta-pipeline .F{fill:#9ecbf2}.regatta-pipeline .B{fill:#f2b98a}\
.regatta-pipeline .I{fill:#f2d98a}.regatta-pipeline .W{fill:#9edcc4}\
@media (prefers-color-scheme:dark){.regatta-pipeline text{fill:#e6e6e6}\
.regatta-pipeline .paper{fill:#161616}.regatta-pipeline rect{stroke:#161616}\
.regatta-pipeline .idle{fill:#2a2a2a}.regatta-pipeline .F{fill:#1f5f94}\
.regatta-pipeline .B{fill:#94531a}.regatta-pipeline .I{fill:#7d6a14}\
.regatta-pipeline .W{fill:#1d6e52}}";

/// Renders a timeline as an SVG file.
pub fn svg(timeline: &Timeline, title: &str) -> String {
    let stages = timeline.ranks.len();
    let height = TOP + ROW * stages as f64 + LEGEND;
    let (title, idle) = (escape_xml(title), 100.0 * timeline.idle_overall());
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"regatta-pipeline\" role=\"img\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<title>{title}</title>\n\
         <desc>Schedule of {stages} pipeline stages over time; {idle:.0} % idle.</desc>\n\
         <style>{STYLE}</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"32\">{title}</text>\n"
    );
    for stage in 0..stages {
        row(&mut text, timeline, stage);
    }
    draw_legend(&mut text, timeline, TOP + ROW * stages as f64);
    text.push_str("</svg>\n");
    text
}

fn row(text: &mut String, timeline: &Timeline, stage: usize) {
    let (top, plot_width) = (TOP + ROW * stage as f64, WIDTH - LEFT - RIGHT);
    let (base, idle) = (top + 16.0, 100.0 * timeline.idle(stage));
    // Writing to a String is infallible.
    let _ = writeln!(
        text,
        "<text x=\"12\" y=\"{base:.1}\">stage {stage}</text>\
         <text x=\"{:.1}\" y=\"{base:.1}\">{idle:.0} % idle</text>\
         <rect class=\"idle\" x=\"{LEFT:.1}\" y=\"{top:.1}\" width=\"{plot_width:.1}\" height=\"{BAR:.1}\"/>",
        WIDTH - RIGHT + 4.0
    );
    let (stages, show_chunk) = (timeline.ranks.len(), has_virtual_stages(timeline));
    for span in timeline.ranks[stage].iter().filter(|span| span.end > span.start) {
        let scale = plot_width / timeline.total;
        let (x, width) = (LEFT + span.start * scale, (span.end - span.start) * scale);
        cell(text, span, (x, top, width), &labels(span, stages, show_chunk));
    }
}

fn cell(text: &mut String, span: &Span, (x, y, width): (f64, f64, f64), labels: &[String]) {
    let class = span.action.computation.letter();
    let _ = write!(
        text,
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR:.1}\"/>"
    );
    if let Some(label) = labels.iter().find(|label| LETTER * label.len() as f64 <= width) {
        let (x, y) = (x + width / 2.0, y + 16.0);
        let _ = write!(text, "<text class=\"cell\" x=\"{x:.1}\" y=\"{y:.1}\">{label}</text>");
    }
    text.push('\n');
}

/// Draws the legend.
fn draw_legend(text: &mut String, timeline: &Timeline, top: f64) {
    let mut x = LEFT;
    let passes = legend(timeline).into_iter();
    let passes = passes.map(|(letter, name)| (letter.to_string(), format!("{letter} {name}")));
    for (class, label) in passes.chain([("idle".to_owned(), "idle".to_owned())]) {
        let (text_x, base) = (x + 18.0, top + 18.0);
        let _ = writeln!(
            text,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"13\" height=\"13\"/>\
             <text x=\"{text_x:.1}\" y=\"{base:.1}\">{label}</text>",
            top + 7.0
        );
        x = text_x + LETTER * label.len() as f64 + 14.0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{ChunkCosts, Schedule, ScheduleKind, simulate};
    use super::*;

    fn render(kind: ScheduleKind, stages: usize, micro_batches: usize, title: &str) -> String {
        let schedule = Schedule::new(kind, stages, 1, micro_batches).unwrap();
        let timeline = simulate(&schedule, &ChunkCosts::equal_thirds(&vec![3.0; stages])).unwrap();
        svg(&timeline, title)
    }

    /// The SVG without its style.
    fn without_style(svg: &str) -> String {
        let (before, rest) = svg.split_once("<style>").unwrap();
        format!("{before}{}", rest.split_once("</style>\n").unwrap().1)
    }

    #[test]
    fn small_schedule_matches_the_golden_svg() {
        let expected = r#"<svg xmlns="http://www.w3.org/2000/svg" class="regatta-pipeline" role="img" viewBox="0 0 900 146">
<title>zero-bubble</title>
<desc>Schedule of 2 pipeline stages over time; 40 % idle.</desc>
<rect class="paper" width="100%" height="100%"/>
<text class="title" x="76" y="32">zero-bubble</text>
<text x="12" y="68.0">stage 0</text><text x="844.0" y="68.0">40 % idle</text><rect class="idle" x="76.0" y="52.0" width="764.0" height="24.0"/>
<rect class="F" x="76.0" y="52.0" width="152.8" height="24.0"/><text class="cell" x="152.4" y="68.0">F0</text>
<rect class="B" x="534.4" y="52.0" width="305.6" height="24.0"/><text class="cell" x="687.2" y="68.0">B0</text>
<text x="12" y="98.0">stage 1</text><text x="844.0" y="98.0">40 % idle</text><rect class="idle" x="76.0" y="82.0" width="764.0" height="24.0"/>
<rect class="F" x="228.8" y="82.0" width="152.8" height="24.0"/><text class="cell" x="305.2" y="98.0">F0</text>
<rect class="I" x="381.6" y="82.0" width="152.8" height="24.0"/><text class="cell" x="458.0" y="98.0">I0</text>
<rect class="W" x="534.4" y="82.0" width="152.8" height="24.0"/><text class="cell" x="610.8" y="98.0">W0</text>
<rect class="F" x="76.0" y="119.0" width="13" height="13"/><text x="94.0" y="130.0">F forward</text>
<rect class="B" x="171.0" y="119.0" width="13" height="13"/><text x="189.0" y="130.0">B backward</text>
<rect class="I" x="273.0" y="119.0" width="13" height="13"/><text x="291.0" y="130.0">I input gradients</text>
<rect class="W" x="424.0" y="119.0" width="13" height="13"/><text x="442.0" y="130.0">W weight gradients</text>
<rect class="idle" x="582.0" y="119.0" width="13" height="13"/><text x="600.0" y="130.0">idle</text>
</svg>
"#;
        assert_eq!(without_style(&render(ScheduleKind::ZeroBubble, 2, 1, "zero-bubble")), expected);
    }

    #[test]
    fn every_action_has_a_cell() {
        let svg = render(ScheduleKind::OneFOneB, 4, 8, "1f1b");
        assert_eq!(svg.matches("class=\"cell\"").count(), 2 * 4 * 8);
        assert_eq!(svg.matches("<rect class=\"F\"").count(), 4 * 8 + 1);
        assert_eq!(svg.matches("<rect class=\"idle\"").count(), 4 + 1);
    }

    #[test]
    fn titles_are_escaped() {
        let svg = render(ScheduleKind::GPipe, 1, 1, "a<b & c>d\u{7}");
        assert_eq!(svg.matches("a&lt;b &amp; c&gt;d\u{fffd}").count(), 2);
    }
}
