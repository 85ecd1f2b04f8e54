//! `--sweep NAME=VALUE,VALUE…`: every combination of settings is run, and the best one is told for
//! each size.

use regatta_model::{BenchResult, units};
use serde::Serialize;

use crate::cases::{self, Case};

/// More combinations than these are refused: they would take days.
pub const MOST_SETTINGS: usize = 256;

/// Times that differ by less are the same.
const TIE: f64 = 1.02;

/// Why a sweep cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SweepError {
    /// There is no `=`, or no name before it.
    #[error("{word:?} is no setting; write NAME=VALUE,VALUE as in NCCL_ALGO=Ring,Tree")]
    NoSetting {
        /// What was given.
        word: String,
    },
    /// The name cannot be that of a variable.
    #[error("{name:?} is no name of a variable: letters, digits and _ only, no digit first")]
    BadName {
        /// The name.
        name: String,
    },
    /// A value is missing.
    #[error("{name} has an empty value; write each value between commas, as in {name}=A,B")]
    EmptyValue {
        /// The variable.
        name: String,
    },
    /// A value holds what an environment cannot.
    #[error("{name} has a value with a control character in it: {value:?}")]
    BadValue {
        /// The variable.
        name: String,
        /// The value.
        value: String,
    },
    /// A value is there twice.
    #[error("{name} has the value {value:?} twice")]
    SameValue {
        /// The variable.
        name: String,
        /// The value.
        value: String,
    },
    /// A variable is there twice.
    #[error("{name} is given twice; write all its values at once, as in {name}=A,B")]
    SameName {
        /// The variable.
        name: String,
    },
    /// There would be too many runs.
    #[error("these are {found} combinations, and {most} are the most; leave some values out")]
    TooMany {
        /// How many it would be.
        found: usize,
        /// How many are possible.
        most: usize,
    },
}

/// Variables with the values that each is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Names and values, in the order they were given in.
    pub variables: Vec<(String, Vec<String>)>,
}

/// One combination: a value for each variable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setting {
    /// Names and values, in the order they were given in.
    pub variables: Vec<(String, String)>,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |(name, value): &(String, String)| format!("{name}={value}");
        f.write_str(&self.variables.iter().map(word).collect::<Vec<_>>().join(" "))
    }
}

impl Sweep {
    /// Reads `NAME=VALUE,VALUE…` words.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Self, SweepError> {
        let mut variables: Vec<(String, Vec<String>)> = Vec::new();
        for word in words {
            let (name, values) = variable(word.as_ref())?;
            if variables.iter().any(|(known, _)| *known == name) {
                return Err(SweepError::SameName { name });
            }
            variables.push((name, values));
        }
        let counts = variables.iter().map(|(_, values)| values.len());
        let found = counts.fold(1, usize::saturating_mul);
        if found > MOST_SETTINGS {
            return Err(SweepError::TooMany { found, most: MOST_SETTINGS });
        }
        Ok(Self { variables })
    }

    /// All combinations; the last variable changes fastest, and the first combination has the first
    /// value of each.
    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = vec![Setting::default()];
        for (name, values) in &self.variables {
            let with = |setting: &Setting, value: &String| {
                let mut variables = setting.variables.clone();
                variables.push((name.clone(), value.clone()));
                Setting { variables }
            };
            let each = |setting: &Setting| -> Vec<Setting> {
                values.iter().map(|value| with(setting, value)).collect()
            };
            settings = settings.iter().flat_map(each).collect();
        }
        settings
    }
}

fn variable(word: &str) -> Result<(String, Vec<String>), SweepError> {
    let no_setting = || SweepError::NoSetting { word: word.to_owned() };
    let (name, values) = word.split_once('=').ok_or_else(no_setting)?;
    let name = name.trim().to_owned();
    if name.is_empty() {
        return Err(no_setting());
    }
    let right = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.chars().all(right) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(SweepError::BadName { name });
    }
    let mut found: Vec<String> = Vec::new();
    for value in values.split(',').map(|value| value.trim().to_owned()) {
        if value.is_empty() {
            return Err(SweepError::EmptyValue { name });
        }
        if value.chars().any(char::is_control) {
            return Err(SweepError::BadValue { name, value });
        }
        if found.contains(&value) {
            return Err(SweepError::SameValue { name, value });
        }
        found.push(value);
    }
    Ok((name, found))
}

/// The best setting for one operation and size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Best {
    /// What was measured.
    pub case: Case,
    /// Which of the runs.
    pub run: usize,
    /// Its time in microseconds.
    pub time_us: f64,
    /// Its bus bandwidth in GB/s.
    pub busbw: Option<f64>,
    /// How many times as fast as the first run it is; absent if that has no good result.
    pub speedup: Option<f64>,
}

/// The best of each operation and size, of one result for each setting. What differs by less than
/// 2 % is the same, and the earlier setting is taken; wrong results are not.
pub fn best(runs: &[BenchResult]) -> Vec<Best> {
    let of = |case: Case| {
        let timed = |(at, run)| Some((at, cases::measured(run, &case)?));
        let all: Vec<_> = runs.iter().enumerate().filter_map(timed).collect();
        let least = all.iter().map(|(_, (time, _))| *time).min_by(f64::total_cmp)?;
        let (run, (time_us, measured)) = *all.iter().find(|(_, (t, _))| *t <= least * TIE)?;
        let first = all.iter().find(|(at, _)| *at == 0).map(|(_, (time, _))| *time);
        let speedup = first.map(|first| first / time_us);
        Some(Best { run, time_us, busbw: measured.busbw, speedup, case })
    };
    cases::cases(runs.iter()).into_iter().filter_map(of).collect()
}

