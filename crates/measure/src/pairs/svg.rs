//! The matrices as a self-contained SVG heat map, for light and dark mode.

use regatta_draw::palette::{DARK_SHADES, SHADES};
use regatta_draw::svg::{Document, Rect, Svg};
use regatta_draw::text::wrap_words;
use regatta_model::bench::{PairMatrices, PairMatrix};

use super::diagnose::messages::short;
use super::text::{ColorScale, in_unit, names};

const MARGIN: f64 = 24.0;
/// Cell sizes with and without values.
const LABELLED_CELL: f64 = 46.0;
const CELL: f64 = 14.0;
/// Larger matrices have cells without values.
const MAX_LABELLED: usize = 16;
/// Mean character width.
const CHAR_WIDTH: f64 = 6.4;
const LINE_HEIGHT: f64 = 18.0;
/// Minimum line width of a finding in characters.
const MIN_LINE_CHARS: usize = 60;

/// Both matrices and the findings. Cells have tooltips.
pub fn draw(pairs: &PairMatrices, title: &str) -> String {
    let sound = pairs.inconsistency().is_none();
    let names = if sound { names(&pairs.endpoints) } else { Vec::new() };
    let (bandwidth, unit) = in_unit(&pairs.bandwidth);
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let label = longest as f64 * CHAR_WIDTH;
    let cell = if names.len() <= MAX_LABELLED { LABELLED_CELL } else { CELL };
    let mut page = HeatMaps { svg: Svg::default(), names: &names, label, cell };
    let width = (2.0 * MARGIN + label + cell * names.len() as f64).max(520.0).ceil();
    let mut y = MARGIN + 18.0;
    page.svg.text((MARGIN, y), "h1", title);
    if sound {
        let title = format!("Bandwidth from row to column, {unit}");
        y = page.matrix(y + 30.0, &title, &bandwidth, ColorScale::high(&bandwidth));
        let (title, latency) = ("Latency of 8 bytes, µs", &pairs.latency_us);
        y = page.matrix(y + 30.0, title, latency, ColorScale::low(latency));
    }
    y = page.findings(y + 30.0, &pairs.findings, width);
    page.svg.finish(&Document {
        id: "pairs",
        title,
        description: &pairs.findings.join("\n"),
        size: (width, (y + MARGIN).ceil()),
        font_size: 11.5,
        background: "page",
    })
}

/// The drawing under construction.
struct HeatMaps<'a> {
    svg: Svg,
    names: &'a [String],
    /// Width of the row labels.
    label: f64,
    cell: f64,
}

impl HeatMaps<'_> {
    /// Draws a matrix; returns its bottom edge.
    fn matrix(&mut self, top: f64, title: &str, values: &PairMatrix, scale: ColorScale) -> f64 {
        self.svg.text((MARGIN, top), "h2", title);
        let (names, left, cell) = (self.names, MARGIN + self.label + 8.0, self.cell);
        let above = top + 12.0 + if self.is_labelled() { LINE_HEIGHT } else { 0.0 };
        if self.is_labelled() {
            for (at, name) in names.iter().enumerate() {
                let rank = name.rsplit(' ').next().unwrap_or_default();
                self.svg.text((left + cell * (at as f64 + 0.5), above - 5.0), "mid dim", rank);
            }
        }
        let height = cell.min(26.0);
        for (i, row) in values.iter().enumerate() {
            let y = above + height * i as f64;
            self.svg.text((left - 8.0, y + height / 2.0 + 4.0), "end", &names[i]);
            for (j, value) in row.iter().enumerate() {
                let Some(value) = value else { continue };
                let tip = format!("{} to {}: {}", names[i], names[j], short(*value));
                let area = Rect { x: left + cell * j as f64, y, w: cell - 1.0, h: height - 1.0 };
                self.tile(area, scale.step(*value, SHADES.len()), &short(*value), &tip);
            }
        }
        above + height * values.len() as f64
    }

    fn is_labelled(&self) -> bool {
        self.cell == LABELLED_CELL
    }

    fn tile(&mut self, area: Rect, shade: usize, value: &str, tip: &str) {
        self.svg.tile(area, &format!("s{shade}"), tip);
        if self.is_labelled() {
            let class = if shade < DARK_SHADES { "mid on-dark" } else { "mid on" };
            let at = (area.x + self.cell / 2.0, area.y + (area.h + 1.0) / 2.0 + 4.0);
            self.svg.text(at, class, value);
        }
    }

    fn findings(&mut self, top: f64, findings: &[String], width: f64) -> f64 {
        let width = (((width - 2.0 * MARGIN) / CHAR_WIDTH) as usize).max(MIN_LINE_CHARS);
        let mut y = top;
        for finding in findings {
            for line in wrap_words(finding, width) {
                self.svg.text((MARGIN, y), "", &line);
                y += LINE_HEIGHT;
            }
            y += LINE_HEIGHT / 2.0;
        }
        y
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::text;

    fn pairs(n: usize) -> PairMatrices {
        let mut pairs = text::tests::pairs(n, |i, j| ((i + j) % 5) as f64);
        pairs.endpoints.iter_mut().for_each(|end| end.host = format!("<n{}>", end.rank));
        pairs.findings = vec!["<n1> & <n2>: slow\u{1b}".to_owned()];
        pairs
    }

    #[test]
    fn all_cells_are_drawn_and_all_text_is_escaped() {
        for (n, values) in [(1, true), (5, true), (40, false)] {
            let svg = draw(&pairs(n), "A & B");
            assert_eq!(svg.matches("<rect x=").count(), 2 * n * (n - 1));
            assert_eq!(svg.contains("mid on\">") || n == 1, values);
            assert!(svg.contains("&lt;n1&gt; &amp; &lt;n2&gt;: slow?"));
            assert!(!svg.contains("<n1>") && svg.contains(">A &amp; B</title>"));
            for element in ["svg", "text", "title", "rect"] {
                let count = |tag: String| svg.matches(&tag).count();
                let opened = count(format!("<{element} ")) + count(format!("<{element}>"));
                let empty = usize::from(element == "rect");
                assert_eq!(opened, count(format!("</{element}>")) + empty, "{element}");
            }
        }
    }

    #[test]
    fn malformed_matrices_are_not_drawn() {
        let mut odd = pairs(3);
        odd.bandwidth.pop();
        assert_eq!(draw(&odd, "").matches("<rect x=").count(), 0);
        assert!(draw(&PairMatrices::default(), "").ends_with("</svg>\n"));
    }
}
