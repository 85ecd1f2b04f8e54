//! Slurm's host list expressions, expanded without `scontrol`, which no container has.
//!
//! `r[0-1]n[08-10],login` names seven hosts. Names are separated by commas or white space; a name
//! may hold several bracket groups, which multiply out, the last one varying fastest; a range keeps
//! the zeros of its low bound; order and duplicates are kept.

use std::fmt::Write as _;

/// The most hosts one bracket range may name: Slurm's own limit.
pub const MAX_RANGE: u64 = 65_536;
/// The most hosts one expression may name, so that a few bytes cannot ask for all memory.
pub const MAX_HOSTS: usize = 1 << 17;
/// The most bytes all names of one expression may have together: a long name is multiplied too.
pub const MAX_BYTES: usize = 1 << 24;

/// Why an expression is no host list. `at` counts bytes from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    /// A `[` without its `]`.
    #[error("the bracket opened at byte {at} of {text:?} is never closed")]
    Unclosed {
        /// The whole expression.
        text: String,
        /// Where the bracket opens.
        at: usize,
    },
    /// A `]` without its `[`, or a `[` inside brackets.
    #[error("the bracket at byte {at} of {text:?} does not belong there")]
    Stray {
        /// The whole expression.
        text: String,
        /// Where the bracket is.
        at: usize,
    },
    /// Something between brackets that is no number or range.
    #[error("{item:?} at byte {at} of {text:?} is neither a number nor a range like 3-7")]
    BadRange {
        /// The whole expression.
        text: String,
        /// The item.
        item: String,
        /// Where it starts.
        at: usize,
    },
    /// A range that runs backwards.
    #[error("the range {item:?} at byte {at} of {text:?} runs backwards")]
    Backwards {
        /// The whole expression.
        text: String,
        /// The range.
        item: String,
        /// Where it starts.
        at: usize,
    },
    /// More hosts than [`MAX_RANGE`] in a range or [`MAX_HOSTS`] in all, or more text than
    /// [`MAX_BYTES`].
    #[error("{text:?} names too many hosts at byte {at} (limit {limit})")]
    TooMany {
        /// The whole expression.
        text: String,
        /// Where the limit was passed.
        at: usize,
        /// The limit.
        limit: u64,
    },
}

/// One piece of a name: fixed text, or the numbers of a bracket group.
enum Piece {
    Text(String),
    Group(Vec<Range>),
}

struct Range {
    low: u64,
    high: u64,
    width: usize,
}

/// The hosts an expression names, in order, duplicates kept.
///
/// ```
/// let hosts = regatta_model::hostlist::expand("r[0-1]n[08-10],login").unwrap();
/// assert_eq!(hosts[..3], ["r0n08", "r0n09", "r0n10"]);
/// assert_eq!(hosts.len(), 7);
/// ```
pub fn expand(text: &str) -> Result<Vec<String>, HostlistError> {
    let mut hosts = Vec::new();
    let mut bytes = 0usize;
    for (at, name) in names(text)? {
        let pieces = pieces(text, at, name)?;
        let too_many = |limit: usize| HostlistError::TooMany {
            text: text.to_owned(),
            at,
            limit: limit as u64,
        };
        let count = pieces.iter().try_fold(1usize, |n, piece| n.checked_mul(piece.count()));
        let count = count.filter(|n| hosts.len() + n <= MAX_HOSTS);
        let count = count.ok_or_else(|| too_many(MAX_HOSTS))?;
        let longest: usize = pieces.iter().map(Piece::longest).sum();
        bytes = bytes.saturating_add(count.saturating_mul(longest));
        if bytes > MAX_BYTES {
            return Err(too_many(MAX_BYTES));
        }
        multiply(&pieces, &mut hosts);
    }
    Ok(hosts)
}

impl Piece {
    fn count(&self) -> usize {
        match self {
            Piece::Text(_) => 1,
            Piece::Group(ranges) => ranges.iter().map(|r| (r.high - r.low) as usize + 1).sum(),
        }
    }

    /// The most bytes it adds to a name.
    fn longest(&self) -> usize {
        let digits = |n: u64| n.checked_ilog10().unwrap_or(0) as usize + 1;
        match self {
            Piece::Text(text) => text.len(),
            Piece::Group(ranges) => {
                ranges.iter().map(|r| digits(r.high).max(r.width)).max().unwrap_or(0)
            }
        }
    }
}

