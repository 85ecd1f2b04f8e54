//! Draws a node with its ranks: GPU, cores and NIC of each rank.
//!
//! The terminal drawing and the SVG both render one `scene::Scene`. Nothing here does I/O. Device
//! and host names are untrusted: they are sanitised for the terminal and escaped in the XML.

mod cores;
mod devices;
mod grid;
mod legend;
mod names;
mod notes;
mod scene;
mod svg;
mod svg_tiles;
mod terminal;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

use regatta_draw::frame::TerminalOptions;
use regatta_model::{Machine, NodeLayout};

/// Draws the node for a terminal of at least 40 columns.
pub fn terminal(machine: &Machine, layout: &NodeLayout, options: TerminalOptions) -> String {
    terminal::draw(&scene::Scene::new(machine, layout), options)
}

/// Draws the node as a self-contained SVG document.
pub fn svg(machine: &Machine, layout: &NodeLayout, title: &str) -> String {
    svg::draw(&scene::Scene::new(machine, layout), title)
}
