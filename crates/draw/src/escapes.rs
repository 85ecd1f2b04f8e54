//! Makes the text of other programs safe for a terminal: escape sequences could set its title, clear
//! the screen or write to the clipboard.

/// Maximum length of the parameters of a colour, in bytes.
const MAX_PARAMETERS: usize = 64;

/// Removes control characters and escape sequences except newlines, tabs and colours (SGR). A
/// sequence may span several pieces of text; a newline ends it.
#[derive(Debug, Default)]
pub struct Sanitizer {
    state: State,
    /// Parameters of the control sequence so far.
    parameters: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// In a control sequence (CSI), which a letter ends.
    ControlSequence,
    /// In a control string (OSC, DCS, SOS, PM or APC), which BEL or ST ends.
    ControlString,
}

/// The text without anything that changes the terminal other than its colours.
pub fn keep_colours(text: &str) -> String {
    Sanitizer::default().push(text)
}

/// A line of which only the colours are kept, which end with it.
pub fn coloured_line(text: &str) -> String {
    let line = keep_colours(text);
    let reset = if line.contains('\x1b') { "\x1b[0m" } else { "" };
    line + reset
}

impl Sanitizer {
    /// The next piece of the text, sanitized.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            self.state = self.next_state(c, &mut out);
        }
        out
    }

    fn next_state(&mut self, c: char, out: &mut String) -> State {
        match (self.state, c) {
            (_, '\n') => push_text(c, out),
            (_, '\x1b') => State::Escape,
            // A C1 control character is equivalent to ESC and a letter.
            (_, '\u{80}'..='\u{9f}') => {
                self.after_escape(char::from_u32(u32::from(c) - 0x40).unwrap_or_default(), out)
            }
            (State::Escape, _) => self.after_escape(c, out),
            (State::ControlSequence, ' '..='?') if self.parameters.len() < MAX_PARAMETERS => {
                self.parameters.push(c);
                State::ControlSequence
            }
            (State::ControlSequence, '@'..='~') => self.end_sequence(c, out),
            (State::ControlString, '\x07') => State::Text,
            (State::ControlString, _) => State::ControlString,
            (State::Text | State::ControlSequence, _) => push_text(c, out),
        }
    }

    fn after_escape(&mut self, c: char, out: &mut String) -> State {
        match c {
            '[' => {
                self.parameters.clear();
                State::ControlSequence
            }
            ']' | 'P' | 'X' | '^' | '_' => State::ControlString,
            // Intermediate bytes, as in `ESC ( B`.
            ' '..='/' => State::Escape,
            '0'..='~' => State::Text,
            _ => push_text(c, out),
        }
    }

    fn end_sequence(&mut self, last: char, out: &mut String) -> State {
        let is_parameter = |c: char| c.is_ascii_digit() || c == ';' || c == ':';
        if last == 'm' && self.parameters.chars().all(is_parameter) {
            out.extend(["\x1b[", &self.parameters, "m"]);
        }
        State::Text
    }
}

fn push_text(c: char, out: &mut String) -> State {
    if !c.is_control() || c == '\t' || c == '\n' {
        out.push(c);
    }
    State::Text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn colours_tabs_and_newlines_are_kept_and_nothing_else() {
        for (text, expected) in [
            ("\x1b[1;31mred\x1b[0m\t\x1b[38:5:1mx\x1b[m\n", None),
            ("title \x1b]0;owned\x07end", Some("title end")),
            ("clip \x1b]52;c;aGk=\x1b\\end", Some("clip end")),
            ("\u{9d}0;owned\u{9c}end", Some("end")),
            ("\x1b[2J\x1b[Hcleared \x1b[?1049h\x1bc", Some("cleared ")),
            ("\u{9b}2Jc1", Some("c1")),
            ("\x1b(B\x1b7saved", Some("saved")),
            ("\x1b[>4;2mkeyboard", Some("keyboard")),
            ("\x1bP1$r0m\x1b\\dcs", Some("dcs")),
            ("bell\x07 back\x08space\x7f\r", Some("bell backspace")),
            ("unterminated \x1b]0;x\nnext line", Some("unterminated \nnext line")),
            ("grüße 你好 🚣", None),
        ] {
            assert_eq!(keep_colours(text), expected.unwrap_or(text), "{text:?}");
        }
    }

    /// Text with many control characters.
    fn hostile() -> impl Strategy<Value = String> {
        let parts = "\x1b|\x1b\\[|\x1b\\]|\u{9b}|\u{9d}|\x07|\r|\n|[0-9;:?m]{0,4}|[ -~]|\\PC";
        proptest::collection::vec(parts, 0..40).prop_map(|parts| parts.concat())
    }

    /// Removes colours.
    fn without_colours(text: &str) -> String {
        let mut pieces = text.split("\x1b[");
        let first = pieces.next().unwrap_or_default().to_owned();
        pieces.fold(first, |out, piece| {
            let (parameters, rest) = piece.split_once('m').unwrap();
            assert!(parameters.chars().all(|c| "0123456789;:".contains(c)), "{piece:?}");
            out + rest
        })
    }

    proptest! {
        #[test]
        fn only_colours_remain(text in hostile()) {
            let plain = without_colours(&keep_colours(&text));
            prop_assert!(!plain.chars().any(|c| c.is_control() && c != '\t' && c != '\n'));
        }

        #[test]
        fn result_does_not_depend_on_the_pieces(text in hostile(), at in any::<prop::sample::Index>()) {
            let chars: Vec<char> = text.chars().collect();
            let (first, second) = chars.split_at(at.index(chars.len() + 1));
            let mut sanitizer = Sanitizer::default();
            let first = sanitizer.push(&first.iter().collect::<String>());
            let second = sanitizer.push(&second.iter().collect::<String>());
            prop_assert_eq!(first + &second, keep_colours(&text));
        }

        #[test]
        fn sanitized_text_is_unchanged(text in hostile()) {
            let once = keep_colours(&text);
            prop_assert_eq!(keep_colours(&once), once);
        }

        #[test]
        fn text_without_control_characters_is_unchanged(text in "\\PC{0,40}") {
            prop_assert_eq!(keep_colours(&text), text);
        }
    }
}
