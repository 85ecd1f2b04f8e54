//! Quoting for POSIX shells.

/// Quotes a value if necessary.
pub fn quote(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=@%+".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn values_are_quoted_only_if_necessary() {
        assert_eq!(quote("hsn0,hsn1"), "hsn0,hsn1");
        assert_eq!(quote("AWS Libfabric"), "'AWS Libfabric'");
        assert_eq!(quote("it's"), "'it'\\''s'");
        assert_eq!(quote("^LL128"), "'^LL128'");
        assert_eq!(quote(""), "''");
        assert_eq!(quote("$(reboot)"), "'$(reboot)'");
    }
}
