//! The environment of the ranks: `environment.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Document;

/// An environment variable to set, or to unset if it has no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    /// Name.
    pub variable: String,
    /// Value; `None`: unset.
    pub value: Option<String>,
    /// The reason.
    pub why: String,
}

/// The environment of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnvironment {
    /// Variables with the same value in all ranks.
    pub common: Vec<EnvVar>,
    /// All other variables, by rank.
    pub ranks: BTreeMap<u32, Vec<EnvVar>>,
}

impl Document for JobEnvironment {
    const KIND: &'static str = "environment";
    const VERSION: u32 = 1;
    const FORMAT_IS_OPTIONAL: bool = true;
}
