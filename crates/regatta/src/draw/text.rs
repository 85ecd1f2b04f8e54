//! Texts in a drawing: foreign names made harmless and short, numbers folded.

use regatta_model::CpuSet;

/// Longer names are cut, so that a mad one does not fill the screen.
const MAX_CHARS: usize = 400;

/// A foreign text with everything that could steer a terminal or turn text around replaced:
/// control characters, bidirectional and other invisible marks, and what XML does not allow.
pub fn printable(text: &str) -> String {
    let harmless = |c: char| match c {
        c if c.is_control() => '?',
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' => '?',
        '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => '?',
        '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff0}'..='\u{ffff}' => '?',
        c => c,
    };
    text.trim().chars().take(MAX_CHARS).map(harmless).collect()
}

/// The text in ASCII, one column a character, for a terminal whose idea of the width of other
/// characters we do not know.
pub fn one_column(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect()
}

/// The text cut to `width` characters, the last one then being `mark`.
pub fn cut(text: &str, width: usize, mark: char) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { kept } else { format!("{}{mark}", kept.trim_end()) }
}

/// The texts in lines of at most `width`, joined by `between`; a text that is longer stands alone.
pub fn wrap(texts: &[String], between: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for text in texts {
        let room = |line: &String| {
            line.chars().count() + between.chars().count() + text.chars().count() <= width
        };
        match lines.last_mut() {
            Some(line) if room(line) => {
                line.push_str(between);
                line.push_str(text);
            }
            _ => lines.push(text.clone()),
        }
    }
    lines
}

/// Numbers in ascending order with runs folded: `0-3,6`.
pub fn number_list(numbers: &[u32]) -> String {
    numbers.iter().map(|&n| n as usize).collect::<CpuSet>().to_string()
}

/// `1 thread`, `7 threads`.
pub fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// A GPU's name without its maker, and without its memory where that is shown beside it:
/// `NVIDIA H100 80GB HBM3` is `H100`.
pub fn short_gpu_name(name: &str, memory_shown: bool) -> &str {
    const MAKERS: [&str; 6] =
        ["NVIDIA ", "Tesla ", "AMD ", "Instinct ", "Intel(R) Data Center GPU ", "Intel(R) "];
    let mut short = name;
    for maker in MAKERS {
        short = short.strip_prefix(maker).unwrap_or(short);
    }
    let is_size = |word: &str| {
        let digits = word.strip_suffix("GB").or_else(|| word.strip_suffix("GiB"));
        digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut at = 0;
    for word in short.split([' ', '-']) {
        if memory_shown && at > 0 && is_size(word) {
            return &short[..at - 1];
        }
        at += word.len() + 1;
    }
    short
}

/// A PCI address without the domain that nearly all have.
pub fn short_pci(address: &str) -> &str {
    let trimmed = address.strip_prefix("0000:").or_else(|| address.strip_prefix("00000000:"));
    trimmed.unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_texts_are_harmless() {
        assert_eq!(printable("a\x1b[31mb\u{202e}c\0\u{ffff}\u{9b}d"), "a?[31mb?c???d");
        assert_eq!(one_column("GPÜ 号"), "GP? ?");
        assert_eq!(printable(&"x".repeat(100_000)).len(), MAX_CHARS);
    }

    #[test]
    fn names_are_short() {
        assert_eq!(short_gpu_name("NVIDIA H100 80GB HBM3", true), "H100");
        assert_eq!(short_gpu_name("NVIDIA H100 80GB HBM3", false), "H100 80GB HBM3");
        assert_eq!(short_gpu_name("NVIDIA A100-SXM4-40GB", true), "A100-SXM4");
        assert_eq!(short_gpu_name("AMD Instinct MI250X", true), "MI250X");
        assert_eq!(short_gpu_name("Intel(R) Data Center GPU Max 1550", true), "Max 1550");
        assert_eq!(short_gpu_name("80GB", true), "80GB");
        assert_eq!(short_pci("0000:c1:00.0"), "c1:00.0");
        assert_eq!(short_pci("0009:01:00.0"), "0009:01:00.0");
    }

    #[test]
    fn texts_are_cut_and_wrapped() {
        assert_eq!(cut("abcdef", 4, '~'), "abc~");
        assert_eq!(cut("abcd", 4, '~'), "abcd");
        assert_eq!(cut("abcd", 0, '~'), "");
        let words = ["aa", "bb", "cccccc"].map(str::to_owned);
        assert_eq!(wrap(&words, " ", 5), ["aa bb", "cccccc"]);
    }
}
