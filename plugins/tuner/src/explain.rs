//! What the plug-in says in NCCL's log.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use regatta_nccl_tuning::select::{Call, CostTable, Decision, Reason};
use regatta_nccl_tuning::{Algorithm, Communicator, Function, Protocol, Table};

use crate::session::TABLE_VARIABLE;

/// The start of all messages.
const PREFIX: &str = "TUNER/Regatta:";
/// Kinds of decisions.
const KINDS: usize = 5;
/// Sizes with the same number of significant bits, 0 to 64, are explained once.
const SIZES: usize = u64::BITS as usize + 1;
const WORDS: usize = (Function::ALL.len() * SIZES * KINDS).div_ceil(u64::BITS as usize);

/// Which decisions have been explained, a bit each.
#[derive(Debug)]
pub struct Explained([AtomicU64; WORDS]);

impl Default for Explained {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }
}

impl Explained {
    /// Whether such a decision is the first.
    pub fn is_first(&self, call: Call, decision: Decision) -> bool {
        let kind = match decision {
            Decision::Chosen(_) => 0,
            Decision::Kept(Reason::NoRow) => 1,
            Decision::Kept(Reason::Aggregated) => 2,
            Decision::Kept(Reason::Unavailable(_)) => 3,
            Decision::Kept(Reason::Relegated(_)) => 4,
        };
        let size = (u64::BITS - call.bytes.leading_zeros()) as usize;
        let bit = (call.function as usize * SIZES + size) * KINDS + kind;
        let Some(word) = self.0.get(bit / u64::BITS as usize) else { return false };
        let mask = 1 << (bit % u64::BITS as usize);
        word.load(Ordering::Relaxed) & mask == 0
            && word.fetch_or(mask, Ordering::Relaxed) & mask == 0
    }
}

/// A table was read.
pub fn loaded(path: &Path, table: &Table) -> String {
    let (path, rows, digest) = (path.display(), table.rows.len(), table.digest());
    let unit = if rows == 1 { "row" } else { "rows" };
    format!("{PREFIX} {path}: {rows} {unit}, digest {digest:016x}")
}

/// A table could not be read.
pub fn not_loaded(path: &Path, problem: &str) -> String {
    let path = path.display();
    format!(
        "{PREFIX} {TABLE_VARIABLE}={path}: {problem}; NCCL's own choices stand on this rank: give all \
         ranks the same table, or unset {TABLE_VARIABLE}"
    )
}

/// A table has no rows for a communicator.
pub fn no_rows(table: &Table, Communicator { ranks, nodes }: Communicator) -> String {
    let has: Vec<String> = table.communicators().iter().map(ToString::to_string).collect();
    let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
    format!(
        "{PREFIX} ranks={ranks} nodes={nodes}: NCCL's own choices stand; the table has rows for: {has}"
    )
}

/// A decision.
pub fn decision(
    communicator: Communicator,
    call: Call,
    decision: Decision,
    costs: &CostTable<'_>,
) -> String {
    let own = costs.lowest().map_or_else(|| "none".to_owned(), names);
    let what = match decision {
        Decision::Chosen(choice) => {
            format!("{choice}, measured to be faster than NCCL's default; NCCL would choose {own}")
        }
        Decision::Kept(reason) => {
            let why = match reason {
                Reason::NoRow => "the table has no row for this size".to_owned(),
                Reason::Aggregated => "the table is not for grouped operations".to_owned(),
                Reason::Unavailable(choice) => format!("{choice} is not available"),
                Reason::Relegated(choice) => format!("NCCL avoids {choice} for this call"),
            };
            format!("NCCL's own choice, {own}, stands: {why}")
        }
    };
    format!("{PREFIX} {} of {} bytes, {communicator}: {what}", call.function, call.bytes)
}

/// An algorithm and a protocol by their numbers, which newer versions of NCCL may add to.
fn names((algorithm, protocol): (usize, usize)) -> String {
    let number = |number: usize| i32::try_from(number).unwrap_or(-1);
    let algorithm_name = Algorithm::from_number(number(algorithm)).map(Algorithm::name);
    let protocol_name = Protocol::from_number(number(protocol)).map(Protocol::name);
    match (algorithm_name, protocol_name) {
        (Some(algorithm), Some(protocol)) => format!("{algorithm} {protocol}"),
        _ => format!("algorithm {algorithm}, protocol {protocol}"),
    }
}
