//! Reads variables and remembers which ones, so that an allocation can say what it rests on.

use std::cell::RefCell;

use regatta_model::allocation::Evidence;

use super::AllocationError;
use crate::env::Env;

pub(crate) struct Reader<'a> {
    env: &'a Env,
    seen: RefCell<Vec<Evidence>>,
}

impl<'a> Reader<'a> {
    pub fn new(env: &'a Env) -> Self {
        Self { env, seen: RefCell::new(Vec::new()) }
    }

    pub fn get(&self, name: &str) -> Option<&'a str> {
        let value = self.env.get(name)?;
        let mut seen = self.seen.borrow_mut();
        if !seen.iter().any(|e| e.name == name) {
            seen.push(Evidence { name: name.to_owned(), value: value.to_owned() });
        }
        Some(value)
    }

    /// The first of these variables that is set, with its name.
    pub fn first(&self, names: &[&'static str]) -> Option<(&'static str, &'a str)> {
        names.iter().find_map(|&name| Some((name, self.get(name)?)))
    }

    pub fn number(&self, name: &str) -> Result<Option<u32>, AllocationError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let not_a_number =
            || AllocationError::NotANumber { name: name.to_owned(), value: value.to_owned() };
        value.trim().parse().map(Some).map_err(|_| not_a_number())
    }

    /// The first of these variables that is set, as a number with its name.
    pub fn first_number(
        &self,
        names: &[&'static str],
    ) -> Result<Option<(&'static str, u32)>, AllocationError> {
        for &name in names {
            if let Some(number) = self.number(name)? {
                return Ok(Some((name, number)));
            }
        }
        Ok(None)
    }

    pub fn evidence(&self) -> Vec<Evidence> {
        self.seen.borrow().clone()
    }
}
