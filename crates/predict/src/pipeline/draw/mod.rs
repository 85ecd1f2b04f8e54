//! A timeline as a picture: text for a terminal, or SVG. A row a stage; cells say what is done (`F`
//! forward, `B` backward, `I` gradient of the input, `W` gradients of the weights) and with which
//! micro-batch; where a stage has several chunks, a letter says in which: `a` is its first.

mod svg;
mod text;

pub use svg::svg;
pub use text::text;

use super::Work;
use super::simulate::{Span, Timeline};

/// What a cell says, from the longest form to the shortest.
fn labels(span: &Span, stages: usize, several: bool) -> [String; 3] {
    let letter = span.action.work.letter();
    let short = format!("{letter}{}", span.action.micro);
    // Beyond the alphabet a drawing is too crowded to be read anyway.
    let chunk = u8::try_from(span.action.chunk / stages).ok().filter(|chunk| *chunk < 26);
    let chunk = chunk.filter(|_| several).map(|chunk| char::from(b'a' + chunk));
    let long = chunk.map_or_else(|| short.clone(), |chunk| format!("{short}{chunk}"));
    [long, short, letter.to_string()]
}

/// Whether a stage has several chunks.
fn has_several(timeline: &Timeline) -> bool {
    let stages = timeline.ranks.len();
    timeline.ranks.iter().flatten().any(|span| span.action.chunk >= stages)
}

/// What letters there are, with their meaning.
fn legend(timeline: &Timeline) -> Vec<(Work, &'static str)> {
    let all = [
        (Work::Forward, "forward"),
        (Work::Backward, "backward"),
        (Work::Input, "input gradients"),
        (Work::Weight, "weight gradients"),
    ];
    let drawn = |work: Work| timeline.ranks.iter().flatten().any(|span| span.action.work == work);
    all.into_iter().filter(|(work, _)| drawn(*work)).collect()
}
