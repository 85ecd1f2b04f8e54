//! Text that many ranks write at once.

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice, adapter};

/// The text as a stream shows it, without colours where it has none. It can then be written in one
/// piece; a stream that strips the colours itself writes between them, and what other ranks write
/// comes in between.
pub fn shown_on<S: RawStream>(stream: &S, text: String) -> String {
    match AutoStream::choice(stream) {
        ColorChoice::Never => adapter::strip_str(&text).to_string(),
        _ => text,
    }
}
