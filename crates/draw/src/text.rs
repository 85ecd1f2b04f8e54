//! Text in drawings: escaped and sanitised names, truncation and wrapping.

/// Maximum length of a name.
const MAX_CHARS: usize = 400;

/// Escapes text for XML, SVG and HTML, both as element content and inside quoted attributes.
/// Characters that XML does not allow are replaced by U+FFFD; tab and line breaks are kept.
pub fn escape(text: &str) -> String {
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

/// Sanitises untrusted text: replaces control characters, bidirectional and other invisible marks,
/// and characters that XML forbids.
pub fn sanitize(text: &str) -> String {
    let replace = |c: char| match c {
        c if c.is_control() => '?',
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' => '?',
        '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => '?',
        '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff0}'..='\u{ffff}' => '?',
        c => c,
    };
    text.trim().chars().take(MAX_CHARS).map(replace).collect()
}

/// Replaces non-ASCII characters, whose width depends on the terminal.
pub fn to_ascii(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect()
}

/// Truncates to `width` characters; the last one is then `mark`.
pub fn truncate(text: &str, width: usize, mark: char) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { kept } else { format!("{}{mark}", kept.trim_end()) }
}

/// Joins texts by `separator` into lines of at most `width`; a longer text gets its own line.
pub fn wrap(texts: &[String], separator: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for text in texts {
        let fits = |line: &String| {
            line.chars().count() + separator.chars().count() + text.chars().count() <= width
        };
        match lines.last_mut() {
            Some(line) if fits(line) => line.extend([separator, text]),
            _ => lines.push(text.clone()),
        }
    }
    lines
}

/// Wraps a text at `width` characters, between words.
pub fn wrap_words(text: &str, width: usize) -> Vec<String> {
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    wrap(&words, " ", width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(sanitize("a\x1b[31mb\u{202e}c\0\u{ffff}\u{9b}d"), "a?[31mb?c???d");
        assert_eq!(to_ascii("GPÜ 号"), "GP? ?");
        assert_eq!(sanitize(&"x".repeat(100_000)).len(), MAX_CHARS);
    }

    #[test]
    fn markup_and_illegal_characters_are_escaped() {
        assert_eq!(escape("<&\"'>"), "&lt;&amp;&quot;&#39;&gt;");
        assert_eq!(escape("a\n\u{1b}\u{fffe}é"), "a\n\u{fffd}\u{fffd}é");
    }

    #[test]
    fn texts_are_truncated_and_wrapped() {
        assert_eq!(truncate("abcdef", 4, '~'), "abc~");
        assert_eq!(truncate("abcd", 4, '~'), "abcd");
        assert_eq!(truncate("abcd", 0, '~'), "");
        let words = ["aa", "bb", "cccccc"].map(str::to_owned);
        assert_eq!(wrap(&words, " ", 5), ["aa bb", "cccccc"]);
    }
}
