//! Text encodings: hexadecimal and XML.

use std::fmt::Write as _;

/// Lower-case hexadecimal digits, two per byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string is infallible.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Escapes text for XML, SVG and HTML, both as element content and inside quoted attributes.
/// Characters that XML does not allow are replaced by U+FFFD; tab and line breaks are kept.
pub fn escape_xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_has_two_digits_per_byte() {
        assert_eq!(hex(&[0, 0x0f, 0xa0, 0xff]), "000fa0ff");
    }

    #[test]
    fn markup_and_illegal_characters_are_escaped() {
        assert_eq!(escape_xml("<&\"'>"), "&lt;&amp;&quot;&#39;&gt;");
        assert_eq!(escape_xml("a\n\u{1b}\u{fffe}é"), "a\n\u{fffd}\u{fffd}é");
    }
}
