//! Tools around the command of chosen ranks: `rocprof --hip-trace -o trace-{rank}.csv`.

use std::ffi::OsString;

use regatta_model::CpuSet;

/// A tool and the ranks it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrap {
    words: Vec<String>,
    ranks: Option<CpuSet>,
}

/// Why a tool cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrapError {
    /// A quote that is never closed.
    #[error("--wrap {0:?}: a quote is never closed")]
    Unclosed(String),
    /// No word in it.
    #[error(
        "--wrap: nothing to wrap with; write the tool and its options, as in 'rocprof --stats'"
    )]
    Empty,
}

impl Wrap {
    /// Cuts the text into words as a shell would, but expands nothing. No ranks: all of them.
    pub fn new(text: &str, ranks: Option<CpuSet>) -> Result<Self, WrapError> {
        let words = shlex::split(text).ok_or_else(|| WrapError::Unclosed(text.to_owned()))?;
        match words.is_empty() {
            true => Err(WrapError::Empty),
            false => Ok(Self { words, ranks }),
        }
    }

    /// The command of a rank, with the tool before it if it is for this rank. `{rank}` and `{host}`
    /// in the tool's words stand for the rank's, so that no two ranks write the same file.
    pub fn around(&self, rank: u32, host: &str, command: &[OsString]) -> Vec<OsString> {
        if self.ranks.as_ref().is_some_and(|ranks| !ranks.contains(rank as usize)) {
            return command.to_vec();
        }
        let rank = rank.to_string();
        let fill = |word: &String| word.replace("{rank}", &rank).replace("{host}", host).into();
        self.words.iter().map(fill).chain(command.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(wrap: &Wrap, rank: u32) -> String {
        let command: Vec<OsString> = ["python", "train.py"].map(OsString::from).to_vec();
        let words = wrap.around(rank, "n1", &command);
        words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn chosen_ranks_are_wrapped_with_their_own_files() {
        let wrap =
            Wrap::new("rocprof -o 'my {host}-{rank}.csv'", Some("2".parse().unwrap())).unwrap();
        assert_eq!(around(&wrap, 2), "rocprof|-o|my n1-2.csv|python|train.py");
        assert_eq!(around(&wrap, 1), "python|train.py");
        let all = Wrap::new("numactl $HOME", None).unwrap();
        assert_eq!(around(&all, 0), "numactl|$HOME|python|train.py", "nothing is expanded");
    }

    #[test]
    fn bad_tools_are_refused() {
        assert!(Wrap::new("rocprof 'x", None).unwrap_err().to_string().contains("never closed"));
        assert_eq!(Wrap::new("  ", None), Err(WrapError::Empty));
    }
}
