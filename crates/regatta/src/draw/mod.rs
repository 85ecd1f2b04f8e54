//! Draws a node with its ranks: GPU, cores and NIC of each rank.
//!
//! The terminal drawing and the SVG both render one [`scene::Scene`]. Nothing here does I/O. Device
//! and host names are untrusted: they are sanitised for the terminal and escaped in the XML.

mod cores;
mod devices;
mod grid;
mod legend;
mod notes;
mod palette;
mod scene;
mod styled_line;
mod svg;
mod svg_tiles;
mod svg_writer;
mod terminal;
pub mod text;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

use regatta_model::{Machine, NodeLayout};

/// Capabilities of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalOptions {
    /// Columns, at least 40.
    pub width: usize,
    /// Whether to use colours.
    pub color: bool,
    /// Whether to use box-drawing characters instead of ASCII.
    pub unicode: bool,
}

/// Draws the node for a terminal.
pub fn terminal(machine: &Machine, layout: &NodeLayout, options: TerminalOptions) -> String {
    terminal::draw(&scene::Scene::new(machine, layout), options)
}

/// Draws the node as a self-contained SVG document.
pub fn svg(machine: &Machine, layout: &NodeLayout, title: &str) -> String {
    svg::draw(&scene::Scene::new(machine, layout), title)
}
