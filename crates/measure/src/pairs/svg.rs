//! The matrices as a picture that stands for itself, light, and dark where the viewer prefers that.

use regatta_model::bench::{Matrix, Pairs};

use super::judge::words::short;
use super::text::{Quality, in_unit, names};

const MARGIN: f64 = 24.0;
/// A cell with a figure in it, and one without.
const WIDE: f64 = 46.0;
const NARROW: f64 = 14.0;
/// More ends than these have cells without figures.
const MOST_FIGURES: usize = 16;
/// The mean width of a character of a name, of a finding.
const LETTER: f64 = 6.4;
/// A line of text.
const LINE: f64 = 18.0;
/// Characters of a line of a finding, in a narrow picture at least.
const LEAST_LINE: usize = 60;
/// Steps of colour.
const SHADES: usize = 8;
/// The first of them are so dark that figures on them are light.
const DARK_SHADES: usize = 2;

/// Both matrices below each other, with what stands out. Titles appear above a cell that is pointed
/// at.
pub fn draw(pairs: &Pairs, title: &str) -> String {
    let sound = pairs.fault().is_none();
    let names = if sound { names(&pairs.ends) } else { Vec::new() };
    let (bandwidth, unit) = in_unit(&pairs.bandwidth);
    let label = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) as f64 * LETTER;
    let cell = if names.len() <= MOST_FIGURES { WIDE } else { NARROW };
    let mut page = Page { out: String::new(), names: &names, label, cell };
    let width = (2.0 * MARGIN + label + cell * names.len() as f64).max(520.0).ceil();
    let mut y = MARGIN + 18.0;
    page.text(MARGIN, y, "h1", title);
    if sound {
        let head = format!("Bandwidth from row to column, {unit}");
        y = page.matrix(y + 30.0, &head, &bandwidth, Quality::high(&bandwidth));
        let (head, latency) = ("Latency of 8 bytes, µs", &pairs.latency_us);
        y = page.matrix(y + 30.0, head, latency, Quality::low(latency));
    }
    y = page.findings(y + 30.0, &pairs.findings, width);
    let height = (y + MARGIN).ceil();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>\n{}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" class=\"page\"/>\n{}</svg>\n",
        escape(title),
        style(),
        page.out,
    )
}

/// The picture under construction.
struct Page<'a> {
    out: String,
    names: &'a [String],
    /// The width of the names.
    label: f64,
    cell: f64,
}

impl Page<'_> {
    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        self.out.push_str(&format!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>\n"));
    }

    /// Draws a matrix, and says where it ends.
    fn matrix(&mut self, top: f64, head: &str, figures: &Matrix, quality: Quality) -> f64 {
        self.text(MARGIN, top, "h2", head);
        let (names, left, cell) = (self.names, round(MARGIN + self.label + 8.0), self.cell);
        let above = top + 12.0 + if cell == WIDE { LINE } else { 0.0 };
        if cell == WIDE {
            for (at, name) in names.iter().enumerate() {
                let rank = name.rsplit(' ').next().unwrap_or_default();
                let x = left + cell * (at as f64 + 0.5);
                self.text(x, above - 5.0, "mid dim", rank);
            }
        }
        let height = cell.min(26.0);
        for (i, row) in figures.iter().enumerate() {
            let y = round(above + height * i as f64);
            let place = round(y + height / 2.0 + 4.0);
            self.text(left - 8.0, place, "end", &names[i]);
            for (j, figure) in row.iter().enumerate() {
                let Some(figure) = figure else { continue };
                let x = round(left + cell * j as f64);
                let shade = quality.step(*figure, SHADES);
                let tip = format!("{} to {}: {}", names[i], names[j], short(*figure));
                self.tile(x, y, height, shade, &tip);
                if cell == WIDE {
                    let class = if shade < DARK_SHADES { "mid on-low" } else { "mid on-high" };
                    self.text(x + cell / 2.0, place, class, &short(*figure));
                }
            }
        }
        above + height * figures.len() as f64
    }

    fn tile(&mut self, x: f64, y: f64, height: f64, shade: usize, tip: &str) {
        let (w, h, tip) = (self.cell - 1.0, height - 1.0, escape(tip));
        self.out.push_str(&format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" class=\"s{shade}\">\
             <title>{tip}</title></rect>\n"
        ));
    }

    fn findings(&mut self, top: f64, findings: &[String], width: f64) -> f64 {
        let room = (((width - 2.0 * MARGIN) / LETTER) as usize).max(LEAST_LINE);
        let mut y = top;
        for finding in findings {
            for line in wrapped(finding, room) {
                self.text(MARGIN, y, "", &line);
                y += LINE;
            }
            y += LINE / 2.0;
        }
        y
    }
}

