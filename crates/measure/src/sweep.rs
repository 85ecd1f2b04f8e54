//! `--sweep NAME=VALUE,VALUE…`: runs every combination of settings and reports the best for each
//! size.

use regatta_draw::table;
use regatta_model::{BenchResult, Measurement, suggest, units};
use serde::Serialize;

use crate::cases::{self, BenchCase};

/// Upper bound on combinations; more would take days.
pub const MAX_SETTINGS: usize = 256;

/// Times within this ratio count as equal, even if every run is without noise.
const TIE_RATIO: f64 = 1.02;

/// Prefix of Regatta's variables.
const OWN_PREFIX: &str = "REGATTA_";

/// Shown instead of the best setting of a case without one.
const NO_DIFFERENCE: &str = "none, all within noise";

/// An invalid `--sweep` argument.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ParseSweepError {
    /// No `=`, or no name before it.
    #[error("invalid setting {word:?}: expected NAME=VALUE,VALUE, as in NCCL_ALGO=Ring,Tree")]
    MissingValue { word: String },
    /// Not a valid variable name.
    #[error("invalid variable name {name:?}: use letters, digits and _, not starting with a digit")]
    InvalidName { name: String },
    /// A value is empty.
    #[error("empty value for {name}; separate values by commas, as in {name}=A,B")]
    EmptyValue { name: String },
    /// A value contains a control character.
    #[error("value {value:?} of {name} contains a control character")]
    InvalidValue { name: String, value: String },
    /// A value is repeated.
    #[error("duplicate value {value:?} for {name}")]
    DuplicateValue { name: String, value: String },
    /// A variable is repeated.
    #[error("{name} is given twice; list all its values together, as in {name}=A,B")]
    DuplicateName { name: String },
    /// Not a variable that any rank reads.
    #[error("unknown variable {name}: {hint}")]
    UnknownVariable { name: String, hint: String },
    /// Too many combinations.
    #[error("{found} combinations exceed the maximum of {max}; remove some values")]
    TooManySettings { found: usize, max: usize },
}

/// Variables with their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Names and values, in the order given.
    pub variables: Vec<(String, Vec<String>)>,
}

/// One combination: a value for each variable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepSetting {
    /// Names and values, in the order given.
    pub variables: Vec<(String, String)>,
}

impl std::fmt::Display for SweepSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |(name, value): &(String, String)| format!("{name}={value}");
        f.write_str(&self.variables.iter().map(word).collect::<Vec<_>>().join(" "))
    }
}

impl Sweep {
    /// Parses `NAME=VALUE,VALUE…` arguments.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Self, ParseSweepError> {
        let mut variables: Vec<(String, Vec<String>)> = Vec::new();
        for word in words {
            let (name, values) = variable(word.as_ref())?;
            if variables.iter().any(|(known, _)| *known == name) {
                return Err(ParseSweepError::DuplicateName { name });
            }
            variables.push((name, values));
        }
        let counts = variables.iter().map(|(_, values)| values.len());
        let found = counts.fold(1, usize::saturating_mul);
        if found > MAX_SETTINGS {
            return Err(ParseSweepError::TooManySettings { found, max: MAX_SETTINGS });
        }
        Ok(Self { variables })
    }

    /// The first variable of NCCL or RCCL, which other backends ignore.
    pub fn nccl_variable(&self) -> Option<&str> {
        let is_nccl = |name: &&str| name.starts_with("NCCL_") || name.starts_with("RCCL_");
        self.variables.iter().map(|(name, _)| name.as_str()).find(is_nccl)
    }

    /// Refuses variables of Regatta that are not in `known`: no rank reads them.
    pub fn check_own_variables(&self, known: &[&str]) -> Result<(), ParseSweepError> {
        let own = self.variables.iter().filter(|(name, _)| name.starts_with(OWN_PREFIX));
        let Some((name, _)) = own.into_iter().find(|(name, _)| !known.contains(&name.as_str()))
        else {
            return Ok(());
        };
        // The common prefix would make short names similar to all others.
        let ends = known.iter().filter_map(|known| known.strip_prefix(OWN_PREFIX));
        let hint = match suggest::closest_match(&name[OWN_PREFIX.len()..], ends) {
            Some(closest) => format!("did you mean {OWN_PREFIX}{closest}?"),
            None => format!("known: {}", known.join(", ")),
        };
        Err(ParseSweepError::UnknownVariable { name: name.clone(), hint })
    }

    /// All combinations. The last variable varies fastest.
    pub fn settings(&self) -> Vec<SweepSetting> {
        let mut settings = vec![SweepSetting::default()];
        for (name, values) in &self.variables {
            let with_each = |setting: &SweepSetting| {
                let variables = setting.variables.clone();
                values.iter().map(move |value| SweepSetting {
                    variables: [&variables[..], &[(name.clone(), value.clone())]].concat(),
                })
            };
            settings = settings.iter().flat_map(with_each).collect();
        }
        settings
    }
}

