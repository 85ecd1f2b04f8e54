//! Quoting for POSIX shells.

use std::ffi::OsString;

pub use regatta_model::shell::quote;

/// Quotes the words of a command.
pub fn quote_words<'a>(words: impl IntoIterator<Item = &'a OsString>) -> String {
    let words: Vec<_> = words.into_iter().map(|word| quote(&word.to_string_lossy())).collect();
    words.join(" ")
}

/// Quotes a comment, with double quotes where possible to keep apostrophes readable.
pub fn quote_comment(text: &str) -> String {
    match text.contains(['"', '$', '`', '\\', '!']) {
        true => quote(text),
        false => format!("\"{text}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::quote_comment;

    #[test]
    fn comments_are_readable_and_cannot_execute() {
        assert_eq!(quote_comment("the rank's"), "\"the rank's\"");
        assert_eq!(quote_comment("$(reboot)"), "'$(reboot)'");
    }
}
