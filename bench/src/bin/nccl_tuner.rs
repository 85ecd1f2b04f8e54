//! `regatta bench --backend nccl` without and with the tuner plug-in and a table, alternating: the ratio
//! per size. Fails if the table makes a size slower beyond noise, or none faster.
//!
//! `nccl_tuner TABLE [ROUNDS] [-- OPTIONS]` measures the collectives of the table with these options of
//! `regatta bench`, such as `--ranks 4 -b 8 -e 32M -f 2 -n 50`. Ranks that share a GPU need
//! `--launch "--wrap 'env NCCL_HOSTID={rank}'"`, as they did when the table was measured. Uses the `regatta`
//! binary next to this program, and the plug-in that it contains.

use anyhow::{Context, Result, ensure};
use regatta_benchmarks::nccl_compare::{Comparison, arguments, install_plugins, print};
use regatta_nccl_tuning::{Function, Table};

fn main() -> Result<()> {
    let (table, rounds, options) = arguments("usage: nccl_tuner TABLE [ROUNDS] [-- OPTIONS]")?;
    let table = std::path::absolute(table)?;
    let text = std::fs::read_to_string(&table).with_context(|| table.display().to_string())?;
    let rows = text.parse::<Table>().with_context(|| table.display().to_string())?.rows;
    let is_used = |function: &Function| rows.iter().any(|row| row.function == *function);
    let functions: Vec<Function> = Function::ALL.into_iter().filter(is_used).collect();
    ensure!(
        !functions.is_empty(),
        "the table has no rows: NCCL's default was the fastest everywhere"
    );
    let folder = install_plugins()?;
    let plugin = folder.path().join("libnccl-tuner-regatta.so");
    let peer = vec![("NCCL_TUNER_PLUGIN", Some("none".into())), ("REGATTA_TUNER", None)];
    let own =
        vec![("NCCL_TUNER_PLUGIN", Some(plugin.into())), ("REGATTA_TUNER", Some(table.into()))];
    let compared = Comparison { functions, options, peer, own }.run(rounds)?;
    print(&compared, "default", "tuned");
    let slower = compared.iter().filter(|one| one.is_slower).count();
    ensure!(slower == 0, "the table is slower than NCCL's default at {slower} sizes");
    let is_useful = compared.iter().any(|one| one.is_faster);
    ensure!(is_useful, "the table is not faster than NCCL's default at any size");
    Ok(())
}
