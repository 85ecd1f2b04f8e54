//! What stands above and below the boxes on a terminal: the node's name, its links, and what the
//! cells mean.

use super::ink::{Ink, Line};
use super::scene::{CoreState, Scene};
use super::terminal::Plan;
use super::text::{number_list, one_column, wrap};

/// Lines about shared cores; more are counted.
const MAX_SHARED: usize = 8;

/// The node's name and its parts.
pub fn heading(scene: &Scene, width: usize) -> Vec<Line> {
    let mut first = Line::default();
    first.push(one_column(&scene.host), Ink::Bold);
    let model =
        scene.cpu_model.as_deref().map_or(String::new(), |m| format!("  {}", one_column(m)));
    first.push(model, Ink::Plain);
    let parts = wrap(&scene.parts, ", ", width);
    [first].into_iter().chain(parts.into_iter().map(plain)).collect()
}

fn plain(text: String) -> Line {
    let mut line = Line::default();
    line.push(text, Ink::Plain);
    line
}

/// The notes, who shares cores, and the legend.
pub fn footer(scene: &Scene, plan: &Plan, width: usize) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for note in &scene.notes {
        lines.extend(paragraph(note, width));
    }
    let shared = scene.shared();
    for (ranks, cpus) in shared.iter().take(MAX_SHARED) {
        lines.push(plain(format!("Ranks {} share CPU {cpus}", number_list(ranks))));
    }
    if shared.len() > MAX_SHARED {
        let rest = shared.len() - MAX_SHARED;
        lines.push(plain(format!("and {rest} more sets of ranks share cores")));
    }
    lines.extend(legend(scene, plan, width));
    lines
}

/// A sentence in as many lines as it needs, all but the first indented.
fn paragraph(text: &str, width: usize) -> impl Iterator<Item = Line> + use<> {
    let words: Vec<String> = one_column(text).split(' ').map(str::to_owned).collect();
    let lines = wrap(&words, " ", width - 2);
    lines.into_iter().enumerate().map(|(i, l)| plain(if i == 0 { l } else { format!("  {l}") }))
}

/// What the cells mean, those that occur.
fn legend(scene: &Scene, plan: &Plan, width: usize) -> Vec<Line> {
    let has = |state: &CoreState| scene.cores().any(|c| c.state == *state);
    let mut entries: Vec<(String, Ink, &str)> = Vec::new();
    if let Some(first) = scene.ranks.first().map(|r| r.local_rank) {
        entries.push((first.to_string(), Ink::Rank(first), "local rank"));
    }
    if let Some(first) = scene.shared().first().and_then(|(ranks, _)| ranks.first().copied()) {
        entries.push((format!("{first}+"), Ink::Rank(first), "this rank and others"));
    }
    for (state, text, words) in [
        (CoreState::Idle, plan.glyphs.idle, "idle"),
        (CoreState::Reserved, "--", "reserved"),
        (CoreState::Unusable, "xx", "not usable by this job"),
    ] {
        if has(&state) {
            entries.push((text.to_owned(), Ink::Dim, words));
        }
    }
    if scene.cores().next().is_some() {
        entries.push(("0:".to_owned(), Ink::Dim, "first CPU of the row"));
    }
    let mut lines: Vec<Line> = Vec::new();
    for (text, ink, words) in entries {
        let mut entry = plan.cell(&text, ink);
        entry.push(format!(" {words}"), Ink::Plain);
        match lines.last_mut() {
            Some(line) if line.width() + 3 + entry.width() <= width => {
                line.push("   ", Ink::Plain);
                line.append(entry);
            }
            _ => lines.push(entry),
        }
    }
    if let Some(threads) = scene.threads() {
        lines.extend(paragraph(&format!("SMT: {threads}"), width));
    }
    lines
}
