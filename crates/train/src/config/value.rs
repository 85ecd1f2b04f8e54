//! Types of configuration values: parsing and TOML output.

use std::path::PathBuf;

use crate::lr_schedule::{LrDecay, LrScaling};
use crate::offload::Tier;
use regatta_comm::enum_names;
use regatta_device::ops::Fp8;
use regatta_device::precision::Precision;
use regatta_predict::pipeline::ScheduleKind;
use regatta_predict::shape::Family;
use serde::{Deserialize, Serialize};

/// An unparsed value.
#[derive(Debug, Clone, Copy)]
pub struct RawValue<'a> {
    /// The text, without quotes.
    pub text: &'a str,
    /// Whether it was quoted.
    pub quoting: Quoting,
}

/// Whether a value was quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quoting {
    /// A TOML string.
    Quoted,
    /// A TOML number or boolean.
    Bare,
    /// From the command line, which does not distinguish.
    Unknown,
}

impl<'a> RawValue<'a> {
    /// The text, if this may be a string.
    fn as_text(&self) -> Option<&'a str> {
        (self.quoting != Quoting::Bare).then_some(self.text)
    }

    /// The text, if this may be a number or boolean.
    fn as_bare(&self) -> Option<&'a str> {
        (self.quoting != Quoting::Quoted).then_some(self.text)
    }
}

/// A type of configuration values.
pub trait Value: Sized {
    /// Name for messages, such as `an integer`.
    fn type_name() -> String;
    /// Parses a value.
    fn parse(raw: &RawValue<'_>) -> Option<Self>;
    /// Formats it as TOML.
    fn to_toml(&self) -> String;
    /// The value as a number, for range checks, if it is numeric.
    fn number(&self) -> Option<f64> {
        None
    }
}

/// Removes digit separators as in 10_000.
fn without_underscores(text: &str) -> Option<String> {
    let misplaced = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    (!misplaced).then(|| text.replace('_', ""))
}

macro_rules! integers {
    ($($Type:ty),*) => {$(
        impl Value for $Type {
            fn type_name() -> String {
                "an integer".to_owned()
            }
            fn parse(raw: &RawValue<'_>) -> Option<Self> {
                without_underscores(raw.as_bare()?)?.parse().ok()
            }
            fn to_toml(&self) -> String {
                self.to_string()
            }
            fn number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        }
    )*};
}
integers!(usize, u64);

impl Value for f64 {
    fn type_name() -> String {
        "a number".to_owned()
    }

    fn parse(raw: &RawValue<'_>) -> Option<Self> {
        let number: f64 = without_underscores(raw.as_bare()?)?.parse().ok()?;
        number.is_finite().then_some(number)
    }

    fn to_toml(&self) -> String {
        // With a decimal point or an exponent, so that it parses as a float again.
        format!("{self:?}")
    }

    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Value for bool {
    fn type_name() -> String {
        "true or false".to_owned()
    }

    fn parse(raw: &RawValue<'_>) -> Option<Self> {
        raw.as_bare()?.parse().ok()
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn type_name() -> String {
        "a string".to_owned()
    }

    fn parse(raw: &RawValue<'_>) -> Option<Self> {
        raw.as_text().map(str::to_owned)
    }

    fn to_toml(&self) -> String {
        quoted(self)
    }
}

/// A TOML basic string.
pub fn quoted(text: &str) -> String {
    let mut all = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => all.push_str("\\\""),
            '\\' => all.push_str("\\\\"),
            c if c.is_control() => all.push_str(&format!("\\U{:08X}", u32::from(c))),
            c => all.push(c),
        }
    }
    all + "\""
}

/// `a, b or c`.
fn either(names: &[&str]) -> String {
    match names {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        few => few.concat(),
    }
}

/// Implements [`Value`] for enums by the names of their variants.
macro_rules! named_variants {
    ($($Type:ty),+) => {$(
        impl Value for $Type {
            fn type_name() -> String {
                either(&Self::ALL.map(Self::name))
            }
            fn parse(raw: &RawValue<'_>) -> Option<Self> {
                let name = raw.as_text()?;
                Self::ALL.into_iter().find(|variant| variant.name() == name)
            }
            fn to_toml(&self) -> String {
                quoted(self.name())
            }
        }
    )+};
}

named_variants!(Tier, Family, Precision, Fp8, ScheduleKind, DeviceKind, OptimizerKind);
named_variants!(LrDecay, LrScaling);

/// Where to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// The cores of each rank.
    Cpu,
    /// A GPU per rank.
    Gpu,
}

enum_names!(DeviceKind, "All kinds.", Cpu "cpu", Gpu "gpu");

/// Optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OptimizerKind {
    /// [`regatta_device::optimizer::AdamW`].
    AdamW,
    /// [`regatta_device::optimizer::Sgd`].
    Sgd,
}

enum_names!(OptimizerKind, "All optimizers.", AdamW "adamw", Sgd "sgd");

/// Implements [`Value`] for an option; None: `auto`, a default that depends on other keys.
macro_rules! or_auto {
    ($Type:ty, $name:literal) => {
        impl Value for Option<$Type> {
            fn type_name() -> String {
                $name.to_owned()
            }
            fn parse(raw: &RawValue<'_>) -> Option<Self> {
                let auto = || (raw.as_text()? == "auto").then_some(None);
                <$Type>::parse(raw).map(Some).or_else(auto)
            }
            fn to_toml(&self) -> String {
                self.map_or_else(|| quoted("auto"), |value| value.to_toml())
            }
            fn number(&self) -> Option<f64> {
                self.and_then(|value| value.number())
            }
        }
    };
}
or_auto!(bool, "true, false or auto");
or_auto!(Precision, "f32, bf16 or auto");
or_auto!(DeviceKind, "cpu, gpu or auto");
or_auto!(f64, "auto or a number");
or_auto!(usize, "auto or an integer");

/// Sequences per forward and backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MicroBatchSize {
    /// `auto`: as on CPUs, unless it is chosen for GPUs.
    Auto,
    /// `auto`, with the size chosen for the GPUs of a run.
    Chosen(usize),
    /// This number.
    Fixed(usize),
}

impl MicroBatchSize {
    /// Whether the size was chosen for the GPUs of a run.
    pub fn is_chosen(self) -> bool {
        matches!(self, Self::Chosen(_))
    }
}

impl Value for MicroBatchSize {
    fn type_name() -> String {
        <Option<usize>>::type_name()
    }

    fn parse(raw: &RawValue<'_>) -> Option<Self> {
        <Option<usize>>::parse(raw).map(|size| size.map_or(Self::Auto, Self::Fixed))
    }

    /// A chosen size is that of a run, not of its configuration.
    fn to_toml(&self) -> String {
        match self {
            Self::Auto | Self::Chosen(_) => quoted("auto"),
            Self::Fixed(size) => size.to_toml(),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Auto | Self::Chosen(_) => None,
            Self::Fixed(size) => size.number(),
        }
    }
}

/// Where to resume from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resume {
    /// The latest checkpoint of the run folder, if any.
    Auto,
    /// Start from scratch.
    Never,
    /// A checkpoint, or the latest one of a run folder.
    From(PathBuf),
}

impl Value for Resume {
    fn type_name() -> String {
        "auto, never or a path".to_owned()
    }

    fn parse(raw: &RawValue<'_>) -> Option<Self> {
        match raw.as_text()? {
            "" => None,
            "auto" => Some(Self::Auto),
            "never" => Some(Self::Never),
            path => Some(Self::From(path.into())),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::Never => quoted("never"),
            Self::From(path) => quoted(&path.to_string_lossy()),
        }
    }
}
