//! As much of Rust's syntax as is needed to know comments, and items for tests.

/// A line of a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceLine {
    Blank,
    Comment,
    Code,
    /// Of an item that is compiled for tests alone.
    Test,
}

/// `#[cfg(test)] mod name;`
#[derive(Debug, PartialEq, Eq)]
pub struct TestModule {
    pub name: String,
    /// Its `#[path]`.
    pub path: Option<String>,
}

/// A source file.
#[derive(Debug)]
pub struct File {
    pub lines: Vec<SourceLine>,
    pub test_modules: Vec<TestModule>,
}

/// Attributes of items that are compiled for tests alone.
const TEST_ATTRIBUTES: [&str; 2] = ["#[cfg(test)]", "#![cfg(test)]"];

/// Sorts the lines of a file.
pub fn lex(text: &str) -> File {
    let masked = mask(text);
    let mut lines: Vec<SourceLine> = text
        .lines()
        .zip(masked.lines())
        .map(|(line, masked)| match (line.trim().is_empty(), masked.trim().is_empty()) {
            (true, _) => SourceLine::Blank,
            (false, true) => SourceLine::Comment,
            (false, false) => SourceLine::Code,
        })
        .collect();
    let mut test_modules = Vec::new();
    for (start, attribute) in test_attributes(&masked) {
        let end = match attribute.starts_with("#!") {
            true => masked.len(),
            false => item_end(&masked, start + attribute.len()),
        };
        test_modules.extend(declared_module(&text[start..end]));
        let line_of = |offset: usize| masked[..offset].matches('\n').count();
        lines[line_of(start)..=line_of(end.saturating_sub(1))].fill(SourceLine::Test);
    }
    File { lines, test_modules }
}

/// Where attributes of items for tests begin.
fn test_attributes(masked: &str) -> Vec<(usize, &'static str)> {
    let of = |attribute| masked.match_indices(attribute).map(move |(at, _)| (at, attribute));
    TEST_ATTRIBUTES.into_iter().flat_map(of).collect()
}

/// The end of the item after an attribute: its block, its semicolon, or the comma of a field or variant.
fn item_end(masked: &str, from: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in masked.bytes().enumerate().skip(from) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            // The end of what encloses a last field without a comma.
            b'}' | b')' | b']' if depth == 0 => return at,
            b'}' if depth == 1 => return at + 1,
            b'}' | b')' | b']' => depth -= 1,
            b';' | b',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    masked.len()
}

/// The module without a body that an item declares.
fn declared_module(item: &str) -> Option<TestModule> {
    let declaration = item.trim_end().strip_suffix(';')?;
    let (attributes, name) = declaration.rsplit_once("mod ")?;
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let path = attributes.split_once("#[path = \"").and_then(|(_, rest)| rest.split_once('"'));
    is_name
        .then(|| TestModule { name: name.to_owned(), path: path.map(|(path, _)| path.to_owned()) })
}

/// The text with all comments as spaces, and the contents of literals as `_`: with the same lines and offsets.
fn mask(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (length, fill) = token(rest, masked.bytes().next_back());
        let (token, tail) = rest.split_at(length);
        match fill {
            Some(fill) => {
                masked.extend(token.bytes().map(|b| if b == b'\n' { '\n' } else { fill }))
            }
            None => masked.push_str(token),
        }
        rest = tail;
    }
    masked
}

/// The length of the first token in bytes, and what replaces it. `before` is the byte before it.
fn token(text: &str, before: Option<u8>) -> (usize, Option<char>) {
    let in_word = before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    let first = text.chars().next().map_or(1, char::len_utf8);
    if text.starts_with("//") {
        (text.find('\n').unwrap_or(text.len()), Some(' '))
    } else if text.starts_with("/*") {
        (block_comment(text), Some(' '))
    } else if let Some(length) = raw_string(text).filter(|_| !in_word) {
        (length, Some('_'))
    } else if text.starts_with('"') {
        (quoted(text, '"'), Some('_'))
    } else if let Some(length) = character(text) {
        (length, Some('_'))
    } else {
        // Offsets count bytes: a character of several is as many underscores.
        (first, (first > 1).then_some('_'))
    }
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while let Some(next) = text.get(at..).and_then(|rest| rest.find(['/', '*']).map(|n| at + n)) {
        at = next + 1;
        if text[next..].starts_with("/*") {
            (depth, at) = (depth + 1, next + 2);
        } else if text[next..].starts_with("*/") {
            (depth, at) = (depth - 1, next + 2);
            if depth == 0 {
                return at;
            }
        }
    }
    text.len()
}

/// The length of `r"..."`, `br#"..."#` and the like.
fn raw_string(text: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        let rest = text.strip_prefix(prefix).unwrap_or("");
        rest.trim_start_matches('#').starts_with('"')
    })?;
    let hashes = text[prefix.len()..].find('"')?;
    let start = prefix.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// The length of a literal in quotation marks, escapes included.
fn quoted(text: &str, mark: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == mark => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character literal; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    let mut chars = rest.chars();
    let (first, second) = (chars.next()?, chars.next());
    (first == '\\' || second == Some('\'')).then(|| quoted(text, '\''))
}

#[cfg(test)]
mod tests {
    use super::SourceLine::{Blank, Code, Comment, Test};
    use super::*;

    #[test]
    fn comments_are_no_code_and_literals_are() {
        let text =
            "fn f() {\n\n    // Why.\n    /* a /* b */\n    } */\n    let s = \"// no\n}\";\n}\n";
        assert_eq!(lex(text).lines, [Code, Blank, Comment, Comment, Comment, Code, Code, Code]);
        assert_eq!(lex("r#\"\n//\"\n\"#;").lines, [Code; 3]);
        assert_eq!(lex("let c = ['\"', '\\'', b'{'];\nf::<'a>(); // x").lines, [Code; 2]);
    }

    #[test]
    fn items_for_tests_end_with_their_block_or_semicolon() {
        let text = "#[cfg(test)]\nfn f(a: [u8; 2]) {\n    '}'; \"}\";\n}\nfn g() {}\n#[cfg(test)]\nuse a::b;\nstruct A {\n    #[cfg(test)]\n    a: u8,\n    b: u8,\n}\n";
        let file = lex(text);
        let kept = [Code, Test, Test, Code, Test, Test, Code, Code];
        assert_eq!(file.lines[4..], kept);
        assert_eq!(file.lines[..4], [Test; 4]);
        assert!(file.test_modules.is_empty());
    }

    #[test]
    fn modules_without_a_body_are_other_files() {
        let module = |text| lex(text).test_modules;
        let named = |path: Option<&str>| {
            vec![TestModule { name: "fake".to_owned(), path: path.map(str::to_owned) }]
        };
        assert_eq!(module("#[cfg(test)]\npub(super) mod fake;"), named(None));
        assert_eq!(
            module("#[cfg(test)]\n#[path = \"../x.rs\"]\nmod fake;"),
            named(Some("../x.rs"))
        );
        assert_eq!(module("#[cfg(test)]\nmod fake {}"), []);
        assert_eq!(module("#[cfg(test)]\nuse a::mod_b;"), []);
    }
}
