//! The legend of an SVG drawing.

use crate::plot;
use crate::svg::{Rect, Svg, round, series_class};

/// Size of a tile, and distance of text from the symbol before it.
const TILE: f64 = 14.0;
const TEXT_GAP: f64 = 6.0;
/// Distance of an entry from the next.
const ENTRY_GAP: f64 = 16.0;
/// Distance of lines.
pub const LINE_HEIGHT: f64 = 20.0;
/// Length of the sample of a line.
const SAMPLE: f64 = 24.0;
/// Mean width of a character, relative to the font size.
const CHAR_WIDTH: f64 = 0.57;

/// The symbol that a legend explains.
#[derive(Debug, Clone, Copy)]
pub enum Symbol<'a> {
    /// A tile of a class.
    Tile(&'a str),
    /// Line and marker of a series of a plot.
    Line(usize),
}

/// Draws the entries side by side in the width of `area`, in as many lines as needed. Returns the lower
/// edge.
pub fn legend(svg: &mut Svg, area: Rect, font_size: f64, entries: &[(Symbol<'_>, String)]) -> f64 {
    let (mut x, mut y) = (area.x, area.y);
    for (symbol, label) in entries {
        let symbol_width = if matches!(symbol, Symbol::Tile(_)) { TILE } else { SAMPLE };
        let label_width = label.chars().count() as f64 * font_size * CHAR_WIDTH;
        let width = symbol_width + TEXT_GAP + label_width;
        if x > area.x && x + width > area.x + area.w {
            (x, y) = (area.x, y + LINE_HEIGHT);
        }
        match symbol {
            Symbol::Tile(class) => svg.rect(Rect { x, y: y + 3.0, w: TILE, h: TILE }, 0.0, class),
            Symbol::Line(index) => {
                let (class, middle) = (series_class(*index), y + 10.0);
                let sample = format!("M{} {}h{SAMPLE}", round(x), round(middle));
                svg.path(&sample, &format!("line {class}"), "");
                plot::mark(svg, *index, (x + SAMPLE / 2.0, middle), "");
            }
        }
        svg.text((x + symbol_width + TEXT_GAP, y + 14.0), "", label);
        x += width + ENTRY_GAP;
    }
    y + LINE_HEIGHT
}
