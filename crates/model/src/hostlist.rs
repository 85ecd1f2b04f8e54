//! Slurm hostlist expressions, expanded without `scontrol`, which containers lack.
//!
//! `r[0-1]n[08-10],login` expands to seven hosts. Names are separated by commas or white space. A
//! name may contain several bracket groups, which expand to their Cartesian product, the last one
//! varying fastest. A range is zero-padded to the width of its lower bound. Order and duplicates
//! are preserved.

use std::fmt::Write as _;

/// Maximum hosts per bracket range: Slurm's limit.
pub const MAX_RANGE: u64 = 65_536;
/// Maximum hosts per expression, because a few bytes could otherwise exhaust memory.
pub const MAX_HOSTS: usize = 1 << 17;
/// Maximum total length of the expanded names, because a long name is multiplied too.
pub const MAX_BYTES: usize = 1 << 24;

/// Parse error of a hostlist expression. `at` is a byte offset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum HostlistError {
    /// A `[` without `]`.
    #[error("the bracket at byte {at} of {text:?} is not closed")]
    Unclosed { text: String, at: usize },
    /// A `]` without `[`, or a nested `[`.
    #[error("unexpected bracket at byte {at} of {text:?}")]
    UnexpectedBracket { text: String, at: usize },
    /// Neither a number nor a range.
    #[error("{item:?} at byte {at} of {text:?} is neither a number nor a range like 3-7")]
    BadRange { text: String, item: String, at: usize },
    /// A range with its bounds reversed.
    #[error("the bounds of the range {item:?} at byte {at} of {text:?} are reversed")]
    ReversedRange { text: String, item: String, at: usize },
    /// [`MAX_RANGE`], [`MAX_HOSTS`] or [`MAX_BYTES`] exceeded.
    #[error("{text:?} expands to too many hosts at byte {at} (limit {limit})")]
    TooMany { text: String, at: usize, limit: u64 },
}

enum Segment {
    Literal(String),
    Group(Vec<NumberRange>),
}

struct NumberRange {
    low: u64,
    high: u64,
    width: usize,
}

/// Expands an expression. Order and duplicates are preserved.
///
/// ```
/// let hosts = regatta_model::hostlist::expand("r[0-1]n[08-10],login").unwrap();
/// assert_eq!(hosts[..3], ["r0n08", "r0n09", "r0n10"]);
/// assert_eq!(hosts.len(), 7);
/// ```
pub fn expand(text: &str) -> Result<Vec<String>, HostlistError> {
    let mut hosts = Vec::new();
    let mut bytes = 0usize;
    for (at, name) in split_names(text)? {
        let segments = parse_segments(text, at, name)?;
        let too_many =
            |limit| HostlistError::TooMany { text: text.to_owned(), at, limit: limit as u64 };
        let count = segments.iter().try_fold(1usize, |n, s| n.checked_mul(s.count()));
        let count = count.filter(|n| hosts.len() + n <= MAX_HOSTS);
        let count = count.ok_or_else(|| too_many(MAX_HOSTS))?;
        let name_len: usize = segments.iter().map(Segment::max_len).sum();
        bytes = bytes.saturating_add(count.saturating_mul(name_len));
        if bytes > MAX_BYTES {
            return Err(too_many(MAX_BYTES));
        }
        expand_product(&segments, &mut hosts);
    }
    Ok(hosts)
}

impl Segment {
    fn count(&self) -> usize {
        match self {
            Segment::Literal(_) => 1,
            Segment::Group(ranges) => ranges.iter().map(|r| (r.high - r.low) as usize + 1).sum(),
        }
    }

    /// The maximum bytes it adds to a name.
    fn max_len(&self) -> usize {
        let digits = |n: u64| n.checked_ilog10().unwrap_or(0) as usize + 1;
        match self {
            Segment::Literal(text) => text.len(),
            Segment::Group(ranges) => {
                ranges.iter().map(|r| digits(r.high).max(r.width)).max().unwrap_or(0)
            }
        }
    }
}

