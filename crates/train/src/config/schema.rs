//! The macro that declares the configuration, and the description of a key.

use super::Config;
use super::value::RawValue;

/// A declared configuration key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Section, such as `train`.
    pub section: &'static str,
    /// Name within the section, such as `steps`.
    pub name: &'static str,
    pub(super) description: &'static str,
    pub(super) range: ValueRange,
    pub(super) type_name: fn() -> String,
    pub(super) get: fn(&Config) -> String,
    pub(super) set: fn(&mut Config, &RawValue<'_>) -> bool,
}

impl Key {
    /// Section and name, such as `train.steps`.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// What the key configures, in one sentence.
    pub fn description(&self) -> &'static str {
        self.description.trim()
    }

    /// Accepted values, such as `an integer in [0, 3]`.
    pub fn expected(&self) -> String {
        (self.type_name)() + self.range.text
    }

    /// Value in a configuration, as TOML.
    pub fn get(&self, config: &Config) -> String {
        (self.get)(config)
    }

    /// Default value, as TOML.
    pub fn default(&self) -> String {
        self.get(&Config::default())
    }
}

/// The numeric values a key accepts.
#[derive(Debug, Clone, Copy)]
pub struct ValueRange {
    text: &'static str,
    min: f64,
    /// Whether `min` itself is accepted.
    includes_min: bool,
    max: f64,
}

/// Larger sizes would overflow 64-bit parameter counts.
const MAX_SIZE: f64 = (1u64 << 20) as f64;

const fn range(text: &'static str, min: f64, max: f64) -> ValueRange {
    ValueRange { text, min, includes_min: true, max }
}

pub(super) const ANY: ValueRange = range("", f64::MIN, f64::MAX);
pub(super) const UNSIGNED: ValueRange = range(" in [0, 2^64 - 1]", 0.0, f64::MAX);
pub(super) const STEPS: ValueRange = range(" in [1, 1000000000000]", 1.0, 1e12);
/// Steps for which 0 disables an action or selects a default.
pub(super) const STEPS_OR_ZERO: ValueRange = range(" in [0, 1000000000000]", 0.0, 1e12);
pub(super) const COUNT: ValueRange = range(" in [1, 10000]", 1.0, 10_000.0);
pub(super) const SIZE: ValueRange = range(" in [1, 1048576]", 1.0, MAX_SIZE);
/// A size for which 0 selects a default.
pub(super) const SIZE_OR_ZERO: ValueRange = range(" in [0, 1048576]", 0.0, MAX_SIZE);
pub(super) const ZERO_STAGE: ValueRange = range(" in [0, 3]", 0.0, 3.0);
pub(super) const POSITIVE: ValueRange =
    ValueRange { includes_min: false, ..range(" > 0", 0.0, f64::MAX) };
pub(super) const NON_NEGATIVE: ValueRange = range(" >= 0", 0.0, f64::MAX);
/// Fractions below 1 in f32, in which devices compute: values closer to 1 would round to 1.
pub(super) const FRACTION: ValueRange = range(" in [0, 1)", 0.0, 0.999_999_9);

impl ValueRange {
    /// Whether a value is in range. Values that are not numeric always are.
    pub(super) fn contains(&self, number: Option<f64>) -> bool {
        number.is_none_or(|n| n <= self.max && (n > self.min || self.includes_min && n == self.min))
    }
}

/// Declares the sections of the configuration and their keys: documentation, type, default, range.
macro_rules! configuration {
    ($(
        #[doc = $heading:literal]
        $section:ident: $Section:ident {
            $(
                $(#[doc = $description:literal])+
                $key:ident: $Type:ty = $default:expr, $range:expr;
            )*
        }
    )*) => {
        $(
            #[doc = $heading]
            #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
            pub struct $Section {
                $( $(#[doc = $description])+ pub $key: $Type, )*
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $( $key: $default, )* }
                }
            }
        )*

        /// The configuration of a training run.
        #[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
        pub struct Config {
            $( #[doc = $heading] pub $section: $Section, )*
        }

        /// All keys, by section.
        pub static KEYS: &[Key] = &[$($(
            Key {
                section: stringify!($section),
                name: stringify!($key),
                description: concat!($($description),+),
                range: $range,
                type_name: <$Type as value::Value>::type_name,
                get: |config| value::Value::to_toml(&config.$section.$key),
                set: |config, raw| match <$Type as value::Value>::parse(raw) {
                    Some(value) if $range.contains(value::Value::number(&value)) => {
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
