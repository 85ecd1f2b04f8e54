//! The table of a process, and its tuners: one for each size of communicator.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use regatta_nccl_tuning::select::{self, Call, CostTable, Decision, Rules};
use regatta_nccl_tuning::table::MAX_BYTES;
use regatta_nccl_tuning::{Choice, Communicator, Table};
use regatta_plugin_abi::log::{Level, Logger, log};

use crate::explain::{self, Explained};

/// Environment variable that names the table.
pub const TABLE_VARIABLE: &str = "REGATTA_TUNER";
/// Environment variable: 1 explains selections in NCCL's log.
pub const EXPLAIN_VARIABLE: &str = "REGATTA_TUNER_EXPLAIN";

/// The settings of this process, read by the first communicator. Later changes of the file do not count:
/// another rank might see them at another communicator, and select something else.
static SESSION: OnceLock<Session> = OnceLock::new();
/// Tuners are shared by communicators, and never freed: a context stays valid whatever the host does, and
/// there are only as many as sizes of communicators.
static TUNERS: Mutex<Vec<&'static Tuner>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Session {
    /// `None`: inert.
    table: Option<Table>,
    explains: bool,
}

/// Selects for communicators of one size.
#[derive(Debug)]
pub struct Tuner {
    communicator: Communicator,
    logger: Logger,
    rules: Rules,
    /// `None`: selections are not explained.
    explained: Option<Explained>,
}

/// The tuner for a communicator; `None` if the table has nothing for it.
pub fn open(communicator: Communicator, logger: Logger) -> Option<&'static Tuner> {
    let session = SESSION.get_or_init(|| Session::from_env(logger));
    let table = session.table.as_ref()?;
    let mut tuners = TUNERS.lock().unwrap_or_else(PoisonError::into_inner);
    // A process may hold several copies of NCCL, each with a logger.
    let is_same = |tuner: &&&Tuner| {
        tuner.communicator == communicator
            && tuner.logger.map(|f| f as usize) == logger.map(|f| f as usize)
    };
    let found = tuners.iter().find(is_same).copied();
    let tuner = found.unwrap_or_else(|| {
        let tuner: &'static Tuner =
            Box::leak(Box::new(Tuner::new(table, communicator, logger, session.explains)));
        tuners.push(tuner);
        tuner
    });
    (!tuner.rules.is_empty()).then_some(tuner)
}

impl Session {
    fn from_env(logger: Logger) -> Self {
        let path = std::env::var_os(TABLE_VARIABLE).filter(|path| !path.is_empty());
        let explains = std::env::var_os(EXPLAIN_VARIABLE).is_some_and(|value| value == "1");
        let Some(path) = path.map(PathBuf::from) else { return Self { table: None, explains } };
        let table = read(&path);
        let (level, message) = match &table {
            Ok(table) => (Level::Info, explain::loaded(&path, table)),
            Err(problem) => (Level::Warn, explain::not_loaded(&path, problem)),
        };
        log(logger, level, &message);
        Self { table: table.ok(), explains }
    }
}

/// Reads a table; the error is for the log.
fn read(path: &Path) -> Result<Table, String> {
    let text = |path: &Path| -> io::Result<String> {
        // Opening a pipe would wait for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
        }
        let mut text = String::new();
        std::fs::File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = text(path).map_err(|error| error.to_string())?;
    text.parse().map_err(|error: regatta_nccl_tuning::parse::ParseError| error.to_string())
}

impl Tuner {
    fn new(table: &Table, communicator: Communicator, logger: Logger, explains: bool) -> Self {
        let rules = Rules::new(table, communicator);
        if explains && rules.is_empty() {
            log(logger, Level::Info, &explain::no_rows(table, communicator));
        }
        let explained = explains.then(Explained::default);
        Self { communicator, logger, rules, explained }
    }

    /// Selects for a call, and changes NCCL's cost table accordingly.
    #[inline]
    pub fn select(&self, call: Call, costs: &mut CostTable<'_>) -> Option<Choice> {
        let decision = select::select(&self.rules, call, costs);
        if let Some(explained) = &self.explained
            && explained.is_first(call, decision)
        {
            let text = explain::decision(self.communicator, call, decision, costs);
            log(self.logger, Level::Info, &text);
        }
        match decision {
            Decision::Chosen(choice) => {
                costs.choose(choice);
                Some(choice)
            }
            Decision::Kept(_) => None,
        }
    }
}
