//! Quoting for POSIX shells.

use std::ffi::OsString;

/// Quotes a value if necessary.
pub fn quote(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=@%+".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', "'\\''"))
}

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
    use super::{quote, quote_comment};

    #[test]
    fn values_are_quoted_only_if_necessary() {
        assert_eq!(quote("hsn0,hsn1"), "hsn0,hsn1");
        assert_eq!(quote("AWS Libfabric"), "'AWS Libfabric'");
        assert_eq!(quote("it's"), "'it'\\''s'");
        assert_eq!(quote("^LL128"), "'^LL128'");
        assert_eq!(quote(""), "''");
        assert_eq!(quote("$(reboot)"), "'$(reboot)'");
    }

    #[test]
    fn comments_are_readable_and_cannot_execute() {
        assert_eq!(quote_comment("the rank's"), "\"the rank's\"");
        assert_eq!(quote_comment("$(reboot)"), "'$(reboot)'");
    }
}
