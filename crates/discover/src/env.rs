//! A process's environment as data, so that a recorded one is a fixture.

use std::collections::BTreeMap;

/// Environment variables by name.
#[derive(Debug, Clone, Default)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// This process's environment; what is not text is left out.
    pub fn of_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
        )
    }

    /// A variable's value; an empty one counts as not set, as most schedulers mean it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// Whether a variable is set.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All variables.
    pub fn all(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}
