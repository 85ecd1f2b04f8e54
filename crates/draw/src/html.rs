//! HTML pages: one shell and one style sheet, for light and dark mode.

use crate::palette::{DIM, GRID, INK, PAPER};
use crate::text::escape;

/// A self-contained page: sections below a title.
#[derive(Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// A page with a title only.
    pub fn new(title: &str) -> Self {
        Self { title: escape(title), body: String::new() }
    }

    /// Begins a section.
    pub fn heading(&mut self, text: &str) {
        self.body += &format!("<h2>{}</h2>\n", escape(text));
    }

    /// Adds a drawing of [`crate::svg::Svg::finish`].
    pub fn drawing(&mut self, svg: &str) {
        self.body += svg;
    }

    /// Adds a list of names with details.
    pub fn list<'a>(&mut self, items: impl Iterator<Item = (&'a str, String)>) {
        let item = |(name, details): (&str, String)| {
            format!("<li><b>{}</b>: {}</li>\n", escape(name), escape(&details))
        };
        self.body += &format!("<ul>\n{}</ul>\n", items.map(item).collect::<String>());
    }

    /// Adds a table. The first cell of a row names it; the columns in `dim` are dimmed.
    pub fn table(&mut self, caption: &str, header: &[String], rows: &[Vec<String>], dim: &[usize]) {
        let line = |cells: &[String], is_header: bool| -> String {
            let cell = |(at, text): (usize, &String)| {
                let class = if dim.contains(&at) { " class=\"dim\"" } else { "" };
                let text = escape(text);
                match (is_header, at) {
                    (true, _) => format!("<th scope=\"col\"{class}>{text}</th>"),
                    (false, 0) => format!("<th scope=\"row\">{text}</th>"),
                    _ => format!("<td{class}>{text}</td>"),
                }
            };
            format!("<tr>{}</tr>", cells.iter().enumerate().map(cell).collect::<String>())
        };
        let rows: String = rows.iter().map(|row| line(row, false) + "\n").collect();
        self.body += &format!(
            "<table>\n<caption>{}</caption>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n",
            escape(caption),
            line(header, true)
        );
    }

    /// The page as text.
    pub fn finish(self) -> String {
        let Self { title, body } = self;
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>{}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n",
            style()
        )
    }
}

fn style() -> String {
    let colours = |of: fn((&'static str, &'static str)) -> &'static str| {
        let (paper, ink, dim, grid) = (of(PAPER), of(INK), of(DIM), of(GRID));
        format!(
            "body{{background:{paper};color:{ink}}}th,td{{border-color:{grid}}}.dim{{color:{dim}}}"
        )
    };
    let (light, dark) = (colours(|(light, _)| light), colours(|(_, dark)| dark));
    format!(
        ":root{{color-scheme:light dark}}\
         body{{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}}\
         svg{{width:100%;height:auto}}\
         table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}\
         th,td{{text-align:right;padding:.15rem .7rem;border-bottom:1px solid}}\
         {light}@media (prefers-color-scheme:dark){{{dark}}}"
    )
}
