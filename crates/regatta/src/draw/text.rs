//! Text in drawings: sanitised names, truncation, wrapping and number ranges.

use regatta_model::CpuSet;

/// Maximum length of a name.
const MAX_CHARS: usize = 400;

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

/// Formats numbers as ascending ranges: `0-3,6`.
pub fn format_ranges(numbers: &[u32]) -> String {
    numbers.iter().map(|&n| n as usize).collect::<CpuSet>().to_string()
}

/// GPU name without vendor, and without memory size if that is shown separately:
/// `NVIDIA H100 80GB HBM3` gives `H100`.
pub fn short_gpu_name(name: &str, memory_shown: bool) -> &str {
    const VENDORS: [&str; 6] =
        ["NVIDIA ", "Tesla ", "AMD ", "Instinct ", "Intel(R) Data Center GPU ", "Intel(R) "];
    let short = VENDORS.iter().fold(name, |name, vendor| name.strip_prefix(vendor).unwrap_or(name));
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

/// PCI address without the default domain.
pub fn short_pci(address: &str) -> &str {
    let trimmed = address.strip_prefix("0000:").or_else(|| address.strip_prefix("00000000:"));
    trimmed.unwrap_or(address)
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
    fn gpu_names_and_pci_addresses_are_shortened() {
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
    fn texts_are_truncated_and_wrapped() {
        assert_eq!(truncate("abcdef", 4, '~'), "abc~");
        assert_eq!(truncate("abcd", 4, '~'), "abcd");
        assert_eq!(truncate("abcd", 0, '~'), "");
        let words = ["aa", "bb", "cccccc"].map(str::to_owned);
        assert_eq!(wrap(&words, " ", 5), ["aa bb", "cccccc"]);
    }
}
