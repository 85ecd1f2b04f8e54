//! The macro that a configuration is declared with, and what is known of a key.

use super::Config;
use super::value::Word;

/// A key as it was declared.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its section, such as `train`.
    pub section: &'static str,
    /// Its name in there, such as `steps`.
    pub name: &'static str,
    /// What its section is for.
    pub(super) heading: &'static str,
    pub(super) about: &'static str,
    pub(super) limit: Limit,
    pub(super) kind: fn() -> String,
    pub(super) get: fn(&Config) -> String,
    pub(super) set: fn(&mut Config, &Word<'_>) -> bool,
}

impl Key {
    /// Its whole name, such as `train.steps`.
    pub fn full(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// What it is for, in a sentence.
    pub fn about(&self) -> &'static str {
        self.about.trim()
    }

    /// What its section is for.
    pub fn heading(&self) -> &'static str {
        self.heading.trim()
    }

    /// What it may be, such as `a whole number, 1 or more`.
    pub fn expected(&self) -> String {
        (self.kind)() + self.limit.text
    }

    /// What it is in a configuration, as TOML.
    pub fn get(&self, config: &Config) -> String {
        (self.get)(config)
    }

    /// What it is unless somebody sets it, as TOML.
    pub fn default(&self) -> String {
        self.get(&Config::default())
    }
}

/// Which numbers a key takes.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    text: &'static str,
    least: f64,
    /// Whether `least` itself is one of them.
    from: bool,
    most: f64,
}

const MOST: f64 = f64::MAX;
/// Beyond it, numbers of parameters would not fit into 64 bits.
const LARGEST: f64 = (1u64 << 20) as f64;

/// All that there are.
pub(super) const ANY: Limit = Limit { text: "", least: -MOST, from: true, most: MOST };
/// Not 0.
pub(super) const ONE_OR_MORE: Limit =
    Limit { text: ", 1 or more", least: 1.0, from: true, most: MOST };
/// How many of something.
pub(super) const COUNT: Limit =
    Limit { text: ", 1 to 10000", least: 1.0, from: true, most: 10_000.0 };
/// How large something is.
pub(super) const SIZE: Limit =
    Limit { text: ", 1 to 1048576", least: 1.0, from: true, most: LARGEST };
/// How large something is, and 0 has a meaning of its own.
pub(super) const SIZE_OR_ZERO: Limit =
    Limit { text: ", 0 to 1048576", least: 0.0, from: true, most: LARGEST };
/// How much is shared.
pub(super) const STAGE: Limit = Limit { text: ", 0 to 3", least: 0.0, from: true, most: 3.0 };
/// Numbers above 0.
pub(super) const POSITIVE: Limit = Limit { text: " above 0", least: 0.0, from: false, most: MOST };
/// Numbers from 0 on.
pub(super) const NOT_NEGATIVE: Limit =
    Limit { text: ", 0 or more", least: 0.0, from: true, most: MOST };
/// Shares of a whole that leave something over, also as the 32 bits that devices compute with:
/// nearer to 1 they would be 1.
pub(super) const SHARE: Limit =
    Limit { text: " from 0 to 0.9999999", least: 0.0, from: true, most: 0.999_999_9 };

impl Limit {
    /// Whether a number is allowed; what is no number is.
    pub(super) fn allows(&self, number: Option<f64>) -> bool {
        number.is_none_or(|n| {
            n <= self.most && if self.from { n >= self.least } else { n > self.least }
        })
    }
}

/// Declares the sections of a configuration with their keys: documentation, type, default, limit.
macro_rules! configuration {
    ($(
        #[doc = $heading:literal]
        $section:ident: $Section:ident {
            $(
                $(#[doc = $about:literal])+
                $key:ident: $Type:ty = $default:expr, $limit:expr;
            )*
        }
    )*) => {
        $(
            #[doc = $heading]
            #[derive(Debug, Clone, PartialEq)]
            pub struct $Section {
                $( $(#[doc = $about])+ pub $key: $Type, )*
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $( $key: $default, )* }
                }
            }
        )*

        /// All that a training run is told.
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct Config {
            $( #[doc = $heading] pub $section: $Section, )*
        }

        /// All keys, section by section.
        pub static KEYS: &[Key] = &[$($(
            Key {
                section: stringify!($section),
                name: stringify!($key),
                heading: $heading,
                about: concat!($($about),+),
                limit: $limit,
                kind: <$Type as value::Value>::kind,
                get: |config| value::Value::to_toml(&config.$section.$key),
                set: |config, word| match <$Type as value::Value>::read(word) {
                    Some(value) if $limit.allows(value::Value::number(&value)) => {
                        config.$section.$key = value;
                        true
                    }
                    _ => false,
                },
            },
        )*)*];
    };
}

pub(super) use configuration;
