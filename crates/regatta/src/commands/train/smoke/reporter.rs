//! Shows a check of all ranks: each part when it is over, or all of it as JSON.

use std::time::Instant;

use anyhow::Result;
use regatta_train::job::smoke::Told;

use super::face;
use super::report::Report;
use crate::output;

/// Where a check is shown.
pub struct Show {
    report: Report,
    began: Instant,
    json: bool,
    /// Parts that are shown already.
    shown: usize,
}

impl Show {
    /// Shows nothing yet.
    pub fn new(is_starter: bool, json: bool) -> Self {
        Self { report: Report::new(is_starter), began: Instant::now(), json, shown: 0 }
    }

    /// Takes what rank 0 told.
    pub fn hear(&mut self, told: Told) -> Result<()> {
        self.report.hear(told, self.began.elapsed().as_secs_f64());
        self.show()
    }

    /// All ranks have ended.
    pub fn ranks_ended(&mut self) -> Result<()> {
        if self.report.is_over() {
            return Ok(());
        }
        self.report.ranks_ended(self.began.elapsed().as_secs_f64());
        self.show()
    }

    fn show(&mut self) -> Result<()> {
        if self.json {
            return match self.report.is_over() {
                true => {
                    output::print(&format!("{}\n", serde_json::to_string_pretty(&self.report)?))
                }
                false => Ok(()),
            };
        }
        let new = &self.report.parts[self.shown..];
        let mut text = String::new();
        if self.shown == 0 && !new.is_empty() {
            text.push_str(&face::header());
        }
        new.iter().for_each(|part| text.push_str(&face::part(part)));
        self.shown = self.report.parts.len();
        if self.report.is_over() {
            text.push_str(&face::end(&self.report));
        }
        output::print(&text)
    }
}
