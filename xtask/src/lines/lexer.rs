//! The lines of a source file: code, comments, and items for tests.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

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

/// Sorts the lines of a file.
///
/// # Errors
/// If it is not Rust.
pub fn lex(text: &str) -> Result<File> {
    let tokens: TokenStream = text.parse().map_err(|error| anyhow!("{error}"))?;
    let of_line = |line: &str| match line.trim().is_empty() {
        true => SourceLine::Blank,
        false => SourceLine::Comment,
    };
    let lines = text.lines().map(of_line).collect();
    let mut file = File { lines, test_modules: Vec::new() };
    file.add(tokens);
    Ok(file)
}

impl File {
    /// Finds the code in some tokens, and the items for tests.
    fn add(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = trees.as_slice();
        while let [first, ..] = rest {
            let taken = match rest {
                [TokenTree::Punct(hash), not, test, ..]
                    if hash.as_char() == '#' && is_punct(not, '!') && is_test(test) =>
                {
                    self.lines[line(first.span())..].fill(SourceLine::Test);
                    rest.len()
                }
                [TokenTree::Punct(hash), test, item @ ..]
                    if hash.as_char() == '#' && is_test(test) =>
                {
                    let item = &item[..item_length(item)];
                    self.test_modules.extend(declared_module(item));
                    let last = item.last().unwrap_or(test).span().end().line;
                    self.lines[line(first.span())..last].fill(SourceLine::Test);
                    2 + item.len()
                }
                // The tokens of a comment for documentation are where it is.
                [TokenTree::Punct(hash), ..]
                    if hash.as_char() == '#' && is_comment(hash.span()) =>
                {
                    let same = |tree: &&TokenTree| tree.span().start() == hash.span().start();
                    rest.iter().take_while(same).count()
                }
                [TokenTree::Group(group), ..] => {
                    self.add_code(group.span_open());
                    self.add(group.stream());
                    self.add_code(group.span_close());
                    1
                }
                _ => {
                    self.add_code(first.span());
                    1
                }
            };
            rest = &rest[taken..];
        }
    }

    /// A token, whose text may have lines of its own.
    fn add_code(&mut self, token: Span) {
        for line in &mut self.lines[line(token)..token.end().line] {
            if *line == SourceLine::Comment {
                *line = SourceLine::Code;
            }
        }
    }
}

/// The index of the first line.
fn line(span: Span) -> usize {
    span.start().line - 1
}

fn is_punct(tree: &TokenTree, wanted: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

fn is_comment(token: Span) -> bool {
    token.source_text().is_some_and(|text| text.starts_with('/'))
}

/// Whether an attribute limits its item to tests.
fn is_test(attribute: &TokenTree) -> bool {
    attribute.span().source_text().is_some_and(|text| text == "[cfg(test)]")
}

/// The number of tokens of the item after an attribute: up to its block, its semicolon, or the comma of a
/// field or variant, which the last one may not have.
fn item_length(trees: &[TokenTree]) -> usize {
    let is_end = |tree: &TokenTree| match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        tree => is_punct(tree, ';') || is_punct(tree, ','),
    };
    trees.iter().position(is_end).map_or(trees.len(), |end| end + 1)
}

/// The module without a body that an item declares.
fn declared_module(item: &[TokenTree]) -> Option<TestModule> {
    let [attributes @ .., TokenTree::Ident(keyword), TokenTree::Ident(name), end] = item else {
        return None;
    };
    let path = |tree: &TokenTree| {
        let text = tree.span().source_text()?;
        Some(text.strip_prefix("[path = \"")?.strip_suffix("\"]")?.to_owned())
    };
    (keyword == "mod" && is_punct(end, ';'))
        .then(|| TestModule { name: name.to_string(), path: attributes.iter().find_map(path) })
}

#[cfg(test)]
mod tests {
    use super::SourceLine::{Blank, Code, Comment, Test};
    use super::*;

    #[test]
    fn comments_are_no_code_and_literals_are() {
        let text =
            "fn f() {\n\n    // Why.\n    /* a /* b */\n    } */\n    let s = \"// no\n}\";\n}\n";
        assert_eq!(
            lex(text).unwrap().lines,
            [Code, Blank, Comment, Comment, Comment, Code, Code, Code]
        );
        assert_eq!(lex("r#\"\n//\"\n\"#;").unwrap().lines, [Code; 3]);
        assert_eq!(lex("let c = ['\"', '\\'', b'{'];\nf::<'a>(); // x").unwrap().lines, [Code; 2]);
    }

    #[test]
    fn items_for_tests_end_with_their_block_or_semicolon() {
        let text = "#[cfg(test)]\nfn f(a: [u8; 2]) {\n    '}'; \"}\";\n}\nfn g() {}\n#[cfg(test)]\nuse a::b;\nstruct A {\n    #[cfg(test)]\n    a: u8,\n    b: u8,\n}\n";
        let file = lex(text).unwrap();
        let kept = [Code, Test, Test, Code, Test, Test, Code, Code];
        assert_eq!(file.lines[4..], kept);
        assert_eq!(file.lines[..4], [Test; 4]);
        assert!(file.test_modules.is_empty());
    }

    #[test]
    fn modules_without_a_body_are_other_files() {
        let module = |text| lex(text).unwrap().test_modules;
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
