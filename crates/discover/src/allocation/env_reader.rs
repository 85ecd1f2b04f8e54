//! Reads environment variables and records them as the evidence of an allocation.

use std::cell::RefCell;

use regatta_model::allocation::Evidence;

use super::{AllocationError, Result};
use crate::env::Env;

pub(crate) struct EnvReader<'a> {
    env: &'a Env,
    evidence: RefCell<Vec<Evidence>>,
}

impl<'a> EnvReader<'a> {
    pub fn new(env: &'a Env) -> Self {
        Self { env, evidence: RefCell::new(Vec::new()) }
    }

    pub fn get(&self, name: &str) -> Option<&'a str> {
        let value = self.env.get(name)?;
        let mut evidence = self.evidence.borrow_mut();
        if !evidence.iter().any(|e| e.name == name) {
            evidence.push(Evidence { name: name.to_owned(), value: value.to_owned() });
        }
        Some(value)
    }

    /// The first of these variables that is set, with its name.
    pub fn first(&self, names: &[&'static str]) -> Option<(&'static str, &'a str)> {
        names.iter().find_map(|&name| Some((name, self.get(name)?)))
    }

    pub fn u32(&self, name: &str) -> Result<Option<u32>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let (name, owned) = (name.to_owned(), value.to_owned());
        let not_a_number = |_| AllocationError::NotANumber { name, value: owned };
        value.trim().parse().map(Some).map_err(not_a_number)
    }

    /// The first of these variables that is set, parsed, with its name.
    pub fn first_u32(&self, names: &[&'static str]) -> Result<Option<(&'static str, u32)>> {
        let set = |&name: &&'static str| Some((name, self.u32(name).transpose()?));
        let first = names.iter().find_map(set);
        first.map(|(name, value)| Ok((name, value?))).transpose()
    }

    pub fn into_evidence(self) -> Vec<Evidence> {
        self.evidence.into_inner()
    }
}
