//! The style sheet of all SVG drawings, for light and dark mode. A drawing contains the rules of the
//! classes that it uses.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::palette::{DIM, GRID, INK, LightDark, PAPER, RANKS, SERIES, SHADES, TERMINAL, TINTS};

/// Class of the root element, which all rules are limited to: an HTML page has one scope for the style
/// sheets of all its drawings.
pub const ROOT: &str = "regatta";

/// Classes with their declarations.
const RULES: [(&str, &str); 28] = [
    // Text.
    ("h1", "font-size:18px;font-weight:600"),
    ("h2", "font-size:13px;font-weight:600"),
    ("small", "font-size:11px"),
    ("strong", "font-size:12px;font-weight:700"),
    ("bold", "font-weight:700"),
    ("num", "font-size:10.5px;font-weight:600;text-anchor:middle"),
    ("side", "font-weight:600;text-anchor:end"),
    ("mid", "text-anchor:middle"),
    ("end", "text-anchor:end"),
    // Text on a light or dark area of its own.
    ("on", "fill:#10131a"),
    ("on-dark", "fill:#fff"),
    // Plots.
    ("grid", "fill:none"),
    ("line", "fill:none;stroke:currentColor;stroke-width:2"),
    ("mark", "fill:currentColor"),
    ("bar", "fill:currentColor"),
    // Nodes and their devices.
    ("idle", "fill:none"),
    ("unusable", "fill:none;stroke-dasharray:2 2"),
    ("down", "font-weight:700"),
    ("pip", "fill:#10131a"),
    ("off", "fill-opacity:.22"),
    ("link", "fill:none;stroke-width:2.5;stroke-linecap:round"),
    // Terminals.
    ("terminal", "fill:#1d222b;rx:8px"),
    ("cell", "font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre"),
    ("o25", "fill-opacity:.25"),
    ("o50", "fill-opacity:.5"),
    ("o60", "fill-opacity:.6"),
    ("o75", "fill-opacity:.75"),
    ("o90", "fill-opacity:.9"),
];

/// Classes with a property that has a colour per mode.
const COLOURS: [(&str, &str, LightDark); 15] = [
    ("dim", "fill", DIM),
    ("paper", "fill", PAPER),
    ("page", "fill", ("#f4f6f9", "#10141b")),
    ("box", "fill", ("#fff", "#1a202a")),
    ("box", "stroke", ("#d5dae2", "#2e3745")),
    ("card", "fill", ("#f4f6f9", "#232b37")),
    ("card", "stroke", ("#c3cad5", "#3c4757")),
    ("reserved", "fill", ("#dde1e8", "#323c4b")),
    ("reserved", "stroke", ("#c3cad5", "#475467")),
    ("idle", "stroke", ("#c3cad5", "#475467")),
    ("unusable", "stroke", ("#d5dae2", "#3c4757")),
    ("down", "fill", ("#c4262e", "#ff8a84")),
    ("grid", "stroke", GRID),
    ("span", "stroke", PAPER),
    ("bubble", "fill", ("#eee", "#2a2a2a")),
];

/// The rules of all classes in `used`.
pub fn style_sheet(used: &BTreeSet<&str>) -> String {
    let rules = RULES.iter().map(|(class, rule)| ((*class).to_owned(), (*rule).to_owned()));
    let (mut common, mut dark) = (String::new(), String::new());
    let rule = |css: &mut String, class: &str, declarations: &str| {
        if used.contains(class) {
            let _ = write!(css, ".{ROOT} .{class}{{{declarations}}}");
        }
    };
    rules.for_each(|(class, declarations)| rule(&mut common, &class, &declarations));
    for (class, property, (light, black)) in colours() {
        rule(&mut common, &class, &format!("{property}:{light}"));
        if light != black {
            rule(&mut dark, &class, &format!("{property}:{black}"));
        }
    }
    format!(
        ".{ROOT}{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,\
         sans-serif}}.{ROOT} text{{fill:{}}}{common}\n\
         @media (prefers-color-scheme:dark){{.{ROOT} text{{fill:{}}}{dark}}}",
        INK.0, INK.1
    )
}

/// Every class with a property and its colours in both modes.
fn colours() -> impl Iterator<Item = (String, &'static str, (String, String))> {
    let pair = |(light, dark): &LightDark| ((*light).to_owned(), (*dark).to_owned());
    let named = COLOURS
        .iter()
        .map(move |(class, property, colours)| ((*class).to_owned(), *property, pair(colours)));
    let series = SERIES.iter().enumerate();
    let series = series.map(move |(n, colours)| (format!("c{n}"), "color", pair(colours)));
    let tints = TINTS.iter().enumerate();
    let tints = tints.map(move |(n, colours)| (format!("t{n}"), "fill", pair(colours)));
    let shades = SHADES.iter().enumerate();
    let shades = shades.map(move |(n, shade)| (format!("s{n}"), "fill", pair(&(shade, shade))));
    let ranks = RANKS.iter().enumerate().flat_map(|(n, rank)| {
        let (tile, line) = (rank.to_string(), rank.darker().to_string());
        [
            (format!("r{n}"), "fill", (tile.clone(), tile.clone())),
            (format!("l{n}"), "stroke", (line, tile)),
        ]
    });
    let terminal = TERMINAL.iter().map(|(class, colour)| {
        ((*class).to_owned(), "fill", ((*colour).to_owned(), (*colour).to_owned()))
    });
    named.chain(terminal).chain(series).chain(tints).chain(shades).chain(ranks)
}
