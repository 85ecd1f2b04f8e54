//! `docs/display.svg`: the dashboard of a recorded run, as a terminal shows it.
//!
//! `run.jsonl` has events of `regatta train --json`. After a change of the dashboard, update the drawing with
//! `REGATTA_BLESS=1 cargo test -p regatta screenshot`.

use std::path::Path;

use regatta_draw::text::escape as escape_xml;

use super::*;

/// Size of a character.
const CELL: (f64, f64) = (8.4, 18.0);
/// Space around the text.
const MARGIN: f64 = 16.0;
/// Size of the terminal.
const SIZE: TerminalSize = TerminalSize { width: 101, height: 31 };
/// The step at which the run is shown.
const SHOWN_STEP: u64 = 600;

/// Colours of default text, dimmed text, and of the SGR codes 31 to 37.
const DEFAULT: &str = "#d8dee9";
const DIMMED: &str = "#7b8798";
const COLOURS: [&str; 7] =
    ["#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#b5bdca"];

/// The appearance of a character.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Look {
    colour: &'static str,
    bold: bool,
}

const PLAIN: Look = Look { colour: DEFAULT, bold: false };

/// The characters of a line with their appearance.
fn cells(line: &str) -> Vec<(char, Look)> {
    let (mut cells, mut look) = (Vec::new(), PLAIN);
    for (index, part) in line.split("\x1b[").enumerate() {
        let (codes, text) = if index == 0 { ("", part) } else { part.split_once('m').unwrap() };
        for code in codes.split(';').filter(|code| !code.is_empty()) {
            look = match code.parse().unwrap() {
                0 => PLAIN,
                1 => Look { bold: true, ..look },
                2 => Look { colour: DIMMED, ..look },
                colour @ 31..=37 => Look { colour: COLOURS[colour - 31], ..look },
                other => panic!("SGR code {other}"),
            };
        }
        cells.extend(text.chars().map(|c| (c, look)));
    }
    cells
}

/// Rectangles that make up a graphic character, as fractions of a cell: left, top, width, height, opacity.
/// Fonts differ in the width of these characters.
fn shapes(c: char) -> Option<Vec<[f64; 5]>> {
    let vertical = |top: f64, end: f64| [0.46, top, 0.08, end - top, 0.6];
    let horizontal = |left: f64| [left, 0.48, 1.0 - left, 0.04, 0.6];
    let quarter = |left: f64, top: f64| [left, top, 0.5, 0.35, 0.9];
    Some(match c {
        '█' => vec![[0.0, 0.15, 1.0, 0.7, 1.0]],
        '▓' => vec![[0.0, 0.15, 1.0, 0.7, 0.75]],
        '▒' => vec![[0.0, 0.15, 1.0, 0.7, 0.5]],
        '░' => vec![[0.0, 0.15, 1.0, 0.7, 0.25]],
        '▚' => vec![quarter(0.0, 0.15), quarter(0.5, 0.5)],
        '▞' => vec![quarter(0.5, 0.15), quarter(0.0, 0.5)],
        '│' => vec![vertical(0.0, 1.0)],
        '┤' => vec![vertical(0.0, 1.0), [0.0, 0.48, 0.46, 0.04, 0.6]],
        '└' => vec![vertical(0.0, 0.5), horizontal(0.46)],
        '─' => vec![horizontal(0.0)],
        '┬' => vec![horizontal(0.0), vertical(0.5, 1.0)],
        '\u{2800}'..='\u{28ff}' => {
            const POSITIONS: [(f64, f64); 8] = [
                (0.0, 0.0),
                (0.0, 1.0),
                (0.0, 2.0),
                (1.0, 0.0),
                (1.0, 1.0),
                (1.0, 2.0),
                (0.0, 3.0),
                (1.0, 3.0),
            ];
            let is_set = |bit: &usize| c as u32 >> bit & 1 == 1;
            let dot = |bit: usize| {
                let (column, row) = POSITIONS[bit];
                [0.1 + column * 0.5, 0.05 + row * 0.25, 0.3, 0.15, 1.0]
            };
            (0..8).filter(is_set).map(dot).collect()
        }
        _ => return None,
    })
}