/// A text in lines of at most `room` characters; a longer word stands alone.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A foreign text as it may stand in an element: what XML does not allow is replaced.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// To a tenth of a unit, for short files that are the same everywhere.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The style sheet. From red to blue: colours that nearly everybody can tell apart.
fn style() -> String {
    let shades =
        ["#b2182b", "#d6604d", "#ef9a6b", "#f6c79b", "#e3e0d0", "#b9d3e0", "#8ab8d6", "#5a98c6"];
    let mut css = String::from(
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,\
         sans-serif;font-size:11.5px;fill:#1b2230}\n\
         .h1{font-size:20px;font-weight:700}.h2{font-size:13px;font-weight:600}\n\
         .dim{fill:#5c6675}.end{text-anchor:end}.mid{text-anchor:middle}.page{fill:#f4f6f9}\n",
    );
    for (at, shade) in shades.iter().enumerate() {
        css.push_str(&format!(".s{at}{{fill:{shade}}}"));
    }
    css.push_str(
        "\n@media (prefers-color-scheme: dark){text{fill:#e6eaf1}.dim{fill:#98a3b3}\
         .page{fill:#10141b}}\n.on-low{fill:#fff}.on-high{fill:#10131a}\n",
    );
    css
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::bench::PairEnd;

    fn pairs(n: usize) -> Pairs {
        let end = |at: usize| PairEnd { rank: at as u32, host: format!("<n{at}>") };
        let row = |i: usize| (0..n).map(|j| (i != j).then_some(((i + j) % 5) as f64)).collect();
        let square: Matrix = (0..n).map(row).collect();
        Pairs {
            ends: (0..n).map(end).collect(),
            bandwidth: square.clone(),
            latency_us: square.clone(),
            latency_median_us: square,
            findings: vec!["<n1> & <n2>: slow\u{1b}".to_owned()],
            ..Pairs::default()
        }
    }

    #[test]
    fn every_cell_is_there_and_every_text_is_escaped() {
        for (n, figures) in [(1, true), (5, true), (40, false)] {
            let svg = draw(&pairs(n), "A & B");
            assert_eq!(svg.matches("<rect x=").count(), 2 * n * (n - 1));
            assert_eq!(svg.contains("on-high\">") || n == 1, figures);
            assert!(!svg.contains("<n1>") && svg.contains("&lt;n1&gt; &amp; &lt;n2&gt;: slow?"));
            assert!(svg.contains("<title>A &amp; B</title>"));
            for element in ["svg", "text", "title", "rect"] {
                let ends = svg.matches(&format!("</{element}>")).count();
                let empty = if element == "rect" { 1 } else { 0 };
                let opened = svg.matches(&format!("<{element} ")).count()
                    + svg.matches(&format!("<{element}>")).count();
                assert_eq!(opened, ends + empty, "{element}");
            }
        }
    }

    #[test]
    fn what_contradicts_itself_is_not_drawn() {
        let mut odd = pairs(3);
        odd.bandwidth.pop();
        assert_eq!(draw(&odd, "").matches("<rect x=").count(), 0);
        assert!(draw(&Pairs::default(), "").ends_with("</svg>\n"));
    }
}
