//! The matrices as a self-contained SVG heat map, for light and dark mode.

use regatta_model::bench::{PairMatrices, PairMatrix};
use regatta_model::text::escape_xml;

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
/// Number of colours.
const SHADES: usize = 8;
/// The first ones are dark and need light text.
const DARK_SHADES: usize = 2;

/// Both matrices and the findings. Cells have tooltips.
pub fn draw(pairs: &PairMatrices, title: &str) -> String {
    let sound = pairs.inconsistency().is_none();
    let names = if sound { names(&pairs.endpoints) } else { Vec::new() };
    let (bandwidth, unit) = in_unit(&pairs.bandwidth);
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let label = longest as f64 * CHAR_WIDTH;
    let cell = if names.len() <= MAX_LABELLED { LABELLED_CELL } else { CELL };
    let mut page = SvgPage { out: String::new(), names: &names, label, cell };
    let width = (2.0 * MARGIN + label + cell * names.len() as f64).max(520.0).ceil();
    let mut y = MARGIN + 18.0;
    page.text(MARGIN, y, "h1", title);
    if sound {
        let title = format!("Bandwidth from row to column, {unit}");
        y = page.matrix(y + 30.0, &title, &bandwidth, ColorScale::high(&bandwidth));
        let (title, latency) = ("Latency of 8 bytes, µs", &pairs.latency_us);
        y = page.matrix(y + 30.0, title, latency, ColorScale::low(latency));
    }
    y = page.findings(y + 30.0, &pairs.findings, width);
    let height = (y + MARGIN).ceil();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>\n{}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" class=\"page\"/>\n{}</svg>\n",
        escape_xml(title),
        style(),
        page.out,
    )
}

/// The SVG under construction.
struct SvgPage<'a> {
    out: String,
    names: &'a [String],
    /// Width of the row labels.
    label: f64,
    cell: f64,
}

impl SvgPage<'_> {
    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape_xml(text);
        self.out.push_str(&format!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>\n"));
    }

    /// Draws a matrix; returns its bottom edge.
    fn matrix(&mut self, top: f64, title: &str, values: &PairMatrix, scale: ColorScale) -> f64 {
        self.text(MARGIN, top, "h2", title);
        let (names, left, cell) = (self.names, round(MARGIN + self.label + 8.0), self.cell);
        let above = top + 12.0 + if cell == LABELLED_CELL { LINE_HEIGHT } else { 0.0 };
        if cell == LABELLED_CELL {
            for (at, name) in names.iter().enumerate() {
                let rank = name.rsplit(' ').next().unwrap_or_default();
                let x = left + cell * (at as f64 + 0.5);
                self.text(x, above - 5.0, "mid dim", rank);
            }
        }
        let height = cell.min(26.0);
        for (i, row) in values.iter().enumerate() {
            let y = round(above + height * i as f64);
            let place = round(y + height / 2.0 + 4.0);
            self.text(left - 8.0, place, "end", &names[i]);
            for (j, value) in row.iter().enumerate() {
                let Some(value) = value else { continue };
                let x = round(left + cell * j as f64);
                let shade = scale.step(*value, SHADES);
                let tip = format!("{} to {}: {}", names[i], names[j], short(*value));
                self.tile(x, y, height, shade, &tip);
                if cell == LABELLED_CELL {
                    let class = if shade < DARK_SHADES { "mid on-low" } else { "mid on-high" };
                    self.text(x + cell / 2.0, place, class, &short(*value));
                }
            }
        }
        above + height * values.len() as f64
    }

    fn tile(&mut self, x: f64, y: f64, height: f64, shade: usize, tip: &str) {
        let (w, h, tip) = (self.cell - 1.0, height - 1.0, escape_xml(tip));
        self.out.push_str(&format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" class=\"s{shade}\">\
             <title>{tip}</title></rect>\n"
        ));
    }

    fn findings(&mut self, top: f64, findings: &[String], width: f64) -> f64 {
        let width = (((width - 2.0 * MARGIN) / CHAR_WIDTH) as usize).max(MIN_LINE_CHARS);
        let mut y = top;
        for finding in findings {
            for line in wrap(finding, width) {
                self.text(MARGIN, y, "", &line);
                y += LINE_HEIGHT;
            }
            y += LINE_HEIGHT / 2.0;
        }
        y
    }
}

/// Wraps text at `width` characters; longer words are not split.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Rounds to 0.1, for short and reproducible files.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The style sheet. Red to blue, a colour-blind safe scale.
fn style() -> String {
    let shades =
        ["#b2182b", "#d6604d", "#ef9a6b", "#f6c79b", "#e3e0d0", "#b9d3e0", "#8ab8d6", "#5a98c6"];
    let mut css = String::from(
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,\
         sans-serif;font-size:11.5px;fill:#1b2230}\n\
         .h1{font-size:20px;font-weight:700}.h2{font-size:13px;font-weight:600}\n\
         .dim{fill:#5c6675}.end{text-anchor:end}.mid{text-anchor:middle}.page{fill:#f4f6f9}\n",
    );
    let shade = |(at, shade)| format!(".s{at}{{fill:{shade}}}");
    css.extend(shades.iter().enumerate().map(shade));
    css + "\n@media (prefers-color-scheme: dark){text{fill:#e6eaf1}.dim{fill:#98a3b3}\
           .page{fill:#10141b}}\n.on-low{fill:#fff}.on-high{fill:#10131a}\n"
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
            assert_eq!(svg.contains("on-high\">") || n == 1, values);
            assert!(svg.contains("&lt;n1&gt; &amp; &lt;n2&gt;: slow\u{fffd}"));
            assert!(!svg.contains("<n1>") && svg.contains("<title>A &amp; B</title>"));
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
