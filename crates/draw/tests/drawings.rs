//! Golden files of every kind of drawing; `REGATTA_BLESS=1 cargo test -p regatta-draw` updates them.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use anstyle::{AnsiColor, Style};
use regatta_draw::axis::PlotAxis;
use regatta_draw::frame::{ASCII, Glyphs, UNICODE};
use regatta_draw::html::Page;
use regatta_draw::layout::{Content, Section, stack};
use regatta_draw::legend::{Symbol, legend};
use regatta_draw::line::{BOLD, DIM, PLAIN, StyledLine, flow, rank_style};
use regatta_draw::plot::{Bar, LinePlot, Series, bars};
use regatta_draw::screen::{InlineScreen, TerminalSize};
use regatta_draw::svg::{Document, Rect, Svg};
use regatta_draw::terminal_plot::{Layer, TerminalPlot};
use regatta_draw::{bar, screenshot, table};

fn golden(name: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("REGATTA_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} differs (REGATTA_BLESS=1 updates it):\n{actual}");
}

fn document(id: &str, height: f64) -> Document<'_> {
    let (title, description) = ("Time <of> all-reduce", "Two lines & three bars.");
    Document { id, title, description, size: (400.0, height), font_size: 12.0, background: "paper" }
}

fn plot() -> String {
    let mut svg = Svg::default();
    let line = |label: &str, scale: f64| Series {
        label: label.to_owned(),
        points: (3..=10).map(|n| (f64::from(1 << n), scale * f64::from(n * n))).collect(),
    };
    let series = [line("<TCP>", 1.5), line("libfabric", 1.0)];
    let entries = series.iter().enumerate();
    let entries: Vec<_> = entries.map(|(n, one)| (Symbol::Line(n), one.label.clone())).collect();
    let top = legend(&mut svg, Rect { x: 60.0, y: 10.0, w: 320.0, h: 0.0 }, 12.0, &entries);
    let points = || series.iter().flat_map(|one| &one.points);
    let plot = LinePlot {
        title: "time in µs",
        axes: (
            PlotAxis::log(2.0, points().map(|(x, _)| *x)),
            PlotAxis::from_zero(points().map(|(_, y)| *y)),
        ),
        tick_labels: (|x| format!("{x} B"), |y| format!("{y}")),
        series: &series,
        tip: &|x, y| format!("{x} B, {y:.1} µs"),
    };
    plot.draw(&mut svg, Rect { x: 60.0, y: top + 30.0, w: 320.0, h: 160.0 });
    let bar =
        |n: u32| Bar { label: format!("{n} KiB"), value: f64::from(n), text: format!("{n} calls") };
    let area = Rect { x: 60.0, y: top + 240.0, w: 320.0, h: 60.0 };
    bars(&mut svg, area, 2, &[1, 4, 2].map(bar));
    svg.finish(&document("plot", 400.0))
}

#[test]
fn plots_have_axes_lines_marks_bars_and_a_legend() {
    let drawn = plot();
    roxmltree::Document::parse(&drawn).unwrap();
    golden("plot.svg", &drawn);
}

#[test]
fn pages_have_a_title_a_list_drawings_and_tables() {
    let mut page = Page::new("Report of <run>");
    page.list([("ranks", "2 & 4".to_owned())].into_iter());
    page.heading("Plot");
    page.drawing(&plot());
    let cells = |row: [&str; 3]| row.map(str::to_owned).to_vec();
    page.table("times", &cells(["size", "a", "ratio"]), &[cells(["8 B", "1.5", "×1.2"])], &[2]);
    let drawn = page.finish();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(&drawn, options).unwrap();
    golden("page.html", &drawn);
}

#[test]
fn a_drawing_has_only_the_rules_of_its_classes_and_nothing_from_outside() {
    let mut svg = Svg::default();
    svg.text((1.0, 2.0), "dim", "text");
    let drawn = svg.finish(&document("text", 10.0));
    assert!(drawn.contains(".regatta .dim{fill:#5c6675}") && !drawn.contains(".r0"), "{drawn}");
    assert!(drawn.contains("prefers-color-scheme:dark"), "{drawn}");
    for forbidden in ["<script", "href", "url(http", "@import", "<image"] {
        assert!(!drawn.contains(forbidden), "{forbidden}");
    }
}

/// Style of a line.
const CYAN: Style = AnsiColor::Cyan.on_default();
const SIZE: TerminalSize = TerminalSize { width: 60, height: 20 };

/// A screen with a section of every kind.
fn screen(glyphs: &Glyphs, busy: f64) -> Vec<StyledLine> {
    let rows = |node: u32| -> Vec<StyledLine> {
        let rank = StyledLine::new(format!("{:>2}", 2 * node), rank_style(2 * node));
        let mut next = StyledLine::new(format!("{:>2}", 2 * node + 1), rank_style(2 * node + 1));
        next.push(" busy", PLAIN);
        flow([rank, next], 1, 40)
    };
    let level = |load: f64| bar::LEVELS[(load * 8.0).ceil() as usize - 1];
    let load = StyledLine::new(String::from_iter([0.1, 0.5, busy, 1.0].map(level)), DIM);
    let node = glyphs.boxed("node 1", "64 GiB", [rows(0), vec![load]], 24);
    let times = bar::stacked(&[('█', PLAIN, 3.0), ('░', DIM, 1.0)], 30);
    let header = StyledLine::new("job <7> of 2 nodes", BOLD);
    let cells = [["0", "nid1", "3.25"], ["1", "nid20", "4"]];
    let cells = cells.map(|row| row.map(str::to_owned).to_vec());
    let table = table::align(&["rank", "host", "GB/s"], &cells, &[1]);
    let table = table.lines().map(|line| StyledLine::new(line, PLAIN)).collect();
    let losses: Vec<(f64, f64)> = (0..50).map(|n| (f64::from(n), 4.0 / f64::from(n + 5))).collect();
    let plot = |rows: usize| {
        let line = Layer { points: &losses, style: CYAN, marker: None };
        let marks = Layer { points: &[(25.0, 0.5)], style: BOLD, marker: Some('o') };
        TerminalPlot { layers: &[line, marks], x_max: 60.0 }.draw(SIZE.width - 1, rows)
    };
    let sections = vec![
        Section { order: 0, content: Content::Lines(vec![header]) },
        Section { order: 1, content: Content::Lines(node) },
        Section { order: 4, content: Content::Lines(vec![times]) },
        Section { order: 3, content: Content::Fill(4, &plot) },
        Section { order: 2, content: Content::Lines(table) },
    ];
    stack(sections, SIZE.height)
}

#[test]
fn screens_have_boxes_bars_plots_and_tables() {
    let lines = screen(&UNICODE, 0.75);
    let text = |lines: &[StyledLine]| -> String {
        lines.iter().map(|line| line.render(false) + "\n").collect()
    };
    golden("screen.txt", &text(&lines));
    golden("screen.svg", &screenshot::svg(&lines, SIZE.width, "A <screen>"));
    let boxed = text(&screen(&ASCII, 0.75));
    assert!(boxed.contains("+ node 1 --------- 64 GiB -+"), "{boxed}");
}

#[test]
fn a_screen_in_place_repaints_everything() {
    let (first, second) = (screen(&UNICODE, 0.25), screen(&UNICODE, 1.0));
    let mut inline = InlineScreen::default();
    inline.draw(&first, SIZE.width, true, 0.0);
    let frame = inline.draw(&second, SIZE.width, true, 1.0);
    assert_eq!(frame.matches("\x1b[K").count(), second.len(), "{frame:?}");
}
