//! A node with its ranks as a picture: which rank runs on which GPU, cores and interface.
//!
//! Both drawings come from one [`scene::Scene`], so that they show the same. Nothing here does I/O
//! and nothing trusts a name: what a driver or a file calls a device cannot steer the terminal or
//! break the XML.

mod cores;
mod devices;
mod grid;
mod ink;
mod legend;
mod markup;
mod notes;
mod palette;
mod scene;
mod svg;
mod svg_parts;
mod terminal;
pub mod text;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

use regatta_model::{Layout, Machine};

/// What a terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalOptions {
    /// Columns; fewer than 40 count as 40.
    pub width: usize,
    /// Whether to colour the ranks.
    pub color: bool,
    /// Whether box-drawing characters may be used, else ASCII.
    pub unicode: bool,
}

/// The node for a terminal, each line ended by a line feed.
pub fn terminal(machine: &Machine, layout: &Layout, options: TerminalOptions) -> String {
    terminal::draw(&scene::Scene::new(machine, layout), options)
}

/// The node as an SVG document that needs nothing else.
pub fn svg(machine: &Machine, layout: &Layout, title: &str) -> String {
    svg::draw(&scene::Scene::new(machine, layout), title)
}
