//! Heading and footer of the terminal drawing: host name, GPU links and the legend.

use anstyle::Style;
use regatta_draw::line::{BOLD, DIM, PLAIN, StyledLine, flow, rank_style};
use regatta_draw::text::{to_ascii, wrap, wrap_words};
use regatta_model::units::format_ranges;

use super::scene::{CoreState, Scene};
use super::terminal::Renderer;

/// Maximum number of lines about shared cores.
const MAX_SHARED: usize = 8;

/// Host name, CPU model and device counts.
pub fn heading(scene: &Scene, width: usize) -> Vec<StyledLine> {
    let mut first = StyledLine::new(to_ascii(&scene.host), BOLD);
    let model = scene.cpu_model.as_deref().map_or(String::new(), |m| format!("  {}", to_ascii(m)));
    first.push(model, PLAIN);
    let counts = wrap(&scene.counts, ", ", width);
    [first].into_iter().chain(counts.into_iter().map(plain)).collect()
}

fn plain(text: String) -> StyledLine {
    StyledLine::new(text, PLAIN)
}

/// Notes, shared cores and the legend.
pub fn footer(scene: &Scene, renderer: &Renderer, width: usize) -> Vec<StyledLine> {
    let mut lines: Vec<_> = scene.notes.iter().flat_map(|note| paragraph(note, width)).collect();
    let shared = scene.shared_cores();
    for (ranks, cpus) in shared.iter().take(MAX_SHARED) {
        lines.push(plain(format!("Ranks {} share CPU {cpus}", format_ranges(ranks))));
    }
    if shared.len() > MAX_SHARED {
        let rest = shared.len() - MAX_SHARED;
        lines.push(plain(format!("{rest} more sets of ranks share cores")));
    }
    lines.extend(legend(scene, renderer, width));
    lines
}

/// Wraps a text; continuation lines are indented.
fn paragraph(text: &str, width: usize) -> impl Iterator<Item = StyledLine> + use<> {
    let lines = wrap_words(&to_ascii(text), width - 2);
    lines.into_iter().enumerate().map(|(i, l)| plain(if i == 0 { l } else { format!("  {l}") }))
}

/// The meaning of the cells that occur.
fn legend(scene: &Scene, renderer: &Renderer, width: usize) -> Vec<StyledLine> {
    let mut entries: Vec<(String, Style, &str)> = Vec::new();
    if let Some(first) = scene.ranks.first().map(|r| r.local_rank) {
        entries.push((first.to_string(), rank_style(first), "local rank"));
    }
    if let Some(rank) = scene.first_sharing_rank() {
        let text = format!("{rank}+");
        entries.push((text, rank_style(rank), "shared by this rank and others"));
    }
    for (state, text, words) in [
        (CoreState::Idle, renderer.glyphs.idle, "idle"),
        (CoreState::Reserved, "--", "reserved"),
        (CoreState::Unusable, "xx", "not usable by this job"),
    ] {
        if scene.cores().any(|c| c.state == state) {
            entries.push((text.to_owned(), DIM, words));
        }
    }
    if scene.cores().next().is_some() {
        entries.push(("0:".to_owned(), DIM, "first CPU of the row"));
    }
    let entries = entries.into_iter().map(|(text, style, words)| {
        let mut entry = renderer.cell(&text, style);
        entry.push(format!(" {words}"), PLAIN);
        entry
    });
    let mut lines = flow(entries, 3, width);
    if let Some(threads) = scene.smt_use() {
        lines.extend(paragraph(&format!("SMT: {threads}"), width));
    }
    lines
}
