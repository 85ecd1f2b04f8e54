//! Drawings as text from data: SVG, HTML pages, tables, plots and terminal screens. Nothing here does I/O:
//! the size of a terminal is an argument, and the caller writes the text.
//!
//! Texts may be untrusted: whatever reaches SVG and HTML is escaped here.

pub mod axis;
pub mod bar;
pub mod escapes;
pub mod frame;
pub mod html;
pub mod layout;
pub mod legend;
pub mod line;
pub mod palette;
pub mod plot;
pub mod screen;
pub mod screenshot;
mod style_sheet;
pub mod svg;
pub mod table;
pub mod terminal_plot;
pub mod text;
