//! The one writer of SVG: elements with escaped text, rounded coordinates and classes of the style sheet.

use std::collections::BTreeSet;

use crate::palette;
use crate::style_sheet::{ROOT, style_sheet};
use crate::text::{escape, sanitize, truncate};

/// The elements of a drawing, or of a layer of it.
#[derive(Debug, Default, Clone)]
pub struct Svg {
    body: String,
}

/// What a drawing is, and its size.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// Identifier, unique in an HTML page.
    pub id: &'a str,
    /// Title, for tooltips and screen readers.
    pub title: &'a str,
    /// Description for screen readers.
    pub description: &'a str,
    /// Width and height in user units.
    pub size: (f64, f64),
    /// Font size of text without a class that changes it.
    pub font_size: f64,
    /// Class of the background.
    pub background: &'a str,
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

/// Rounds to a tenth of a unit, for short and reproducible files.
pub fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// CSS class of a rank's fill.
pub fn fill(rank: u32) -> String {
    format!("r{}", palette::rank_index(rank))
}

/// CSS class of the colour of a plot's series.
pub fn series_class(index: usize) -> String {
    format!("c{}", index % palette::SERIES.len())
}

impl Svg {
    /// Adds an element with escaped content, which may be empty.
    fn element(
        &mut self,
        name: &str,
        numbers: &[(&str, f64)],
        texts: &[(&str, &str)],
        content: &str,
    ) {
        self.body.push_str(&format!("<{name}"));
        for (key, value) in numbers {
            // Adding zero turns -0 into 0.
            self.body.push_str(&format!(" {key}=\"{}\"", round(*value) + 0.0));
        }
        for (key, value) in texts.iter().filter(|(_, value)| !value.is_empty()) {
            self.body.push_str(&format!(" {key}=\"{}\"", escape(value)));
        }
        self.body.push_str(&match content {
            "" => "/>\n".to_owned(),
            content => format!(">{content}</{name}>\n"),
        });
    }

    /// Adds a line of untrusted text.
    pub fn text(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let text = escape(&sanitize(text));
        self.element("text", &[("x", x), ("y", y)], &[("class", class)], &text);
    }

    /// Adds a line of text, truncated to the width of `at`.
    pub fn text_truncated(&mut self, at: Rect, class: &str, size: f64, text: &str) {
        self.text((at.x, at.y), class, &truncate(text, chars_in(at.w, size), '…'));
    }

    /// Adds a line of text turned by an angle in degrees.
    pub fn text_rotated(&mut self, (x, y): (f64, f64), degrees: f64, class: &str, text: &str) {
        let turn = format!("translate({} {}) rotate({degrees})", round(x), round(y));
        self.element(
            "text",
            &[],
            &[("transform", &turn), ("class", class)],
            &escape(&sanitize(text)),
        );
    }

    /// Adds text of a given width, with all its spaces: a part of a line of a terminal.
    pub fn text_of_width(&mut self, (x, y): (f64, f64), width: f64, class: &str, text: &str) {
        let numbers = [("x", x), ("y", y), ("textLength", width)];
        self.element("text", &numbers, &[("class", class)], &escape(text));
    }

    /// Adds a rectangle with rounded corners.
    pub fn rect(&mut self, Rect { x, y, w, h }: Rect, radius: f64, class: &str) {
        let numbers = [("x", x), ("y", y), ("width", w), ("height", h), ("rx", radius)];
        let shown = if radius > 0.0 { &numbers[..] } else { &numbers[..4] };
        self.element("rect", shown, &[("class", class)], "");
    }

    /// Adds a rectangle with a tooltip.
    pub fn tile(&mut self, Rect { x, y, w, h }: Rect, class: &str, tip: &str) {
        let numbers = [("x", x), ("y", y), ("width", w), ("height", h)];
        self.element("rect", &numbers, &[("class", class)], &title(tip));
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
                    let x = area.x + stripe * i as f64 + left;
                    let w = (stripe - left - right).max(0.0);
                    self.rect(Rect { x, w, ..area }, 0.0, &fill(*rank));
                }
            }
        }
    }

    /// Adds a path, with a tooltip unless it is empty.
    pub fn path(&mut self, data: &str, class: &str, tip: &str) {
        self.element("path", &[], &[("d", data), ("class", class)], &title(tip));
    }

    /// Adds a line through points.
    pub fn polyline(&mut self, points: impl IntoIterator<Item = (f64, f64)>, class: &str) {
        let point = |(x, y): (f64, f64)| format!("{},{}", round(x), round(y));
        let points: Vec<String> = points.into_iter().map(point).collect();
        self.element("polyline", &[], &[("points", &points.join(" ")), ("class", class)], "");
    }

    /// Opens a group with a tooltip and perhaps a further attribute.
    pub fn open(&mut self, attribute: Option<(&str, &str)>, tip: &[String]) {
        let attribute = attribute.map(|(key, value)| format!(" {key}=\"{}\"", escape(value)));
        let lines: Vec<String> = tip.iter().map(|line| sanitize(line)).collect();
        let (attribute, tip) = (attribute.unwrap_or_default(), title(&lines.join("\n")));
        self.body.push_str(&format!("<g{attribute}>{tip}\n"));
    }

    /// Closes the group.
    pub fn close(&mut self) {
        self.body.push_str("</g>\n");
    }

    /// Adds a layer above what is drawn so far.
    pub fn append(&mut self, layer: Svg) {
        self.body.push_str(&layer.body);
    }

    /// The drawing as a self-contained document, with the rules of the classes that occur.
    pub fn finish(self, document: &Document<'_>) -> String {
        let Document { id, size: (width, height), font_size, background, .. } = document;
        let (title, description) =
            (escape(&sanitize(document.title)), escape(document.description));
        let lists = self.body.split(" class=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let used: BTreeSet<&str> =
            lists.flat_map(str::split_whitespace).chain([*background]).collect();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-size=\"{font_size}\" class=\"{ROOT}\" role=\"img\" \
             aria-labelledby=\"{id}-title {id}-desc\">\n\
             <title id=\"{id}-title\">{title}</title>\n<desc id=\"{id}-desc\">{description}</desc>\n\
             <style>{}</style>\n<rect width=\"100%\" height=\"100%\" class=\"{background}\"/>\n{}</svg>\n",
            style_sheet(&used),
            self.body
        )
    }
}

/// A tooltip.
fn title(tip: &str) -> String {
    if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_the_width() {
        let mut svg = Svg::default();
        svg.striped_rect(Rect { x: 0.0, y: 0.0, w: 100.0, h: 10.0 }, 5.0, &[0, 1]);
        assert!(svg.body.contains("<rect x=\"5\" y=\"0\" width=\"45\""));
        assert!(svg.body.contains("<rect x=\"50\" y=\"0\" width=\"45\""));
    }
}
