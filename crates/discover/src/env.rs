//! The environment of a process as data, because recorded ones are fixtures.

use std::collections::BTreeMap;

/// Environment variables by name.
#[derive(Debug, Clone, Default)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// The environment of this process, without values that are not UTF-8.
    pub fn from_process() -> Self {
        let vars = std::env::vars_os();
        vars.filter_map(|(k, v)| k.into_string().ok().zip(v.into_string().ok())).collect()
    }

    /// The value of a variable. An empty value counts as unset, as schedulers mean it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// Whether a variable is set.
    pub fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All variables.
    pub fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}