/// Draws the lines of a terminal.
fn svg(lines: &[String], title: &str) -> String {
    let width = MARGIN * 2.0 + CELL.0 * (SIZE.width - 1) as f64;
    let height = MARGIN * 2.0 + CELL.1 * lines.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n\
         <title>{title}</title>\n\
         <style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1d222b\"/>\n"
    );
    for (row, line) in lines.iter().enumerate() {
        let top = MARGIN + CELL.1 * row as f64;
        let cells = cells(line);
        let kind = |(c, look): &(char, Look)| (shapes(*c).is_some() || *c == ' ', *look);
        let mut column = 0;
        for run in cells.chunk_by(|a, b| kind(a) == kind(b)) {
            let left = MARGIN + CELL.0 * column as f64;
            column += run.len();
            let (is_graphic, Look { colour, bold }) = kind(&run[0]);
            if is_graphic {
                svg.push_str(&graphic_run(run, (left, top), colour));
                continue;
            }
            let text: String = run.iter().map(|(c, _)| c).collect();
            let (base, length) = (top + CELL.1 * 0.75, CELL.0 * run.len() as f64);
            let weight = if bold { " font-weight=\"700\"" } else { "" };
            svg.push_str(&format!(
                "<text x=\"{left:.1}\" y=\"{base:.1}\" fill=\"{colour}\" textLength=\"{length:.1}\"{weight}>{}</text>\n",
                escape_xml(&text)
            ));
        }
    }
    svg + "</svg>\n"
}

/// A run of graphic characters as one path per opacity.
fn graphic_run(run: &[(char, Look)], (left, top): (f64, f64), colour: &str) -> String {
    let mut paths: Vec<(f64, String)> = Vec::new();
    for (column, (c, _)) in run.iter().enumerate() {
        for [x, y, w, h, opacity] in shapes(*c).unwrap_or_default() {
            let (x, y) = (left + CELL.0 * (column as f64 + x), top + CELL.1 * y);
            let (w, h) = (CELL.0 * w, CELL.1 * h);
            let rect = format!("M{x:.1} {y:.1}h{w:.1}v{h:.1}h-{w:.1}z");
            match paths.iter_mut().find(|(other, _)| *other == opacity) {
                Some((_, path)) => path.push_str(&rect),
                None => paths.push((opacity, rect)),
            }
        }
    }
    let path = |(opacity, path): &(f64, String)| {
        format!("<path fill=\"{colour}\" fill-opacity=\"{opacity}\" d=\"{path}\"/>\n")
    };
    paths.iter().map(path).collect()
}

#[test]
fn patterns_of_all_phases_have_the_same_height() {
    for pattern in "░▓█▒▚▞".chars() {
        let shapes = shapes(pattern).unwrap();
        let top = shapes.iter().map(|[_, y, ..]| *y).fold(1.0, f64::min);
        let bottom = shapes.iter().map(|[_, y, _, h, _]| y + h).fold(0.0, f64::max);
        assert_eq!((top, bottom), (0.15, 0.85), "{pattern}");
    }
}

#[test]
fn the_screenshot_in_the_documentation_shows_the_current_dashboard() {
    let (mut history, mut start, mut now) = (RunHistory::default(), None, 0.0);
    for line in include_str!("run.jsonl").lines() {
        let event: Event = serde_json::from_str(line).unwrap();
        if let Event::Step(step) = &event {
            now = step.time - *start.get_or_insert(step.time);
        }
        history.on_event(&event, now);
        if history.done() >= SHOWN_STEP {
            break;
        }
    }
    let drawn = svg(&dashboard::render(&history, SIZE, now), "regatta train: the live display");
    roxmltree::Document::parse(&drawn).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/display.svg");
    if std::env::var_os("REGATTA_BLESS").is_some() {
        std::fs::write(&file, &drawn).unwrap();
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(there == drawn, "docs/display.svg is out of date; REGATTA_BLESS=1 updates it");
}
