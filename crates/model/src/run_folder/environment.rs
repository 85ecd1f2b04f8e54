//! The environment of the ranks: `environment.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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

/// The environment of all ranks, with owned variables or references to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnvironment<V = EnvVar> {
    /// Variables with the same value in all ranks.
    pub common: Vec<V>,
    /// All other variables, by rank.
    pub ranks: BTreeMap<u32, Vec<V>>,
}
