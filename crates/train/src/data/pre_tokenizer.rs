//! Pre-tokenization: splits text into words by the patterns of GPT-2 and Llama 3. Implemented as functions,
//! because a regular expression with Unicode classes would dominate the start-up time. No I/O.

use unicode_general_category::{GeneralCategory, get_general_category};

/// The GPT-2 pattern, also the default of `ByteLevel`.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The Llama 3 pattern, around the number of digits per word (1 in Qwen 2).
const LLAMA3: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// A pre-tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreTokenizer {
    /// GPT-2.
    Gpt2,
    /// Llama 3.
    Llama3 { digits: usize },
}

impl PreTokenizer {
    /// The pre-tokenizer of a known pattern.
    pub fn of_pattern(pattern: &str) -> Option<Self> {
        if pattern == GPT2 {
            return Some(Self::Gpt2);
        }
        match pattern.strip_prefix(LLAMA3[0])?.strip_suffix(LLAMA3[1])? {
            "{1,3}" => Some(Self::Llama3 { digits: 3 }),
            "" => Some(Self::Llama3 { digits: 1 }),
            _ => None,
        }
    }

    /// Splits a text into words.
    pub fn of(self, text: &str) -> impl Iterator<Item = &str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let first = rest.chars().next()?;
            let length = match self {
                Self::Gpt2 => gpt2(rest, first),
                Self::Llama3 { digits } => llama3(rest, first, digits),
            };
            let (word, more) = rest.split_at(length);
            rest = more;
            Some(word)
        })
    }
}

/// Length of the first word in GPT-2.
fn gpt2(text: &str, first: char) -> usize {
    if let Some(length) = contraction(text, false) {
        return length;
    }
    // A space belongs to the following word.
    let space = usize::from(first == ' ');
    match text[space..].chars().next().map(Class::of) {
        Some(class) if class != Class::Space => space + run(&text[space..], class, usize::MAX),
        _ => space_run(text),
    }
}

/// Length of the first word in Llama 3.
fn llama3(text: &str, first: char, digits: usize) -> usize {
    if let Some(length) = contraction(text, true) {
        return length;
    }
    let is_line_end = |c: char| c == '\r' || c == '\n';
    let class = Class::of(first);
    let rest = &text[first.len_utf8()..];
    let next = rest.chars().next().map(Class::of);
    match class {
        Class::Letter => return run(text, Class::Letter, usize::MAX),
        Class::Number => return run(text, Class::Number, digits),
        // Any other character except a line break belongs to the following letters.
        _ if next == Some(Class::Letter) && !is_line_end(first) => {
            return first.len_utf8() + run(rest, Class::Letter, usize::MAX);
        }
        _ => {}
    }
    let space = usize::from(first == ' ' && next == Some(Class::Other));
    if class == Class::Other || space == 1 {
        let signs = space + run(&text[space..], Class::Other, usize::MAX);
        let ends = text[signs..].find(|c| !is_line_end(c)).unwrap_or(text.len() - signs);
        return signs + ends;
    }
    let spaces = &text[..run(text, Class::Space, usize::MAX)];
    match spaces.rfind(is_line_end) {
        Some(last) => last + 1,
        None => space_run(text),
    }
}

/// Length of leading white space; the last character is left to a following word.
fn space_run(text: &str) -> usize {
    let length = run(text, Class::Space, usize::MAX);
    let last = text[..length].chars().next_back().map_or(0, char::len_utf8);
    if length == text.len() || length == last { length } else { length - last }
}

/// Length of leading characters of a class, up to a maximum number of characters.
fn run(text: &str, class: Class, most: usize) -> usize {
    let of_class = text.chars().take(most).take_while(|c| Class::of(*c) == class);
    of_class.map(char::len_utf8).sum()
}

/// Length of a leading contraction such as `'s`.
fn contraction(text: &str, any_case: bool) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    let lower = |c: char| match c {
        // U+017F (long s) matches s case-insensitively.
        'ſ' if any_case => 's',
        _ if any_case => c.to_ascii_lowercase(),
        _ => c,
    };
    let mut characters = rest.chars();
    let first = characters.next()?;
    let second = characters.next().map(lower);
    match (lower(first), second) {
        ('s' | 't' | 'm' | 'd', _) => Some(1 + first.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// Character classes of the patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

impl Class {
    fn of(c: char) -> Self {
        match c {
            'a'..='z' | 'A'..='Z' => Self::Letter,
            '0'..='9' => Self::Number,
            _ if c.is_whitespace() => Self::Space,
            _ if c.is_ascii() => Self::Other,
            _ => Self::beyond_ascii(c),
        }
    }

    fn beyond_ascii(c: char) -> Self {
        use GeneralCategory as G;
        match get_general_category(c) {
            G::UppercaseLetter
            | G::LowercaseLetter
            | G::TitlecaseLetter
            | G::ModifierLetter
            | G::OtherLetter => Self::Letter,
            G::DecimalNumber | G::LetterNumber | G::OtherNumber => Self::Number,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(words: PreTokenizer, text: &str) -> Vec<&str> {
        words.of(text).collect()
    }

    #[test]
    fn gpt2_cuts_as_its_pattern() {
        let text = "It's  a\n\n boat, 2026 knots!!\n";
        let wanted = ["It", "'s", " ", " a", "\n\n", " boat", ",", " 2026", " knots", "!!", "\n"];
        assert_eq!(words(PreTokenizer::Gpt2, text), wanted);
        let wanted = ["'", "S", " x", "\u{a0}", "é", " ¼", " \t"];
        assert_eq!(words(PreTokenizer::Gpt2, "'S x\u{a0}é ¼ \t"), wanted);
    }

    #[test]
    fn llama3_cuts_as_its_pattern() {
        let text = "It'S  a\n \n boat, 2026 knots!!\n\n x\t\"go\" ";
        let wanted = [
            "It", "'S", " ", " a", "\n \n", " boat", ",", " ", "202", "6", " knots", "!!\n\n",
            " x", "\t", "\"go", "\"", " ",
        ];
        assert_eq!(words(PreTokenizer::Llama3 { digits: 3 }, text), wanted);
        assert_eq!(words(PreTokenizer::Llama3 { digits: 1 }, "42"), ["4", "2"]);
    }

    #[test]
    fn patterns_are_known_or_not() {
        let digits = |digits| Some(PreTokenizer::Llama3 { digits });
        for (pattern, expected) in [
            (GPT2, Some(PreTokenizer::Gpt2)),
            (&LLAMA3.join("{1,3}"), digits(3)),
            (&LLAMA3.concat(), digits(1)),
            (r"\w+", None),
        ] {
            assert_eq!(PreTokenizer::of_pattern(pattern), expected, "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost(text in "[ -~\\n\\r\\t]{0,20}\\PC{0,20}") {
            for kind in [PreTokenizer::Gpt2, PreTokenizer::Llama3 { digits: 3 }] {
                prop_assert_eq!(words(kind, &text).concat(), text.as_str());
                prop_assert!(kind.of(&text).all(|word| !word.is_empty()));
            }
        }
    }
}
