//! What a key may be: read from a word, written as TOML.

use std::path::PathBuf;

use crate::schedule::{Curve, Scaling};
use regatta_device::precision::Precision;
use regatta_predict::pipeline::Kind as Pipeline;
use regatta_predict::shape::Family;

/// A value as somebody wrote it.
#[derive(Debug, Clone, Copy)]
pub struct Word<'a> {
    /// The characters, without quotes.
    pub text: &'a str,
    /// How sure it is that they are meant as a text.
    pub quotes: Quotes,
}

/// Whether a value was in quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quotes {
    /// It is a text.
    Quoted,
    /// It is none.
    Bare,
    /// The command line has none to tell by.
    Unknown,
}

impl<'a> Word<'a> {
    /// The characters, if it may be a text.
    fn as_text(&self) -> Option<&'a str> {
        (self.quotes != Quotes::Bare).then_some(self.text)
    }

    /// The characters, if it may be something else.
    fn as_bare(&self) -> Option<&'a str> {
        (self.quotes != Quotes::Quoted).then_some(self.text)
    }
}

/// A type that keys have.
pub trait Value: Sized {
    /// What it is, such as `a whole number`.
    fn kind() -> String;
    /// Reads it.
    fn read(word: &Word<'_>) -> Option<Self>;
    /// Writes it as TOML.
    fn to_toml(&self) -> String;
    /// Its size, if it has one.
    fn number(&self) -> Option<f64> {
        None
    }
}

/// TOML and people write 10_000, and both must be read.
fn without_underscores(text: &str) -> Option<String> {
    let lonely = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    (!lonely).then(|| text.replace('_', ""))
}

macro_rules! whole_numbers {
    ($($Type:ty),*) => {$(
        impl Value for $Type {
            fn kind() -> String {
                "a whole number".to_owned()
            }
            fn read(word: &Word<'_>) -> Option<Self> {
                without_underscores(word.as_bare()?)?.parse().ok()
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
whole_numbers!(usize, u64);

impl Value for f64 {
    fn kind() -> String {
        "a number".to_owned()
    }

    fn read(word: &Word<'_>) -> Option<Self> {
        let number: f64 = without_underscores(word.as_bare()?)?.parse().ok()?;
        number.is_finite().then_some(number)
    }

    fn to_toml(&self) -> String {
        // With a point or an exponent, so that it stays a float.
        format!("{self:?}")
    }

    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Value for bool {
    fn kind() -> String {
        "true or false".to_owned()
    }

    fn read(word: &Word<'_>) -> Option<Self> {
        word.as_bare()?.parse().ok()
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn kind() -> String {
        "a text".to_owned()
    }

    fn read(word: &Word<'_>) -> Option<Self> {
        word.as_text().map(str::to_owned)
    }

    fn to_toml(&self) -> String {
        quoted(self)
    }
}

/// A text as a basic string of TOML.
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

/// One of a few names.
macro_rules! names {
    ($Type:ty: $($variant:ident = $name:literal),+) => {
        impl Value for $Type {
            fn kind() -> String {
                either(&[$($name),+])
            }
            fn read(word: &Word<'_>) -> Option<Self> {
                match word.as_text()? {
                    $($name => Some(Self::$variant),)+
                    _ => None,
                }
            }
            fn to_toml(&self) -> String {
                quoted(match self {
                    $(Self::$variant => $name,)+
                })
            }
        }
    };
}

/// How parameters follow their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// [`regatta_device::optimizer::AdamW`].
    AdamW,
    /// [`regatta_device::optimizer::Sgd`].
    Sgd,
}

/// Where something is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Where it is computed.
    Device,
    /// In the host's memory.
    Host,
    /// In files.
    Disk,
}

impl Value for Pipeline {
    fn kind() -> String {
        either(&Self::ALL.map(Self::name))
    }

    fn read(word: &Word<'_>) -> Option<Self> {
        word.as_text()?.parse().ok()
    }

    fn to_toml(&self) -> String {
        quoted(self.name())
    }
}

names!(Memory: Device = "device", Host = "host", Disk = "disk");
names!(Family: Gpt2 = "gpt2", Llama = "llama", Mlp = "mlp");
names!(Precision: F32 = "f32", Bf16 = "bf16");
names!(Kind: AdamW = "adamw", Sgd = "sgd");
names!(Curve: Cosine = "cosine", Linear = "linear", Constant = "constant");
names!(Scaling: None = "none", Sqrt = "sqrt", Linear = "linear");

/// Yes, no, or what is usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// What is usual.
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

impl Switch {
    /// Whether it is on, given what is usual.
    pub fn or(self, usual: bool) -> bool {
        match self {
            Self::Auto => usual,
            Self::On => true,
            Self::Off => false,
        }
    }
}

impl Value for Switch {
    fn kind() -> String {
        "true, false or auto".to_owned()
    }

    fn read(word: &Word<'_>) -> Option<Self> {
        match bool::read(word) {
            Some(true) => Some(Self::On),
            Some(false) => Some(Self::Off),
            None => (word.as_text()? == "auto").then_some(Self::Auto),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::On => true.to_toml(),
            Self::Off => false.to_toml(),
        }
    }
}

/// What a run goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The latest checkpoint of its own folder, if there is one.
    Auto,
    /// Nothing: it begins anew.
    Never,
    /// A checkpoint, or the latest of a run folder.
    From(PathBuf),
}

impl Value for Resume {
    fn kind() -> String {
        "auto, never or a path".to_owned()
    }

    fn read(word: &Word<'_>) -> Option<Self> {
        match word.as_text()? {
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
