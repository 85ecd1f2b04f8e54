//! What to change in a configuration that does not fit its ranks. Nothing is told that was not tried:
//! who follows an advice is not refused again. No I/O.

#[cfg(test)]
mod tests;

use super::split::divisors;
use super::value::{Quotes, Word};
use super::{Config, KEYS};
use regatta_predict::plan::ParallelPlan;

/// Numbers that are tried on either side before nothing is said.
const TRIED: usize = 64;

/// What does not fit, and what may help.
#[derive(Debug, Clone)]
pub(super) struct Misfit {
    /// What does not.
    pub why: String,
    /// In the order in which they are told.
    pub helps: Vec<Help>,
    /// What else can be done, in words.
    pub otherwise: &'static str,
}

impl Misfit {
    /// With nothing that is known to help.
    pub fn new(why: String) -> Self {
        Self { why, helps: Vec::new(), otherwise: "" }
    }

    /// And this may help.
    pub fn or(mut self, help: Help) -> Self {
        self.helps.push(help);
        self
    }
}

/// What may help.
#[derive(Debug, Clone)]
pub(super) enum Help {
    /// Another number for a key.
    Key(&'static str, Numbers),
    /// Another number of ranks.
    Ranks(Numbers),
    /// Another split of the model over the same ranks.
    Split,
    /// Another size of an axis, which is so large now, with as many ranks as follow from it.
    Axis(&'static str, usize),
    /// Keys with other values.
    Words(Vec<(&'static str, String)>),
}

/// Numbers around one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Numbers {
    /// Multiples of a unit.
    Multiples {
        /// The unit.
        of: usize,
        /// Around this.
        near: usize,
    },
    /// Numbers that divide another.
    Divisors {
        /// The other.
        of: usize,
        /// Around this.
        near: usize,
        /// Each times this.
        times: usize,
    },
    /// This one.
    Only(usize),
}

impl Numbers {
    /// Those below, the nearest first, and those above.
    fn around(self) -> [Vec<usize>; 2] {
        match self {
            Self::Multiples { of, near } => {
                let below = (1..=near.saturating_sub(1) / of).rev();
                let above = near / of + 1..;
                [
                    below.take(TRIED).map(|n| n * of).collect(),
                    above.take(TRIED).map(|n| n.saturating_mul(of)).collect(),
                ]
            }
            Self::Divisors { of, near, times } => {
                let (below, above): (Vec<_>, Vec<_>) =
                    divisors(of).into_iter().filter(|n| *n != near).partition(|n| *n < near);
                let all = |side: Vec<usize>| side.into_iter().map(|n| n.saturating_mul(times));
                let mut below: Vec<usize> = all(below).collect();
                below.reverse();
                [below, all(above).collect()]
            }
            Self::Only(number) => [vec![number], Vec::new()],
        }
    }
}

/// A change after which a configuration fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fix {
    /// Keys, and what they are set to.
    pub set: Vec<(&'static str, String)>,
    /// How many ranks are started.
    pub ranks: usize,
}

impl Fix {
    fn number(key: &'static str, number: usize, ranks: usize) -> Self {
        Self { set: vec![(key, number.to_string())], ranks }
    }

    /// What comes of it, if it fits.
    fn tried(&self, config: &Config) -> Option<ParallelPlan> {
        let mut config = config.clone();
        for (name, text) in &self.set {
            let key = KEYS.iter().find(|key| key.full() == *name)?;
            (key.set)(&mut config, &Word { text, quotes: Quotes::Unknown }).then_some(())?;
        }
        config.fit(self.ranks).ok()
    }
}

impl Help {
    /// What of it was tried and fits, the smaller first.
    pub fn fixes(&self, config: &Config, ranks: usize) -> Vec<Fix> {
        let fits = |fix: &Fix| fix.tried(config).is_some();
        let nearest = |numbers: Numbers, fix: &dyn Fn(usize) -> Fix| {
            let sides = numbers.around().map(|side| side.into_iter().map(fix).find(fits));
            sides.into_iter().flatten().collect()
        };
        match self {
            Self::Key(key, numbers) => nearest(*numbers, &|n| Fix::number(key, n, ranks)),
            Self::Ranks(numbers) => nearest(*numbers, &|n| Fix { set: Vec::new(), ranks: n }),
            Self::Axis(key, size) => nearest(Numbers::Multiples { of: 1, near: *size }, &|n| {
                Fix::number(key, n, ranks / size * n)
            }),
            Self::Words(set) => {
                [Fix { set: set.clone(), ranks }].into_iter().filter(fits).collect()
            }
            Self::Split => {
                let near = config.splits_by_farness(ranks).into_iter();
                let split =
                    |split: [usize; 3]| Fix { set: config.split_words(split, ranks), ranks };
                let mut two: Vec<_> = near
                    .map(|sizes| (sizes, split(sizes)))
                    .filter(|(_, fix)| fits(fix))
                    .take(2)
                    .collect();
                two.sort_unstable_by_key(|(sizes, _)| *sizes);
                two.into_iter().map(|(_, fix)| fix).collect()
            }
        }
    }

    /// What to do, in words: `set it to 8 or 12`.
    fn told(&self, why: &str, fixes: &[Fix]) -> Option<String> {
        let last = fixes.last()?;
        let all =
            |one: &dyn Fn(&Fix) -> String| fixes.iter().map(one).collect::<Vec<_>>().join(" or ");
        let value = |fix: &Fix| fix.set.first().map_or(String::new(), |(_, value)| value.clone());
        let short = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
        let word = |(key, value): &(&'static str, String)| format!("{} {value}", short(key));
        Some(match self {
            Self::Key(key, _) if why.starts_with(key) => format!("set it to {}", all(&value)),
            Self::Key(key, _) => format!("set {key} to {}", all(&value)),
            Self::Ranks(_) => {
                let word = if last.ranks == 1 { "rank" } else { "ranks" };
                format!("start {} {word}", all(&|fix| fix.ranks.to_string()))
            }
            Self::Split => {
                let split = |fix: &Fix| fix.set.iter().map(word).collect::<Vec<_>>().join(" ");
                format!("{} would", all(&split))
            }
            Self::Axis(key, _) => {
                let one = |fix: &Fix| format!("{} with {} {}", fix.ranks, short(key), value(fix));
                format!("start {}", all(&one))
            }
            Self::Words(set) => {
                let one = |(key, value): &(&str, String)| format!("{key} to {value}");
                format!("set {}", set.iter().map(one).collect::<Vec<_>>().join(" and "))
            }
        })
    }
}

impl Misfit {
    /// What is wrong, and what to do about it, in one sentence.
    pub fn sentence(&self, config: &Config, ranks: usize) -> String {
        let told = |help: &Help| help.told(&self.why, &help.fixes(config, ranks));
        let mut ways: Vec<String> = self.helps.iter().filter_map(told).collect();
        ways.extend((!self.otherwise.is_empty()).then(|| self.otherwise.to_owned()));
        let Some(last) = ways.pop() else { return self.why.clone() };
        match ways.is_empty() {
            true => format!("{}: {last}", self.why),
            false => format!("{}: {}, or {last}", self.why, ways.join(", ")),
        }
    }
}