/// The best of each size as a table, `settings` being what each run was made with.
pub fn table(best: &[Best], settings: &[Setting]) -> String {
    let mut text = String::new();
    let same =
        |a: &Best, b: &Best| a.case.operation == b.case.operation && a.case.kind() == b.case.kind();
    for group in best.chunk_by(same) {
        let Some(first) = group.first() else { continue };
        let separator = if text.is_empty() { "" } else { "\n" };
        let head = format!("{} {}", first.case.operation, first.case.kind());
        text.push_str(&format!("{separator}{}\n", head.trim_end()));
        text.push_str(&cases::aligned(&lines(group, settings), &[0, 4]));
    }
    text
}

fn lines(group: &[Best], settings: &[Setting]) -> Vec<Vec<String>> {
    let heads = ["size", "time (us)", "busbw (GB/s)", "to first", "best setting"];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    for best in group {
        let setting = settings.get(best.run).map(ToString::to_string).unwrap_or_default();
        lines.push(vec![
            units::bytes(best.case.size_bytes),
            cases::figure(Some(best.time_us)),
            cases::figure(best.busbw),
            best.speedup.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}x")),
            setting,
        ]);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::testing::run;
    use proptest::prelude::*;

    #[test]
    fn combinations_come_in_the_order_of_words() {
        let sweep = Sweep::parse(&["NCCL_ALGO=Ring,Tree", "NCCL_NET_GDR_LEVEL=0, 3"]).unwrap();
        let words: Vec<String> = sweep.settings().iter().map(ToString::to_string).collect();
        assert_eq!(
            words,
            [
                "NCCL_ALGO=Ring NCCL_NET_GDR_LEVEL=0",
                "NCCL_ALGO=Ring NCCL_NET_GDR_LEVEL=3",
                "NCCL_ALGO=Tree NCCL_NET_GDR_LEVEL=0",
                "NCCL_ALGO=Tree NCCL_NET_GDR_LEVEL=3",
            ]
        );
        assert_eq!(Sweep::default().settings(), [Setting::default()]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |words: &[&str]| Sweep::parse(words).unwrap_err().to_string();
        assert!(said(&["NCCL_ALGO"]).starts_with("\"NCCL_ALGO\" is no setting"));
        assert!(said(&["=x"]).starts_with("\"=x\" is no setting"));
        assert!(said(&["1A=x"]).starts_with("\"1A\" is no name"));
        assert!(said(&["A-B=x"]).starts_with("\"A-B\" is no name"));
        assert!(said(&["A="]).starts_with("A has an empty value"));
        assert!(said(&["A=x,,y"]).starts_with("A has an empty value"));
        assert!(said(&["A=x\0"]).starts_with("A has a value with a control character"));
        assert!(said(&["A=x,x"]).starts_with("A has the value \"x\" twice"));
        assert!(said(&["A=x", "A=y"]).starts_with("A is given twice"));
        let many = "0,1,2,3,4,5,6";
        let words = [format!("A={many}"), format!("B={many}"), format!("C={many}")];
        let error = Sweep::parse(&words).unwrap_err();
        assert_eq!(error, SweepError::TooMany { found: 343, most: 256 });
        assert!(Sweep::parse(&words[..2]).is_ok());
    }

    #[test]
    fn the_best_of_each_size_and_of_the_same_the_earlier() {
        let runs = [
            run(&[(8, 10.0, 1.0), (1024, 100.0, 2.0)]),
            run(&[(8, 9.9, 1.0), (1024, 50.0, 4.0)]),
            run(&[(8, 20.0, 1.0), (1024, 49.5, 4.1), (4096, 7.0, 1.0)]),
        ];
        let found = best(&runs);
        let short: Vec<_> =
            found.iter().map(|b| (b.case.size_bytes, b.run, b.time_us, b.speedup)).collect();
        assert_eq!(
            short,
            [(8, 0, 10.0, Some(1.0)), (1024, 1, 50.0, Some(2.0)), (4096, 2, 7.0, None)]
        );
        let settings = Sweep::parse(&["A=x,y,z"]).unwrap().settings();
        let wanted = "all-reduce float sum
size   time (us)  busbw (GB/s)  to first  best setting
8 B        10.00          1.00     1.00x  A=x
1 KiB      50.00          4.00     2.00x  A=y
4 KiB       7.00          1.00         -  A=z
";
        assert_eq!(table(&found, &settings), wanted);
    }

    proptest! {
        #[test]
        fn any_words_are_read_or_refused(words in prop::collection::vec("[A-C1=, x\\PC]{0,12}", 0..5)) {
            if let Ok(sweep) = Sweep::parse(&words) {
                let settings = sweep.settings();
                prop_assert!(settings.len() <= MOST_SETTINGS);
                for (at, setting) in settings.iter().enumerate() {
                    prop_assert_eq!(setting.variables.len(), words.len());
                    prop_assert!(!settings[..at].contains(setting));
                }
            }
        }

        #[test]
        fn no_setting_is_more_than_a_tie_better(times in prop::collection::vec(0.5f64..2.0, 1..9)) {
            let runs: Vec<BenchResult> = times.iter().map(|time| run(&[(8, *time, 1.0)])).collect();
            let found = best(&runs);
            let best = &found[0];
            for (at, time) in times.iter().enumerate() {
                prop_assert!(best.time_us <= time * TIE);
                prop_assert!(at >= best.run || *time > best.time_us / TIE);
            }
        }
    }
}
