//! Plots of bandwidth and time over size, as SVG, or as an HTML page with tables.
//!
//! A plot is self-contained and adapts to light and dark mode.

mod axis;
mod html;
mod panel;

use regatta_model::text::escape_xml;
use regatta_model::{BenchResult, Operation};

use crate::buffer_mode::BufferMode;
use crate::compare::by_size;
use crate::metric::Metric;
use panel::{Frame, PALETTE_SIZE, Series};

pub use html::{html, operations};

/// Width of a plot and of its panels.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 80.0;
const PANEL_WIDTH: f64 = 790.0;
const PANEL_HEIGHT: f64 = 260.0;
/// Space above the first panel (without the legend) and between panels.
const TOP: f64 = 84.0;
const BETWEEN: f64 = 74.0;
const LEGEND_LINE: f64 = 20.0;

/// Colour-blind safe line colours: light mode, dark mode.
const PALETTE: [(&str, &str); PALETTE_SIZE] = [
    ("#0068b5", "#5fb0ff"),
    ("#c8500a", "#ff9d5c"),
    ("#00795a", "#3fd1a5"),
    ("#a1377f", "#f08cca"),
    ("#7a6400", "#e0c64d"),
    ("#4b4bb8", "#a5a5ff"),
    ("#5a5a5a", "#bdbdbd"),
    ("#a11d1d", "#ff8080"),
];

/// Plots an operation of several results: a bandwidth panel and a time panel, one line per result,
/// out of place if all rows have it, else in place, unless a mode is requested. `None` if there are
/// no values.
pub fn svg(
    results: &[BenchResult],
    operation: &Operation,
    place: Option<BufferMode>,
) -> Option<String> {
    let bandwidth = match Metric::default_for(operation) {
        Metric::Time => Metric::BusBandwidth,
        metric => metric,
    };
    let place = place.unwrap_or_else(|| common_mode(results, operation));
    let metrics = [bandwidth, Metric::Time];
    let panels: Vec<(Metric, Vec<Series>)> = metrics
        .into_iter()
        .map(|metric| (metric, series_of(results, operation, metric, place)))
        .filter(|(_, all)| all.iter().any(|series| !series.values.is_empty()))
        .collect();
    (!panels.is_empty()).then(|| drawing(operation, place, &panels))
}

/// Out of place if all rows have it, else in place.
fn common_mode(results: &[BenchResult], operation: &Operation) -> BufferMode {
    let tables = results.iter().flat_map(|result| &result.tables);
    let mut rows = tables.filter(|table| table.operation == *operation).flat_map(|t| &t.rows);
    let out_of_place = rows.all(|row| row.out_of_place.is_some());
    if out_of_place { BufferMode::OutOfPlace } else { BufferMode::InPlace }
}

/// One series per table of the operation; the label names the type if a result has several.
fn series_of(
    results: &[BenchResult],
    operation: &Operation,
    metric: Metric,
    place: BufferMode,
) -> Vec<Series> {
    let mut all = Vec::new();
    for result in results {
        let tables = || result.tables.iter().filter(|table| table.operation == *operation);
        let several = tables().count() > 1;
        for table in tables() {
            let kind = [&table.dtype, &table.redop].into_iter().flatten().cloned();
            let kind = several.then(|| format!(" ({})", kind.collect::<Vec<_>>().join(" ")));
            let label = result.label.clone() + &kind.unwrap_or_default();
            all.push(Series { label, values: by_size(result, table, metric, place) });
        }
    }
    all
}

fn drawing(operation: &Operation, place: BufferMode, panels: &[(Metric, Vec<Series>)]) -> String {
    let series = panels.first().into_iter().flat_map(|(_, all)| all);
    let names: Vec<String> = series.map(|series| escape_xml(&series.label)).collect();
    let legend_height = LEGEND_LINE * names.len() as f64;
    let each = PANEL_HEIGHT + BETWEEN;
    let height = TOP + legend_height + each * panels.len() as f64;
    let title = escape_xml(&format!("{operation}, {place}, by size"));
    let id = identifier(operation);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"regatta-plot\" role=\"img\" \
         aria-labelledby=\"{id}-title {id}-desc\" viewBox=\"0 0 {WIDTH} {height}\">\n\
         <title id=\"{id}-title\">{title}</title>\n\
         <desc id=\"{id}-desc\">Lines of {}.</desc>\n<style>{}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"34\">{title}</text>\n",
        names.join("; "),
        style()
    );
    text.push_str(&legend(&names));
    for (index, (metric, all)) in panels.iter().enumerate() {
        let top = TOP + legend_height + each * index as f64;
        let frame = Frame { left: LEFT, top, width: PANEL_WIDTH, height: PANEL_HEIGHT };
        text.push_str(&panel::draw(frame, *metric, all));
    }
    text.push_str("</svg>\n");
    text
}

fn legend(names: &[String]) -> String {
    let entry = |(index, name): (usize, &String)| {
        let y = 58.0 + LEGEND_LINE * index as f64;
        let (middle, x) = (y - 4.0, LEFT + 34.0);
        let (colour, mark) = (index % PALETTE_SIZE, panel::mark(index, LEFT + 12.0, middle));
        format!(
            "<path class=\"line c{colour}\" d=\"M{LEFT} {middle:.1}h24\"/><path class=\"mark \
             c{colour}\" d=\"{mark}\"/><text class=\"label\" x=\"{x:.1}\" y=\"{y:.1}\">{name}</text>\n"
        )
    };
    names.iter().enumerate().map(entry).collect()
}

/// Style sheet for light and dark mode, scoped to our plots.
fn style() -> String {
    let colours = |dark: bool| -> String {
        let one = |(index, (light, black)): (usize, &(&str, &str))| {
            let (plot, colour) = (".regatta-plot", if dark { black } else { light });
            format!(
                "{plot} .line.c{index}{{stroke:{colour}}}{plot} .mark.c{index}{{fill:{colour}}}"
            )
        };
        PALETTE.iter().enumerate().map(one).collect()
    };
    format!(
        ".regatta-plot{{font:13px system-ui,sans-serif}}\
         .regatta-plot text{{fill:#222}}.regatta-plot .paper{{fill:#fff}}\
         .regatta-plot .title{{font-size:18px;font-weight:600}}.regatta-plot .name{{font-weight:600}}\
         .regatta-plot .tick{{font-size:11px}}.regatta-plot .grid{{stroke:#ddd;fill:none}}\
         .regatta-plot .line{{fill:none;stroke-width:2}}{}\
         @media (prefers-color-scheme:dark){{.regatta-plot text{{fill:#e6e6e6}}\
         .regatta-plot .paper{{fill:#161616}}.regatta-plot .grid{{stroke:#3a3a3a}}{}}}",
        colours(false),
        colours(true)
    )
}

/// An id prefix unique to the operation.
fn identifier(operation: &Operation) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("plot-{}", operation.name().chars().map(letter).collect::<String>())
}
