//! Wraps the command of selected ranks in a tool: `rocprof --hip-trace -o trace-{rank}.csv`.

use std::ffi::OsString;

use regatta_model::CpuSet;

/// A tool and the ranks that run under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrap {
    words: Vec<String>,
    ranks: Option<CpuSet>,
}

/// The tool's command line is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrapError {
    /// A quote is not closed.
    #[error("--wrap {0:?}: unclosed quote")]
    Unclosed(String),
    /// The command line is empty.
    #[error("--wrap is empty: give the tool and its options, as in 'rocprof --stats'")]
    Empty,
}

impl Wrap {
    /// Splits the text into words as a shell does, without expansion. `None` selects all ranks.
    pub fn new(text: &str, ranks: Option<CpuSet>) -> Result<Self, WrapError> {
        let words = shlex::split(text).ok_or_else(|| WrapError::Unclosed(text.to_owned()))?;
        match words.is_empty() {
            true => Err(WrapError::Empty),
            false => Ok(Self { words, ranks }),
        }
    }

    /// The selected ranks; `None`: all.
    pub fn ranks(&self) -> Option<&CpuSet> {
        self.ranks.as_ref()
    }

    /// The command of a rank, prefixed by the tool if the rank is selected. `{rank}` and `{host}` in
    /// the tool's arguments are substituted, so that ranks can write separate files.
    pub fn apply(&self, rank: u32, host: &str, command: &[OsString]) -> Vec<OsString> {
        if self.ranks.as_ref().is_some_and(|ranks| !ranks.contains(rank as usize)) {
            return command.to_vec();
        }
        let rank = rank.to_string();
        let substitute = |w: &String| w.replace("{rank}", &rank).replace("{host}", host).into();
        self.words.iter().map(substitute).chain(command.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(wrap: &Wrap, rank: u32) -> String {
        let command: Vec<OsString> = ["python", "train.py"].map(OsString::from).to_vec();
        let words = wrap.apply(rank, "n1", &command);
        words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn selected_ranks_are_wrapped_with_substitution() {
        let wrap =
            Wrap::new("rocprof -o 'my {host}-{rank}.csv'", Some("2".parse().unwrap())).unwrap();
        assert_eq!(wrapped(&wrap, 2), "rocprof|-o|my n1-2.csv|python|train.py");
        assert_eq!(wrapped(&wrap, 1), "python|train.py");
        let all = Wrap::new("numactl $HOME", None).unwrap();
        assert_eq!(wrapped(&all, 0), "numactl|$HOME|python|train.py", "nothing is expanded");
    }

    #[test]
    fn invalid_command_lines_are_rejected() {
        let error = Wrap::new("rocprof 'x", None).unwrap_err().to_string();
        assert!(error.contains("unclosed quote"), "{error}");
        assert_eq!(Wrap::new("  ", None), Err(WrapError::Empty));
    }
}
