//! Renders a timeline as text for a terminal or as SVG, one row per stage. A cell shows the pass (`F`
//! forward, `B` backward, `I` input gradient, `W` weight gradients) and the micro-batch; where a stage has
//! several chunks, a letter shows which, `a` being the first.

mod svg;
mod text;

pub use svg::svg;
pub use text::text;

use super::Computation;
use super::simulate::{Span, Timeline};

/// Labels of a cell, longest first.
fn labels(span: &Span, stages: usize, show_chunk: bool) -> [String; 3] {
    let letter = span.action.computation.letter();
    let short = format!("{letter}{}", span.action.micro_batch);
    // With more than 26 chunks a drawing is unreadable anyway.
    let chunk = u8::try_from(span.action.chunk / stages).ok().filter(|chunk| *chunk < 26);
    let chunk = chunk.filter(|_| show_chunk).map(|chunk| char::from(b'a' + chunk));
    let long = chunk.map_or_else(|| short.clone(), |chunk| format!("{short}{chunk}"));
    [long, short, letter.to_string()]
}

/// Whether stages have several chunks.
fn has_virtual_stages(timeline: &Timeline) -> bool {
    let stages = timeline.ranks.len();
    timeline.ranks.iter().flatten().any(|span| span.action.chunk >= stages)
}

/// The passes that occur, with their names.
fn passes(timeline: &Timeline) -> Vec<(Computation, &'static str)> {
    let all = [
        (Computation::Forward, "forward"),
        (Computation::Backward, "backward"),
        (Computation::BackwardInput, "input gradients"),
        (Computation::BackwardWeight, "weight gradients"),
    ];
    let occurs = |computation: Computation| {
        timeline.ranks.iter().flatten().any(|span| span.action.computation == computation)
    };
    all.into_iter().filter(|(computation, _)| occurs(*computation)).collect()
}
