//! `regatta bench --backend nccl` without and with the tuner plug-in and a table, alternating: the ratio
//! per size. Fails if the table makes a size slower beyond noise, or none faster.
//!
//! `nccl_tuner TABLE [ROUNDS] [-- OPTIONS]` measures the collectives of the table with these options of
//! `regatta bench`, such as `--ranks 4 -b 8 -e 32M -f 2 -n 50`. Ranks that share a GPU need
//! `--launch "--wrap 'env NCCL_HOSTID={rank}'"`, as they did when the table was measured. Uses the `regatta`
//! binary next to this program, and the plug-in that it contains.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use regatta_benchmarks::{TempDir, regatta_binary, stdout_of};
use regatta_model::{BenchResult, document, units};
use regatta_nccl_tuning::fit::{MIN_ROUNDS, SizeFit, Timing, fit};
use regatta_nccl_tuning::{Algorithm, Choice, Function, Protocol, Table};

/// Stands for "with the tuner" in the fit, whatever the table chooses.
const TUNED: Choice =
    Choice { algorithm: Algorithm::Ring, protocol: Protocol::Simple, channels: 0 };

struct Sweep {
    regatta: PathBuf,
    plugin: PathBuf,
    table: PathBuf,
    functions: Vec<Function>,
    options: Vec<String>,
    folder: TempDir,
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let table = words.next().context("usage: nccl_tuner TABLE [ROUNDS] [-- OPTIONS]")?;
    let next = words.next();
    let rounds = match next.as_deref() {
        None | Some("--") => 5,
        Some(rounds) => rounds.parse().context("ROUNDS is not a number")?,
    };
    ensure!(rounds as usize >= MIN_ROUNDS, "at least {MIN_ROUNDS} rounds are needed");
    let options = words.filter(|word| word != "--").collect();
    let table = std::path::absolute(table)?;
    let text = std::fs::read_to_string(&table).with_context(|| table.display().to_string())?;
    let rows = text.parse::<Table>().with_context(|| table.display().to_string())?.rows;
    let is_used = |function: &Function| rows.iter().any(|row| row.function == *function);
    let functions: Vec<Function> = Function::ALL.into_iter().filter(is_used).collect();
    ensure!(
        !functions.is_empty(),
        "the table has no rows: NCCL's default was the fastest everywhere"
    );
    let regatta = regatta_binary()?;
    let folder = TempDir::new()?;
    stdout_of(Command::new(&regatta).args(["plugin", "install"]).arg(folder.path()))?;
    let plugin = folder.path().join("libnccl-tuner-regatta.so");
    Sweep { regatta, plugin, table, functions, options, folder }.run(rounds)
}

impl Sweep {
    fn run(&self, rounds: u32) -> Result<()> {
        let mut timings = Vec::new();
        for round in 0..rounds {
            eprintln!("round {} of {rounds}", round + 1);
            // The order alternates, too.
            let order = if round % 2 == 0 { [None, Some(TUNED)] } else { [Some(TUNED), None] };
            for choice in order {
                for function in &self.functions {
                    timings.extend(self.measure(*function, choice, round)?);
                }
            }
        }
        report(&timings)
    }

    /// Measures a collective once, with the tuner or without.
    fn measure(
        &self,
        function: Function,
        choice: Option<Choice>,
        round: u32,
    ) -> Result<Vec<Timing>> {
        let [run_dir, out] = ["run", "result.json"].map(|name| self.folder.path().join(name));
        let mut command = Command::new(&self.regatta);
        command.args(["bench", function.name(), "--backend", "nccl"]).args(&self.options);
        command.arg("--run-dir").arg(&run_dir).arg("-J").arg(&out);
        match choice {
            None => command.env("NCCL_TUNER_PLUGIN", "none").env_remove("REGATTA_TUNER"),
            Some(_) => {
                command.env("NCCL_TUNER_PLUGIN", &self.plugin).env("REGATTA_TUNER", &self.table)
            }
        };
        stdout_of(&mut command)?;
        let times = times(&out, function, choice, round);
        std::fs::remove_dir_all(&run_dir).context("cannot remove the run folder")?;
        times
    }
}

/// The times of a result: mean of out of place and in place.
fn times(
    out: &Path,
    function: Function,
    choice: Option<Choice>,
    round: u32,
) -> Result<Vec<Timing>> {
    let result: BenchResult = document::from_json(&std::fs::read_to_string(out)?)?;
    let rows = result.tables.iter().flat_map(|table| &table.rows);
    let timing = |row: &regatta_model::BenchRow| {
        let both = [&row.out_of_place, &row.in_place].into_iter().flatten();
        let times: Vec<f64> = both.filter_map(|one| one.time_us).collect();
        let time_us = times.iter().sum::<f64>() / times.len() as f64;
        Timing { function, bytes: row.size_bytes, choice, round, time_us }
    };
    Ok(rows.filter(|row| row.size_bytes > 0).map(timing).collect())
}

/// Prints the ratio of each size, and fails unless the table is of use.
fn report(timings: &[Timing]) -> Result<()> {
    // A size is slower if the default would be chosen over the table.
    let swap = |timing: &Timing| Timing {
        choice: if timing.choice.is_none() { Some(TUNED) } else { None },
        ..*timing
    };
    let swapped: Vec<Timing> = timings.iter().map(swap).collect();
    let (mut faster, mut slower) = (0, 0);
    println!(
        "{:>14}  {:>9}  {:>12}  {:>12}  {:>6}",
        "", "size", "default (us)", "tuned (us)", "ratio"
    );
    for (fit, against) in fit(timings).iter().zip(fit(&swapped)) {
        let SizeFit { function, bytes, default_us, .. } = *fit;
        let tuned_us = against.default_us;
        let note = match (fit.chosen, against.chosen) {
            (Some(_), _) => " faster",
            (_, Some(_)) => " slower",
            _ => "",
        };
        faster += usize::from(fit.chosen.is_some());
        slower += usize::from(against.chosen.is_some());
        let (size, ratio) = (units::format_bytes(bytes), default_us / tuned_us);
        println!(
            "{function:>14}  {size:>9}  {default_us:>12.2}  {tuned_us:>12.2}  {ratio:>6.3}{note}"
        );
    }
    println!("faster beyond noise: {faster} sizes, slower: {slower}");
    ensure!(slower == 0, "the table is slower than NCCL's default at {slower} sizes");
    ensure!(faster > 0, "the table is not faster than NCCL's default at any size");
    Ok(())
}
