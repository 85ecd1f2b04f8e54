//! Text that a shell reads back.

/// Quotes a value for a POSIX shell, if it needs it.
pub fn quote(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=@%+".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', "'\\''"))
}

/// Quotes a sentence, with double quotes where that keeps its apostrophes readable.
pub fn remark(text: &str) -> String {
    match text.contains(['"', '$', '`', '\\', '!']) {
        true => quote(text),
        false => format!("\"{text}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::{quote, remark};

    #[test]
    fn only_what_needs_it_is_quoted() {
        assert_eq!(quote("hsn0,hsn1"), "hsn0,hsn1");
        assert_eq!(quote("AWS Libfabric"), "'AWS Libfabric'");
        assert_eq!(quote("it's"), "'it'\\''s'");
        assert_eq!(quote("^LL128"), "'^LL128'");
        assert_eq!(quote(""), "''");
        assert_eq!(quote("$(reboot)"), "'$(reboot)'");
    }

    #[test]
    fn remarks_stay_readable_and_harmless() {
        assert_eq!(remark("the rank's"), "\"the rank's\"");
        assert_eq!(remark("$(reboot)"), "'$(reboot)'");
    }
}