/// Splits at separators outside brackets.
fn split_names(text: &str) -> Result<Vec<(usize, &str)>, HostlistError> {
    let mut names = Vec::new();
    let mut start = 0;
    let mut opened = None;
    for (at, c) in text.char_indices() {
        match (c, opened) {
            ('[', None) => opened = Some(at),
            (']', Some(_)) => opened = None,
            ('[', Some(_)) | (']', None) => {
                return Err(HostlistError::UnexpectedBracket { text: text.to_owned(), at });
            }
            (',' | ' ' | '\t' | '\n', None) => {
                names.push((start, &text[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    if let Some(at) = opened {
        return Err(HostlistError::Unclosed { text: text.to_owned(), at });
    }
    names.push((start, &text[start..]));
    names.retain(|(_, name)| !name.is_empty());
    Ok(names)
}

/// Parses one name, whose brackets are known to be balanced.
fn parse_segments(text: &str, at: usize, name: &str) -> Result<Vec<Segment>, HostlistError> {
    let mut segments = Vec::new();
    let mut rest = name;
    let mut offset = at;
    while let Some((before, tail)) = rest.split_once('[') {
        let Some((group, after)) = tail.split_once(']') else { break };
        if !before.is_empty() {
            segments.push(Segment::Literal(before.to_owned()));
        }
        offset += before.len() + 1;
        segments.push(Segment::Group(parse_ranges(text, offset, group)?));
        offset += group.len() + 1;
        rest = after;
    }
    if !rest.is_empty() {
        segments.push(Segment::Literal(rest.to_owned()));
    }
    Ok(segments)
}

fn parse_ranges(text: &str, start: usize, group: &str) -> Result<Vec<NumberRange>, HostlistError> {
    let mut at = start;
    let range = |item: &str| {
        let range = parse_range(text, at, item);
        at += item.len() + 1;
        range
    };
    group.split(',').map(range).collect()
}

fn parse_range(text: &str, at: usize, item: &str) -> Result<NumberRange, HostlistError> {
    let (low_digits, high_digits) = item.split_once('-').unwrap_or((item, item));
    let range = (parse_digits(low_digits), parse_digits(high_digits));
    if let (Some(low), Some(high)) = range
        && low <= high
        && high - low < MAX_RANGE
    {
        return Ok(NumberRange { low, high, width: low_digits.len() });
    }
    let (text, item) = (text.to_owned(), item.to_owned());
    Err(match range {
        (Some(low), Some(high)) if low > high => HostlistError::ReversedRange { text, item, at },
        (Some(_), Some(_)) => HostlistError::TooMany { text, at, limit: MAX_RANGE },
        _ => HostlistError::BadRange { text, item, at },
    })
}

fn parse_digits(text: &str) -> Option<u64> {
    let all_digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    all_digits.then(|| text.parse().ok()).flatten()
}

/// Appends the Cartesian product of the groups. In Slurm's order the last group varies fastest, then
/// the groups before it from the first on: of two groups the left one is outermost, of three the
/// middle one. Iterative, because a name may have more groups than the stack has frames.
fn expand_product(segments: &[Segment], hosts: &mut Vec<String>) {
    let groups = segments.iter().filter_map(|segment| match segment {
        Segment::Literal(_) => None,
        Segment::Group(ranges) => {
            ranges.first().map(|first| GroupCursor { ranges, at: 0, n: first.low })
        }
    });
    let mut cursors: Vec<GroupCursor<'_>> = groups.collect();
    loop {
        hosts.push(format_name(segments, &cursors));
        let Some((last, others)) = cursors.split_last_mut() else { return };
        if !last.advance() && !others.iter_mut().any(GroupCursor::advance) {
            return;
        }
    }
}

/// The current number of a bracket group.
struct GroupCursor<'a> {
    ranges: &'a [NumberRange],
    at: usize,
    n: u64,
}

impl GroupCursor<'_> {
    /// Advances to the next number. After the last it wraps around and returns `false`.
    fn advance(&mut self) -> bool {
        if self.n < self.ranges[self.at].high {
            self.n += 1;
            return true;
        }
        self.at = (self.at + 1) % self.ranges.len();
        self.n = self.ranges[self.at].low;
        self.at != 0
    }
}

fn format_name(segments: &[Segment], cursors: &[GroupCursor<'_>]) -> String {
    let mut name = String::new();
    let mut cursors = cursors.iter();
    for segment in segments {
        match segment {
            Segment::Literal(text) => name.push_str(text),
            Segment::Group(_) => {
                if let Some(cursor) = cursors.next() {
                    let width = cursor.ranges[cursor.at].width;
                    // Writing to a string is infallible.
                    let _ = write!(name, "{:0width$}", cursor.n);
                }
            }
        }
    }
    name
}

/// The host name without its domain, because schedulers and nodes use either form. An IP address is
/// returned unchanged.
pub fn short_hostname(host: &str) -> &str {
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    if is_address { host } else { host.split('.').next().unwrap_or(host) }
}

/// A hostlist expression for these hosts in this order: `expand(&compress(h)) == h` for all names
/// without separators and brackets. Consecutive numbers after a common prefix become ranges.
pub fn compress<S: AsRef<str>>(hosts: &[S]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut rest = hosts;
    while let Some(first) = rest.first() {
        let Some(head) = Numbered::of(first.as_ref()) else {
            out.push(first.as_ref().to_owned());
            rest = &rest[1..];
            continue;
        };
        let (items, used) = head.ranges(rest);
        match items.as_slice() {
            [single] if !single.contains('-') => out.push(first.as_ref().to_owned()),
            _ => out.push(format!("{}[{}]", head.prefix, items.join(","))),
        }
        rest = &rest[used..];
    }
    out.join(",")
}

/// A name that ends in a number.
struct Numbered<'a> {
    prefix: &'a str,
    digits: &'a str,
    number: u64,
}

impl<'a> Numbered<'a> {
    fn of(name: &'a str) -> Option<Self> {
        let cut = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, digits) = name.split_at(cut);
        digits.parse().ok().map(|number| Numbered { prefix, digits, number })
    }

    /// The ranges of the leading hosts with this prefix, and the number of these hosts.
    fn ranges<S: AsRef<str>>(&self, hosts: &[S]) -> (Vec<String>, usize) {
        let mut ranges: Vec<(&str, u64, u64)> = Vec::new();
        let mut used = 0;
        for host in hosts {
            let Some(next) = Numbered::of(host.as_ref()).filter(|n| n.prefix == self.prefix) else {
                break;
            };
            match ranges.last_mut() {
                Some((low, first, last))
                    if last.checked_add(1) == Some(next.number)
                        && next.number - *first < MAX_RANGE
                        && format!("{:0w$}", next.number, w = low.len()) == next.digits =>
                {
                    *last = next.number;
                }
                _ => {
                    let low = &host.as_ref()[self.prefix.len()..];
                    ranges.push((low, next.number, next.number));
                }
            }
            used += 1;
        }
        let format = |(low, first, last): (&str, u64, u64)| {
            let width = low.len();
            if first == last { low.to_owned() } else { format!("{low}-{last:0width$}") }
        };
        (ranges.into_iter().map(format).collect(), used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn expand_follows_slurm() {
        let three = "n1m3o5 n1m3o6 n2m3o5 n2m3o6 n1m4o5 n1m4o6 n2m4o5 n2m4o6";
        let cases = [
            ("n[1-2],a b\tc", "n1 n2 a b c"),
            ("r[0-1]n[0-2]", "r0n0 r0n1 r0n2 r1n0 r1n1 r1n2"),
            ("n[1-2]m[3-4]o[5-6]", three),
            ("n[09-11]", "n09 n10 n11"),
            ("n[1-005]", "n1 n2 n3 n4 n5"),
            ("n[3,1-2,3]", "n3 n1 n2 n3"),
            ("a,,b,", "a b"),
            ("n[1-2]-hsn0", "n1-hsn0 n2-hsn0"),
            ("", ""),
        ];
        for (text, hosts) in cases {
            assert_eq!(expand(text).unwrap().join(" "), hosts, "{text}");
        }
    }

    #[test]
    fn short_hostname_strips_the_domain_but_keeps_addresses() {
        assert_eq!(short_hostname("nid001.site.org"), "nid001");
        assert_eq!(short_hostname("10.1.2.3"), "10.1.2.3");
    }

    #[test]
    fn parse_errors_have_a_byte_offset() {
        let error = |text: &str| expand(text).unwrap_err().to_string();
        assert_eq!(error("a,n[1"), "the bracket at byte 3 of \"a,n[1\" is not closed");
        assert!(matches!(expand("n]1"), Err(HostlistError::UnexpectedBracket { at: 1, .. })));
        assert!(matches!(expand("n[1[2]]"), Err(HostlistError::UnexpectedBracket { at: 3, .. })));
        assert!(matches!(expand("n[1,,2]"), Err(HostlistError::BadRange { at: 4, .. })));
        assert!(matches!(expand("n[1-2-3]"), Err(HostlistError::BadRange { at: 2, .. })));
        assert!(matches!(expand("n[3-1]"), Err(HostlistError::ReversedRange { at: 2, .. })));
        assert!(matches!(expand("n[0-65536]"), Err(HostlistError::TooMany { at: 2, .. })));
        assert!(matches!(expand("n[0-9999][0-9999]"), Err(HostlistError::TooMany { at: 0, .. })));
        assert!(expand("n[99999999999999999999]").is_err());
    }

    #[test]
    fn many_groups_and_long_names_are_bounded() {
        let groups = "[1]".repeat(200_000);
        assert_eq!(expand(&groups).unwrap(), ["1".repeat(200_000)]);
        let long = format!("{}[0-65535]", "n".repeat(4000));
        assert!(matches!(
            expand(&long),
            Err(HostlistError::TooMany { limit, .. }) if limit == MAX_BYTES as u64
        ));
        // Many short names stay below the limits.
        let hosts = expand("n[0-9][0-9999]").unwrap();
        assert_eq!(expand(&compress(&hosts)).unwrap(), hosts);
    }

    #[test]
    fn compress_joins_consecutive_numbers() {
        let hosts = expand("nid[005000-005127],nid005200").unwrap();
        assert_eq!(compress(&hosts), "nid[005000-005127,005200]");
        assert_eq!(compress(&["login"]), "login");
        assert_eq!(compress(&["n1"]), "n1");
        assert_eq!(compress::<&str>(&[]), "");
    }

    proptest! {
        #[test]
        fn compress_round_trips(hosts in proptest::collection::vec("[a-c]{0,2}[0-9]{0,3}[a-b]?", 0..40)) {
            let hosts: Vec<String> = hosts.into_iter().filter(|h| !h.is_empty()).collect();
            prop_assert_eq!(expand(&compress(&hosts)).unwrap(), hosts);
        }

        #[test]
        fn expand_never_panics(text in "[n0-9\\[\\],\\- ]{0,24}") {
            let _ = expand(&text);
        }
    }
}