fn variable(word: &str) -> Result<(String, Vec<String>), ParseSweepError> {
    let missing_value = || ParseSweepError::MissingValue { word: word.to_owned() };
    let (name, values) = word.split_once('=').ok_or_else(missing_value)?;
    let name = name.trim().to_owned();
    if name.is_empty() {
        return Err(missing_value());
    }
    let right = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.chars().all(right) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(ParseSweepError::InvalidName { name });
    }
    let mut found: Vec<String> = Vec::new();
    for value in values.split(',').map(|value| value.trim().to_owned()) {
        if value.is_empty() {
            return Err(ParseSweepError::EmptyValue { name });
        }
        if value.chars().any(char::is_control) {
            return Err(ParseSweepError::InvalidValue { name, value });
        }
        if found.contains(&value) {
            return Err(ParseSweepError::DuplicateValue { name, value });
        }
        found.push(value);
    }
    Ok((name, found))
}

/// The best setting for one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BestSetting {
    /// The case.
    pub case: BenchCase,
    /// Index of the run.
    pub run: usize,
    /// Its setting.
    pub setting: String,
    /// Time in µs.
    pub time_us: f64,
    /// Bus bandwidth in GB/s.
    pub busbw: Option<f64>,
    /// Speedup over the first run; absent if that has no valid measurement.
    pub speedup: Option<f64>,
    /// Whether all settings are equal within noise, so that none is best.
    pub within_noise: bool,
}

/// Whether the times of two runs differ by no more than noise: by 2 %, or by the standard deviation
/// of the calls in both.
fn equal_within_noise(a: (f64, &Measurement), b: (f64, &Measurement)) -> bool {
    let deviation = |(time, measured): (f64, &Measurement)| {
        let stats = measured.call_stats.as_ref();
        time * stats.and_then(|stats| stats.cv_percent).unwrap_or(0.0) / 100.0
    };
    let (low, high) = (a.0.min(b.0), a.0.max(b.0));
    high <= low * TIE_RATIO || high - low <= deviation(a).hypot(deviation(b))
}

/// The best setting of each case, given the results of the settings, in order. Of settings that equal the fastest
/// within noise the earliest is taken; wrong results are excluded.
pub fn best(runs: &[BenchResult], settings: &[SweepSetting]) -> Vec<BestSetting> {
    let of = |case: BenchCase| {
        let timed = |(at, run)| Some((at, cases::measurement(run, &case)?));
        let all: Vec<_> = runs.iter().enumerate().filter_map(timed).collect();
        let fastest = all.iter().map(|(_, one)| *one).min_by(|a, b| a.0.total_cmp(&b.0))?;
        let is_best = |(_, one): &&(usize, _)| equal_within_noise(*one, fastest);
        let (run, (time_us, measured)) = *all.iter().find(is_best)?;
        let within_noise = all.len() > 1 && all.iter().all(|one| is_best(&one));
        let first = all.first().filter(|(at, _)| *at == 0);
        let speedup = first.map(|(_, (first, _))| first / time_us);
        let setting = settings.get(run).map(ToString::to_string).unwrap_or_default();
        let busbw = measured.busbw;
        Some(BestSetting { run, setting, time_us, busbw, speedup, within_noise, case })
    };
    cases::cases(runs.iter()).into_iter().filter_map(of).collect()
}