/// Splits at the separators that are outside brackets.
fn names(text: &str) -> Result<Vec<(usize, &str)>, HostlistError> {
    let mut names = Vec::new();
    let mut start = 0;
    let mut opened = None;
    for (at, c) in text.char_indices() {
        match (c, opened) {
            ('[', None) => opened = Some(at),
            (']', Some(_)) => opened = None,
            ('[', Some(_)) | (']', None) => {
                return Err(HostlistError::Stray { text: text.to_owned(), at });
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

/// Cuts one name, whose brackets are known to pair up, into text and groups.
fn pieces(text: &str, at: usize, name: &str) -> Result<Vec<Piece>, HostlistError> {
    let mut pieces = Vec::new();
    let mut rest = name;
    let mut offset = at;
    while let Some((before, tail)) = rest.split_once('[') {
        let Some((group, after)) = tail.split_once(']') else { break };
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        offset += before.len() + 1;
        pieces.push(Piece::Group(ranges(text, offset, group)?));
        offset += group.len() + 1;
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

fn ranges(text: &str, start: usize, group: &str) -> Result<Vec<Range>, HostlistError> {
    let mut at = start;
    let mut ranges = Vec::new();
    for item in group.split(',') {
        ranges.push(range(text, at, item)?);
        at += item.len() + 1;
    }
    Ok(ranges)
}

fn range(text: &str, at: usize, item: &str) -> Result<Range, HostlistError> {
    let own = || (text.to_owned(), item.to_owned());
    let (low_digits, high_digits) = item.split_once('-').unwrap_or((item, item));
    let (Some(low), Some(high)) = (digits(low_digits), digits(high_digits)) else {
        let (text, item) = own();
        return Err(HostlistError::BadRange { text, item, at });
    };
    if low > high {
        let (text, item) = own();
        return Err(HostlistError::Backwards { text, item, at });
    }
    if high - low >= MAX_RANGE {
        return Err(HostlistError::TooMany { text: text.to_owned(), at, limit: MAX_RANGE });
    }
    Ok(Range { low, high, width: low_digits.len() })
}

fn digits(text: &str) -> Option<u64> {
    let all_digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    all_digits.then(|| text.parse().ok()).flatten()
}

/// Counts through the groups like an odometer. Slurm lets the last group vary fastest, then the
/// groups before it from the first on: with two groups the left one is outermost, with three the
/// middle one. Not by recursion: a name may have more groups than the stack has room for.
fn multiply(pieces: &[Piece], hosts: &mut Vec<String>) {
    let groups = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(_) => None,
        Piece::Group(ranges) => ranges.first().map(|first| Wheel { ranges, at: 0, n: first.low }),
    });
    let mut wheels: Vec<Wheel<'_>> = groups.collect();
    loop {
        hosts.push(spell(pieces, &wheels));
        let Some((last, others)) = wheels.split_last_mut() else { return };
        if !last.advance() && !others.iter_mut().any(Wheel::advance) {
            return;
        }
    }
}

/// A bracket group and the number of it that is due.
struct Wheel<'a> {
    ranges: &'a [Range],
    at: usize,
    n: u64,
}

impl Wheel<'_> {
    /// Goes on to the next number; back to the first, and `false`, after the last.
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

fn spell(pieces: &[Piece], wheels: &[Wheel<'_>]) -> String {
    let mut name = String::new();
    let mut wheels = wheels.iter();
    for piece in pieces {
        match piece {
            Piece::Text(text) => name.push_str(text),
            Piece::Group(_) => {
                if let Some(wheel) = wheels.next() {
                    let width = wheel.ranges[wheel.at].width;
                    // Writing to a string cannot fail.
                    let _ = write!(name, "{:0width$}", wheel.n);
                }
            }
        }
    }
    name
}

/// A host's name without its domain: schedulers and nodes spell the same host either way. An
/// address has no domain.
pub fn short(host: &str) -> &str {
    match host.parse::<std::net::IpAddr>() {
        Ok(_) => host,
        Err(_) => host.split('.').next().unwrap_or(host),
    }
}

/// A short expression for hosts in this order: `expand(&compress(h)) == h` for any names that hold
/// no separator or bracket. Runs of one prefix and ascending numbers become ranges.
pub fn compress<S: AsRef<str>>(hosts: &[S]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut rest = hosts;
    while let Some(first) = rest.first() {
        let Some(head) = Numbered::of(first.as_ref()) else {
            out.push(first.as_ref().to_owned());
            rest = &rest[1..];
            continue;
        };
        let (items, used) = head.runs(rest);
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

    /// The ranges that the leading hosts with this prefix form, and how many hosts they take.
    fn runs<S: AsRef<str>>(&self, hosts: &[S]) -> (Vec<String>, usize) {
        let mut runs: Vec<(&str, u64, u64)> = Vec::new();
        let mut used = 0;
        for host in hosts {
            let Some(next) = Numbered::of(host.as_ref()).filter(|n| n.prefix == self.prefix) else {
                break;
            };
            match runs.last_mut() {
                Some((low, first, last))
                    if last.checked_add(1) == Some(next.number)
                        && next.number - *first < MAX_RANGE
                        && format!("{:0w$}", next.number, w = low.len()) == next.digits =>
                {
                    *last = next.number;
                }
                _ => {
                    let low = &host.as_ref()[self.prefix.len()..];
                    runs.push((low, next.number, next.number));
                }
            }
            used += 1;
        }
        let spell = |(low, first, last): (&str, u64, u64)| match first == last {
            true => low.to_owned(),
            false => format!("{low}-{last:0w$}", w = low.len()),
        };
        (runs.into_iter().map(spell).collect(), used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expanded(text: &str) -> String {
        expand(text).unwrap().join(" ")
    }

    #[test]
    fn the_grammar_of_slurm() {
        assert_eq!(expanded("n[1-2],a b\tc"), "n1 n2 a b c");
        assert_eq!(expanded("r[0-1]n[0-2]"), "r0n0 r0n1 r0n2 r1n0 r1n1 r1n2");
        let three = "n1m3o5 n1m3o6 n2m3o5 n2m3o6 n1m4o5 n1m4o6 n2m4o5 n2m4o6";
        assert_eq!(expanded("n[1-2]m[3-4]o[5-6]"), three);
        assert_eq!(expanded("n[09-11]"), "n09 n10 n11");
        assert_eq!(expanded("n[1-005]"), "n1 n2 n3 n4 n5");
        assert_eq!(expanded("n[3,1-2,3]"), "n3 n1 n2 n3");
        assert_eq!(expanded("a,,b,"), "a b");
        assert_eq!(expanded("n[1-2]-hsn0"), "n1-hsn0 n2-hsn0");
        assert_eq!(expanded(""), "");
    }

    #[test]
    fn addresses_have_no_domain() {
        assert_eq!(short("nid001.site.org"), "nid001");
        assert_eq!(short("10.1.2.3"), "10.1.2.3");
    }

    #[test]
    fn faults_have_a_place() {
        let error = |text: &str| expand(text).unwrap_err().to_string();
        assert_eq!(error("a,n[1"), "the bracket opened at byte 3 of \"a,n[1\" is never closed");
        assert!(matches!(expand("n]1"), Err(HostlistError::Stray { at: 1, .. })));
        assert!(matches!(expand("n[1[2]]"), Err(HostlistError::Stray { at: 3, .. })));
        assert!(matches!(expand("n[1,,2]"), Err(HostlistError::BadRange { at: 4, .. })));
        assert!(matches!(expand("n[1-2-3]"), Err(HostlistError::BadRange { at: 2, .. })));
        assert!(matches!(expand("n[3-1]"), Err(HostlistError::Backwards { at: 2, .. })));
        assert!(matches!(expand("n[0-65536]"), Err(HostlistError::TooMany { at: 2, .. })));
        assert!(matches!(expand("n[0-9999][0-9999]"), Err(HostlistError::TooMany { at: 0, .. })));
        assert!(expand("n[99999999999999999999]").is_err());
    }

    #[test]
    fn neither_many_groups_nor_long_names_exhaust_anything() {
        let groups = "[1]".repeat(200_000);
        assert_eq!(expand(&groups).unwrap(), ["1".repeat(200_000)]);
        let long = format!("{}[0-65535]", "n".repeat(4000));
        assert!(matches!(
            expand(&long),
            Err(HostlistError::TooMany { limit, .. }) if limit == MAX_BYTES as u64
        ));
        // A long expression for short names is fine.
        let hosts = expand("n[0-9][0-9999]").unwrap();
        assert_eq!(expand(&compress(&hosts)).unwrap(), hosts);
    }

    #[test]
    fn compress_is_short_for_ordinary_clusters() {
        let hosts = expand("nid[005000-005127],nid005200").unwrap();
        assert_eq!(compress(&hosts), "nid[005000-005127,005200]");
        assert_eq!(compress(&["login"]), "login");
        assert_eq!(compress(&["n1"]), "n1");
        assert_eq!(compress::<&str>(&[]), "");
    }

    proptest! {
        #[test]
        fn compress_keeps_every_list(hosts in proptest::collection::vec("[a-c]{0,2}[0-9]{0,3}[a-b]?", 0..40)) {
            let hosts: Vec<String> = hosts.into_iter().filter(|h| !h.is_empty()).collect();
            prop_assert_eq!(expand(&compress(&hosts)).unwrap(), hosts);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[n0-9\\[\\],\\- ]{0,24}") {
            let _ = expand(&text);
        }
    }
}
