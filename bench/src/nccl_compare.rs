//! `regatta bench --backend nccl` in two environments, alternating: whether one is faster per size, beyond
//! noise.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use regatta_model::{BenchResult, document, units};
use regatta_nccl_tuning::fit::{MIN_ROUNDS, SizeFit, Timing, fit};
use regatta_nccl_tuning::{Algorithm, Choice, Function, Protocol};

use crate::{TempDir, regatta_binary, stdout_of};

/// Stands for the second environment in the fit, whatever it chooses.
const SECOND: Choice =
    Choice { algorithm: Algorithm::Ring, protocol: Protocol::Simple, channels: 0 };

/// Variables of an environment; without a value they are removed.
pub type Environment = Vec<(&'static str, Option<OsString>)>;

/// Two environments to compare.
pub struct Comparison {
    /// Collectives.
    pub functions: Vec<Function>,
    /// Options of `regatta bench`.
    pub options: Vec<String>,
    /// The environment to compare with.
    pub peer: Environment,
    /// The environment under test.
    pub own: Environment,
}

/// What a size takes in both.
pub struct Compared {
    /// The collective.
    pub function: Function,
    /// The size.
    pub bytes: u64,
    /// Microseconds of the peer.
    pub peer_us: f64,
    /// Microseconds of the environment under test.
    pub own_us: f64,
    /// Whether it is faster, beyond noise.
    pub is_faster: bool,
    /// Whether it is slower, beyond noise.
    pub is_slower: bool,
}

/// The words of a command line: `FIRST [ROUNDS] [-- OPTIONS]`.
pub fn arguments(usage: &'static str) -> Result<(String, u32, Vec<String>)> {
    let mut words = std::env::args().skip(1);
    let first = words.next().context(usage)?;
    let next = words.next();
    let rounds = match next.as_deref() {
        None | Some("--") => 5,
        Some(rounds) => rounds.parse().context("ROUNDS is not a number")?,
    };
    ensure!(rounds as usize >= MIN_ROUNDS, "at least {MIN_ROUNDS} rounds are needed");
    Ok((first, rounds, words.filter(|word| word != "--").collect()))
}

/// Installs the plug-ins that the `regatta` binary contains.
pub fn install_plugins() -> Result<TempDir> {
    let folder = TempDir::new()?;
    stdout_of(Command::new(regatta_binary()?).args(["plugin", "install"]).arg(folder.path()))?;
    Ok(folder)
}

impl Comparison {
    /// Measures both environments in turn, in alternating order.
    pub fn run(&self, rounds: u32) -> Result<Vec<Compared>> {
        let (regatta, folder) = (regatta_binary()?, TempDir::new()?);
        let mut timings = Vec::new();
        for round in 0..rounds {
            eprintln!("round {} of {rounds}", round + 1);
            let order = if round % 2 == 0 { [None, Some(SECOND)] } else { [Some(SECOND), None] };
            for choice in order {
                for function in &self.functions {
                    let measured = self.measure(&regatta, folder.path(), *function, choice);
                    let timing = |(bytes, time_us)| Timing {
                        function: *function,
                        bytes,
                        choice,
                        round,
                        time_us,
                    };
                    timings.extend(measured?.into_iter().map(timing));
                }
            }
        }
        Ok(compare(&timings))
    }

    /// Measures a collective once. Returns sizes and microseconds.
    fn measure(
        &self,
        regatta: &PathBuf,
        folder: &Path,
        function: Function,
        choice: Option<Choice>,
    ) -> Result<Vec<(u64, f64)>> {
        let [run_dir, out] = ["run", "times.json"].map(|name| folder.join(name));
        let mut command = Command::new(regatta);
        command.args(["bench", function.name(), "--backend", "nccl"]).args(&self.options);
        command.arg("--run-dir").arg(&run_dir).arg("-J").arg(&out);
        for (name, value) in if choice.is_none() { &self.peer } else { &self.own } {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        stdout_of(&mut command)?;
        let times = times(&out);
        std::fs::remove_dir_all(&run_dir).context("cannot remove the run folder")?;
        times
    }
}

/// The times of a result: mean of out of place and in place.
fn times(out: &Path) -> Result<Vec<(u64, f64)>> {
    let result: BenchResult = document::from_json(&std::fs::read_to_string(out)?)?;
    let rows = result.tables.iter().flat_map(|table| &table.rows);
    let timing = |row: &regatta_model::BenchRow| {
        let both = [&row.out_of_place, &row.in_place].into_iter().flatten();
        let times: Vec<f64> = both.filter_map(|one| one.time_us).collect();
        (row.size_bytes, times.iter().sum::<f64>() / times.len() as f64)
    };
    Ok(rows.filter(|row| row.size_bytes > 0).map(timing).collect())
}

fn compare(timings: &[Timing]) -> Vec<Compared> {
    // A size is slower if the peer would be chosen over it.
    let swap = |timing: &Timing| Timing {
        choice: if timing.choice.is_none() { Some(SECOND) } else { None },
        ..*timing
    };
    let swapped: Vec<Timing> = timings.iter().map(swap).collect();
    let both = fit(timings).into_iter().zip(fit(&swapped));
    let compared = |(one, other): (SizeFit, SizeFit)| Compared {
        function: one.function,
        bytes: one.bytes,
        peer_us: one.default_us,
        own_us: other.default_us,
        is_faster: one.chosen.is_some(),
        is_slower: other.chosen.is_some(),
    };
    both.map(compared).collect()
}

/// Prints the ratio of each size.
pub fn print(compared: &[Compared], peer: &str, own: &str) {
    let [peer, own] = [peer, own].map(|name| format!("{name} (us)"));
    println!("{:>14}  {:>9}  {peer:>14}  {own:>14}  {:>6}", "", "size", "ratio");
    for one in compared {
        let note = match (one.is_faster, one.is_slower) {
            (true, _) => " faster",
            (_, true) => " slower",
            _ => "",
        };
        let (size, ratio) = (units::format_bytes(one.bytes), one.peer_us / one.own_us);
        let (function, peer_us, own_us) = (one.function, one.peer_us, one.own_us);
        println!("{function:>14}  {size:>9}  {peer_us:>14.2}  {own_us:>14.2}  {ratio:>6.3}{note}");
    }
    let faster = compared.iter().filter(|one| one.is_faster).count();
    let slower = compared.iter().filter(|one| one.is_slower).count();
    println!("faster beyond noise: {faster} sizes, slower: {slower}");
}