/// The best settings as text tables.
pub fn table(best: &[BestSetting]) -> String {
    let same = |a: &BestSetting, b: &BestSetting| {
        a.case.operation == b.case.operation && a.case.variant() == b.case.variant()
    };
    let tables: Vec<String> = best.chunk_by(same).map(table_of_group).collect();
    tables.join("\n")
}

fn table_of_group(group: &[BestSetting]) -> String {
    let head = group.first().map_or_else(String::new, |first| {
        format!("{} {}", first.case.operation, first.case.variant())
    });
    let row = |best: &BestSetting| {
        let [time, busbw] = [Some(best.time_us), best.busbw].map(table::format_value);
        let speedup = best.speedup.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}x"));
        let setting = if best.within_noise { NO_DIFFERENCE } else { &best.setting };
        let size = units::format_bytes(best.case.size_bytes);
        vec![size, time, busbw, speedup, setting.to_owned()]
    };
    let rows: Vec<Vec<String>> = group.iter().map(row).collect();
    let header = ["size", "time (us)", "busbw (GB/s)", "speedup", "best setting"];
    format!("{}\n{}", head.trim_end(), table::align(&header, &rows, &[0, 4]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::testing::run;
    use proptest::prelude::*;
    use regatta_model::bench::TimeStats;

    #[test]
    fn combinations_follow_argument_order() {
        let sweep = Sweep::parse(&["NCCL_ALGO=Ring,Tree", "NCCL_NET_GDR_LEVEL=0, 3"]).unwrap();
        let words: Vec<String> = sweep.settings().iter().map(ToString::to_string).collect();
        let expected = [("Ring", 0), ("Ring", 3), ("Tree", 0), ("Tree", 3)];
        let setting = |(algo, level)| format!("NCCL_ALGO={algo} NCCL_NET_GDR_LEVEL={level}");
        assert_eq!(words, expected.map(setting));
        assert_eq!(Sweep::default().settings(), [SweepSetting::default()]);
    }

    #[test]
    fn variables_of_nccl_are_recognised() {
        let nccl = |words: &[&str]| Sweep::parse(words).unwrap().nccl_variable().map(str::to_owned);
        assert_eq!(nccl(&["A=1", "NCCL_ALGO=Ring"]).as_deref(), Some("NCCL_ALGO"));
        assert_eq!(nccl(&["RCCL_X=1"]).as_deref(), Some("RCCL_X"));
        assert_eq!(nccl(&["REGATTA_NCCL_X=1"]), None);
    }

    #[test]
    fn invalid_arguments_are_reported() {
        let cases = [
            ("NCCL_ALGO", "invalid setting \"NCCL_ALGO\""),
            ("=x", "invalid setting \"=x\""),
            ("1A=x", "invalid variable name \"1A\""),
            ("A-B=x", "invalid variable name \"A-B\""),
            ("A=", "empty value for A"),
            ("A=x,,y", "empty value for A"),
            ("A=x\0", "value \"x\\0\" of A contains a control"),
            ("A=x,x", "duplicate value \"x\" for A"),
            ("A=x A=y", "A is given twice"),
        ];
        for (words, expected) in cases {
            let words: Vec<&str> = words.split(' ').collect();
            let error = Sweep::parse(&words).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{words:?}: {error}");
        }
        let many = "0,1,2,3,4,5,6";
        let words = [format!("A={many}"), format!("B={many}"), format!("C={many}")];
        let error = Sweep::parse(&words).unwrap_err();
        assert_eq!(error, ParseSweepError::TooManySettings { found: 343, max: 256 });
        assert!(Sweep::parse(&words[..2]).is_ok());
    }

    #[test]
    fn best_setting_per_size_prefers_the_earlier_on_a_tie() {
        let runs = [
            run(&[(8, 10.0, 1.0), (1024, 100.0, 2.0)]),
            run(&[(8, 9.9, 1.0), (1024, 50.0, 4.0)]),
            run(&[(8, 20.0, 1.0), (1024, 49.5, 4.1), (4096, 7.0, 1.0)]),
        ];
        let settings = Sweep::parse(&["A=x,y,z"]).unwrap().settings();
        let found = best(&runs, &settings);
        let short =
            |best: &BestSetting| (best.case.size_bytes, best.run, best.time_us, best.speedup);
        let expected = [(8, 0, 10.0, Some(1.0)), (1024, 1, 50.0, Some(2.0)), (4096, 2, 7.0, None)];
        assert_eq!(found.iter().map(short).collect::<Vec<_>>(), expected);
        let wanted = "all-reduce float sum
size   time (us)  busbw (GB/s)  speedup  best setting
8 B        10.00          1.00    1.00x  A=x
1 KiB      50.00          4.00    2.00x  A=y
4 KiB       7.00          1.00        -  A=z
";
        assert_eq!(table(&found), wanted);
    }

    #[test]
    fn unknown_variables_of_regatta_are_refused_with_the_closest_name() {
        let check = |words: &[&str]| {
            let sweep = Sweep::parse(words).unwrap();
            sweep.check_own_variables(&["REGATTA_FABRIC", "REGATTA_TUNING"])
        };
        assert_eq!(check(&["REGATTA_FABRIC=off,auto", "FI_PROVIDER=tcp", "X=1"]), Ok(()));
        let error = check(&["REGATTA_FABRIC=off", "REGATTA_FABRICS=x"]).unwrap_err().to_string();
        assert_eq!(error, "unknown variable REGATTA_FABRICS: did you mean REGATTA_FABRIC?");
        let error = check(&["REGATTA_X=1"]).unwrap_err().to_string();
        assert_eq!(error, "unknown variable REGATTA_X: known: REGATTA_FABRIC, REGATTA_TUNING");
    }

    /// Runs of one size with these times and coefficients of variation in percent.
    fn noisy_runs(values: &[(f64, f64)]) -> Vec<BenchResult> {
        let noisy = |&(time, cv): &(f64, f64)| {
            let mut run = run(&[(8, time, 1.0)]);
            let measured = run.tables[0].rows[0].out_of_place.as_mut().unwrap();
            let stats = TimeStats { cv_percent: Some(cv), ..TimeStats::default() };
            measured.call_stats = Some(stats);
            run
        };
        values.iter().map(noisy).collect()
    }

    #[test]
    fn no_setting_is_best_within_noise() {
        let found = |values: &[(f64, f64)]| {
            let best = &best(&noisy_runs(values), &[])[0];
            (best.run, best.within_noise)
        };
        assert_eq!(found(&[(10.0, 80.0), (5.0, 80.0)]), (0, true), "half the time, but noisy");
        assert_eq!(found(&[(10.0, 5.0), (5.0, 5.0)]), (1, false));
        assert_eq!(found(&[(10.0, 0.0), (9.9, 0.0)]), (0, true));
        assert_eq!(found(&[(20.0, 1.0), (10.0, 10.0), (9.5, 10.0)]), (1, false), "one is slower");
        assert_eq!(found(&[(10.0, 0.0)]), (0, false), "a single setting");
        let settings = Sweep::parse(&["A=x,y"]).unwrap().settings();
        let text = table(&best(&noisy_runs(&[(10.0, 80.0), (5.0, 80.0)]), &settings));
        assert!(text.ends_with("1.00x  none, all within noise\n"), "{text}");
    }

    proptest! {
        #[test]
        fn parse_never_panics_and_settings_are_distinct(words in prop::collection::vec("[A-C1=, x\\PC]{0,12}", 0..5)) {
            if let Ok(sweep) = Sweep::parse(&words) {
                let settings = sweep.settings();
                prop_assert!(settings.len() <= MAX_SETTINGS);
                for (at, setting) in settings.iter().enumerate() {
                    prop_assert_eq!(setting.variables.len(), words.len());
                    prop_assert!(!settings[..at].contains(setting));
                }
            }
        }

        #[test]
        fn no_setting_beats_the_best_by_more_than_the_tie_ratio(times in prop::collection::vec(0.5f64..2.0, 1..9)) {
            let runs: Vec<BenchResult> = times.iter().map(|time| run(&[(8, *time, 1.0)])).collect();
            let found = best(&runs, &[]);
            let best = &found[0];
            for (at, time) in times.iter().enumerate() {
                prop_assert!(best.time_us <= time * TIE_RATIO);
                prop_assert!(at >= best.run || *time > best.time_us / TIE_RATIO);
            }
        }
    }
}
