//! Golden files of every kind of drawing; `REGATTA_BLESS=1 cargo test -p regatta-draw` updates them.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use regatta_draw::axis::PlotAxis;
use regatta_draw::html::Page;
use regatta_draw::legend::{Symbol, legend};
use regatta_draw::plot::{Bar, LinePlot, Series, bars};
use regatta_draw::svg::{Document, Rect, Svg};

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
    let bar = |n: u32| Bar { label: format!("{n} KiB"), value: f64::from(n), text: format!("{n} calls") };
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
