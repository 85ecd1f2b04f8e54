//! Suggests changes to a configuration that does not fit its ranks. Every suggestion is validated
//! first, so following it never leads to another refusal. No I/O.

#[cfg(test)]
mod tests;

use super::mesh::divisors;
use super::value::{Quoting, RawValue};
use super::{Config, KEYS};
use regatta_model::units::pluralize;
use regatta_predict::layout::ParallelLayout;

/// Candidates that are tried in each direction.
const MAX_TRIED: usize = 64;

/// Why a configuration does not fit, and how it may be fixed.
#[derive(Debug, Clone)]
pub(super) struct Infeasible {
    pub reason: String,
    /// Suggestions, in the order in which they are printed.
    pub suggestions: Vec<Suggestion>,
    /// A further suggestion as text; may be empty.
    pub alternative: &'static str,
}

/// A possible fix.
#[derive(Debug, Clone)]
pub(super) enum Suggestion {
    /// Set a key to another number.
    Key(&'static str, Candidates),
    /// Run on another number of ranks.
    Ranks(Candidates),
    /// Split the model differently over the same ranks.
    Split,
    /// Change the size of an axis, given its present one, and the number of ranks with it.
    Axis(&'static str, usize),
    /// Set these keys to these values.
    Set(Vec<(&'static str, String)>),
}

/// Numbers to try, in both directions from a given one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Candidates {
    /// Multiples of `of` around `near`.
    Multiples { of: usize, near: usize },
    /// Divisors of `of` around `near`, each multiplied by `times`.
    Divisors { of: usize, near: usize, times: usize },
    /// A single number.
    Only(usize),
}

impl Candidates {
    pub const ABOVE_ONE: Self = Self::Multiples { of: 1, near: 1 };

    /// Candidates below and above, nearest first.
    fn around(self) -> [Vec<usize>; 2] {
        match self {
            Self::Multiples { of, near } => {
                let below = (1..=near.saturating_sub(1) / of).rev();
                let above = near / of + 1..;
                [
                    below.take(MAX_TRIED).map(|n| n * of).collect(),
                    above.take(MAX_TRIED).map(|n| n.saturating_mul(of)).collect(),
                ]
            }
            Self::Divisors { of, near, times } => {
                let others = divisors(of).into_iter().filter(|n| *n != near);
                let (mut below, above): (Vec<_>, Vec<_>) = others.partition(|n| *n < near);
                below.reverse();
                [below, above].map(|side| side.iter().map(|n| n.saturating_mul(times)).collect())
            }
            Self::Only(number) => [vec![number], Vec::new()],
        }
    }
}

/// A concrete change to a configuration and its number of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// Keys and their new values.
    pub set: Vec<(&'static str, String)>,
    pub ranks: usize,
}

impl Change {
    fn number(key: &'static str, number: usize, ranks: usize) -> Self {
        Self { set: vec![(key, number.to_string())], ranks }
    }

    /// The layout after the change, if the configuration then fits.
    fn layout(&self, config: &Config) -> Option<ParallelLayout> {
        let mut config = config.clone();
        for (name, text) in &self.set {
            let key = KEYS.iter().find(|key| key.full_name() == *name)?;
            (key.set)(&mut config, &RawValue { text, quoting: Quoting::Unknown }).then_some(())?;
        }
        config.layout(self.ranks).ok()
    }

    /// The new value of its only key.
    fn value(&self) -> &str {
        self.set.first().map_or("", |(_, value)| value)
    }
}

impl Suggestion {
    /// The nearest changes that were tried and fit, in ascending order.
    pub fn changes(&self, config: &Config, ranks: usize) -> Vec<Change> {
        let fits = |change: &Change| change.layout(config).is_some();
        let nearest = |candidates: Candidates, change: &dyn Fn(usize) -> Change| {
            let sides = candidates.around().map(|side| side.into_iter().map(change).find(fits));
            sides.into_iter().flatten().collect()
        };
        match self {
            Self::Key(key, candidates) => nearest(*candidates, &|n| Change::number(key, n, ranks)),
            Self::Ranks(candidates) => {
                nearest(*candidates, &|n| Change { set: Vec::new(), ranks: n })
            }
            Self::Axis(key, size) => nearest(Candidates::Multiples { of: 1, near: *size }, &|n| {
                Change::number(key, n, ranks / size * n)
            }),
            Self::Set(set) => {
                [Change { set: set.clone(), ranks }].into_iter().filter(fits).collect()
            }
            Self::Split => {
                let change = |split| Change { set: config.split_keys(split, ranks), ranks };
                let splits = config.splits_by_distance(ranks).into_iter();
                let mut two: Vec<_> =
                    splits.filter(|split| fits(&change(*split))).take(2).collect();
                two.sort_unstable();
                two.into_iter().map(change).collect()
            }
        }
    }

    /// The suggestion as text: `set it to 8 or 12`. None if no change fits.
    fn text(&self, reason: &str, changes: &[Change]) -> Option<String> {
        let last = changes.last()?;
        let either = |one: &dyn Fn(&Change) -> String| {
            changes.iter().map(one).collect::<Vec<_>>().join(" or ")
        };
        let value = |change: &Change| change.value().to_owned();
        let short_form = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
        let word = |(key, value): &(&'static str, String)| format!("{}={value}", short_form(key));
        let words = |change: &Change| change.set.iter().map(word).collect::<Vec<_>>().join(" ");
        Some(match self {
            Self::Key(key, _) if reason.starts_with(key) => format!("set it to {}", either(&value)),
            Self::Key(key, _) => format!("set {key} to {}", either(&value)),
            Self::Ranks(_) => {
                let noun = if last.ranks == 1 { "rank" } else { "ranks" };
                let counts = either(&|change| change.ranks.to_string());
                let option =
                    if changes.len() == 1 { format!(" (-n {counts})") } else { String::new() };
                format!("run on {counts} {noun}{option}")
            }
            Self::Split => format!("use {}", either(&words)),
            Self::Axis(key, _) => {
                let one = |c: &Change| {
                    let ranks = pluralize(c.ranks, "rank");
                    format!("{ranks} with {}={}", short_form(key), c.value())
                };
                format!("run on {}", either(&one))
            }
            Self::Set(set) => {
                let one = |(key, value): &(&str, String)| format!("{key} to {value}");
                format!("set {}", set.iter().map(one).collect::<Vec<_>>().join(" and "))
            }
        })
    }
}

impl Infeasible {
    /// Without suggestions.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), suggestions: Vec::new(), alternative: "" }
    }

    /// Adds a suggestion.
    pub fn suggest(mut self, suggestion: Suggestion) -> Self {
        self.suggestions.push(suggestion);
        self
    }

    /// Suggests another number for a key.
    pub fn suggest_key(self, key: &'static str, candidates: Candidates) -> Self {
        self.suggest(Suggestion::Key(key, candidates))
    }

    /// Suggests a value for a key.
    pub fn suggest_set(self, key: &'static str, value: &str) -> Self {
        self.suggest(Suggestion::Set(vec![(key, value.to_owned())]))
    }

    /// The reason and all suggestions that fit, in one sentence.
    pub fn message(&self, config: &Config, ranks: usize) -> String {
        let text = |s: &Suggestion| s.text(&self.reason, &s.changes(config, ranks));
        let mut options: Vec<String> = self.suggestions.iter().filter_map(text).collect();
        options.extend((!self.alternative.is_empty()).then(|| self.alternative.to_owned()));
        let Some(last) = options.pop() else { return self.reason.clone() };
        match options.is_empty() {
            true => format!("{}: {last}", self.reason),
            false => format!("{}: {}, or {last}", self.reason, options.join(", ")),
        }
    }
}
