//! SVG elements with escaped text, and the style sheet.

use regatta_model::text::escape_xml;

use super::palette::{self, PALETTE};
use super::text::{sanitize, truncate};

/// Builds SVG text.
#[derive(Debug, Default)]
pub struct SvgWriter {
    /// The text so far.
    pub out: String,
}

/// A rectangle in user units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rect {
    /// Left edge.
    pub x: f64,
    /// Top edge.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

/// Characters that fit in `width` at a font size, by the mean width of a sans-serif font.
pub fn chars_in(width: f64, size: f64) -> usize {
    (width / (size * 0.54)).max(0.0) as usize
}

impl SvgWriter {
    /// Adds a line of untrusted text.
    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape_xml(&sanitize(text));
        self.out.push_str(&format!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>\n"));
    }

    /// Adds a line of text, truncated to the width of `at`.
    pub fn text_truncated(&mut self, at: Rect, class: &str, size: f64, text: &str) {
        self.text(at.x, at.y, class, &truncate(text, chars_in(at.w, size), '…'));
    }

    /// Adds a rectangle with rounded corners.
    pub fn rect(&mut self, area: Rect, radius: f64, class: &str) {
        let Rect { x, y, w, h } = area;
        self.out.push_str(&format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"{radius}\" class=\"{class}\"/>\n"
        ));
    }

    /// Adds a rectangle with equal vertical stripes in the colours of the ranks.
    pub fn striped_rect(&mut self, area: Rect, radius: f64, ranks: &[u32]) {
        let stripe = area.w / ranks.len().max(1) as f64;
        if let [first, .., last] = ranks {
            // Only the outer corners are rounded: draw both ends rounded, then cover the middle with
            // square stripes.
            self.rect(Rect { w: area.w / 2.0 + radius, ..area }, radius, &fill(*first));
            let right = area.x + area.w / 2.0 - radius;
            self.rect(Rect { x: right, w: area.w / 2.0 + radius, ..area }, radius, &fill(*last));
        }
        match ranks {
            [] => {}
            [only] => self.rect(area, radius, &fill(*only)),
            _ => {
                for (i, rank) in ranks.iter().enumerate() {
                    let left = if i == 0 { radius } else { 0.0 };
                    let right = if i + 1 == ranks.len() { radius } else { 0.0 };
                    let x = round(area.x + stripe * i as f64 + left);
                    let w = round((stripe - left - right).max(0.0));
                    self.rect(Rect { x, w, ..area }, 0.0, &fill(*rank));
                }
            }
        }
    }

    /// Opens a group with a tooltip.
    pub fn open(&mut self, attributes: &str, tip: &[String]) {
        let lines: Vec<String> = tip.iter().map(|line| escape_xml(&sanitize(line))).collect();
        self.out.push_str(&format!("<g{attributes}><title>{}</title>\n", lines.join("\n")));
    }

    /// Closes the group.
    pub fn close(&mut self) {
        self.out.push_str("</g>\n");
    }
}

/// CSS class of a rank's fill.
pub fn fill(rank: u32) -> String {
    format!("r{}", palette::index(rank))
}

/// Rounds to a tenth of a unit, for short and reproducible files.
pub fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The style sheet, with a dark variant.
pub fn style() -> String {
    let mut css = String::from(
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,\
         sans-serif;font-size:11px;fill:#1b2230}\n\
         .h1{font-size:20px;font-weight:700}.h2{font-size:13px;font-weight:600}\n\
         .dim{fill:#5c6675}.end{text-anchor:end}.mid{text-anchor:middle}\n\
         .num{font-size:10.5px;font-weight:600;text-anchor:middle}\n\
         .on{fill:#10131a}.strong{font-weight:700;font-size:12px}\n\
         .side{font-weight:600;text-anchor:end}\n\
         .page{fill:#f4f6f9}.box{fill:#fff;stroke:#d5dae2}\n\
         .card{fill:#f4f6f9;stroke:#c3cad5}.idle{fill:none;stroke:#c3cad5}\n\
         .reserved{fill:#dde1e8;stroke:#c3cad5}\n\
         .unusable{fill:none;stroke:#d5dae2;stroke-dasharray:2 2}\n\
         .down{fill:#c4262e;font-weight:700}.pip{fill:#10131a}.off{fill-opacity:.22}\n\
         .link{fill:none;stroke-width:2.5;stroke-linecap:round}\n",
    );
    for (i, swatch) in PALETTE.iter().enumerate() {
        let (tile, line) = (swatch.css(), swatch.css_line());
        css.push_str(&format!(".r{i}{{fill:{tile}}}.l{i}{{stroke:{line}}}\n"));
    }
    css.push_str(
        "@media (prefers-color-scheme: dark){\n\
         text{fill:#e6eaf1}.dim{fill:#98a3b3}.on{fill:#10131a}\n\
         .page{fill:#10141b}.box{fill:#1a202a;stroke:#2e3745}\n\
         .card{fill:#232b37;stroke:#3c4757}.idle{stroke:#475467}\n\
         .reserved{fill:#323c4b;stroke:#475467}.unusable{stroke:#3c4757}\n\
         .down{fill:#ff8a84}\n",
    );
    for (i, swatch) in PALETTE.iter().enumerate() {
        css.push_str(&format!(".l{i}{{stroke:{}}}", swatch.css()));
    }
    css.push_str("\n}\n");
    css
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_the_width() {
        let mut svg = SvgWriter::default();
        svg.striped_rect(Rect { x: 0.0, y: 0.0, w: 100.0, h: 10.0 }, 5.0, &[0, 1]);
        assert!(svg.out.contains("<rect x=\"5\" y=\"0\" width=\"45\""));
        assert!(svg.out.contains("<rect x=\"50\" y=\"0\" width=\"45\""));
    }
}
