//! SVG with light and dark colours.

use regatta_draw::legend::{Symbol, legend};
use regatta_draw::svg::{Document, Rect, Svg};

use super::{Span, Timeline, has_virtual_stages, labels, passes};
use crate::pipeline::Computation;

/// Sizes in user units.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 60.0;
const TOP: f64 = 52.0;
const ROW: f64 = 30.0;
const BAR: f64 = 24.0;
const FONT_SIZE: f64 = 12.0;
/// Approximate width of a character.
const LETTER: f64 = 7.0;

/// Renders a timeline as an SVG file.
pub fn svg(timeline: &Timeline, title: &str) -> String {
    let (stages, mut svg) = (timeline.ranks.len(), Svg::default());
    svg.text((LEFT, 32.0), "h1", title);
    for stage in 0..stages {
        row(&mut svg, timeline, stage);
    }
    let entries = passes(timeline).into_iter();
    let entries = entries
        .map(|(pass, name)| (Symbol::Tile(class(pass)), format!("{} {name}", pass.letter())))
        .chain([(Symbol::Tile(IDLE), "idle".to_owned())]);
    let area = Rect { x: LEFT, y: TOP + ROW * stages as f64 + 4.0, w: WIDTH - LEFT, h: 0.0 };
    let bottom = legend(&mut svg, area, FONT_SIZE, &entries.collect::<Vec<_>>());
    let idle = 100.0 * timeline.idle_overall();
    svg.finish(&Document {
        id: "pipeline",
        title,
        description: &format!("Schedule of {stages} pipeline stages over time; {idle:.0} % idle."),
        size: (WIDTH, bottom + 10.0),
        font_size: FONT_SIZE,
        background: "paper",
    })
}

/// Class of a stage that waits.
const IDLE: &str = "span bubble";

/// Class of a pass.
fn class(pass: Computation) -> &'static str {
    match pass {
        Computation::Forward => "span t0",
        Computation::Backward => "span t1",
        Computation::BackwardInput => "span t2",
        Computation::BackwardWeight => "span t3",
    }
}

fn row(svg: &mut Svg, timeline: &Timeline, stage: usize) {
    let (top, plot_width) = (TOP + ROW * stage as f64, WIDTH - LEFT - RIGHT);
    let (base, idle) = (top + 16.0, 100.0 * timeline.idle(stage));
    svg.text((12.0, base), "", &format!("stage {stage}"));
    svg.text((WIDTH - RIGHT + 4.0, base), "", &format!("{idle:.0} % idle"));
    svg.rect(Rect { x: LEFT, y: top, w: plot_width, h: BAR }, 0.0, IDLE);
    let (stages, show_chunk) = (timeline.ranks.len(), has_virtual_stages(timeline));
    for span in timeline.ranks[stage].iter().filter(|span| span.end > span.start) {
        let scale = plot_width / timeline.total;
        let (x, w) = (LEFT + span.start * scale, (span.end - span.start) * scale);
        cell(svg, span, Rect { x, y: top, w, h: BAR }, &labels(span, stages, show_chunk));
    }
}

fn cell(svg: &mut Svg, span: &Span, area: Rect, labels: &[String]) {
    svg.rect(area, 0.0, class(span.action.computation));
    if let Some(label) = labels.iter().find(|label| LETTER * label.len() as f64 <= area.w) {
        svg.text((area.x + area.w / 2.0, area.y + 16.0), "mid", label);
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

    #[test]
    fn small_schedule_matches_the_golden_svg() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/zero-bubble-2x1.svg");
        let drawn = render(ScheduleKind::ZeroBubble, 2, 1, "zero-bubble");
        if std::env::var_os("REGATTA_BLESS").is_some() {
            std::fs::write(path, &drawn).unwrap();
        }
        assert_eq!(drawn, std::fs::read_to_string(path).unwrap(), "REGATTA_BLESS=1 updates it");
    }

    #[test]
    fn every_action_has_a_cell() {
        let svg = render(ScheduleKind::OneFOneB, 4, 8, "1f1b");
        assert_eq!(svg.matches("class=\"mid\"").count(), 2 * 4 * 8);
        assert_eq!(svg.matches("class=\"span t0\"").count(), 4 * 8 + 1);
        assert_eq!(svg.matches("class=\"span bubble\"").count(), 4 + 1);
    }

    #[test]
    fn titles_are_escaped() {
        let svg = render(ScheduleKind::GPipe, 1, 1, "a<b & c>d\u{7}");
        assert_eq!(svg.matches("a&lt;b &amp; c&gt;d?").count(), 2);
    }
}
