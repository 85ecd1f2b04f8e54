//! `regatta net-log` on a log of a gigabyte, as 1,024 interleaved ranks would write it: seconds, and the
//! largest resident set of the process. `net_log MEGABYTES` reads a smaller one.

use std::fmt::Write;
use std::time::Instant;

use anyhow::{Result, ensure};
use regatta_benchmarks::{number_argument, peak_resident_kb};
use regatta_observe::net_log::{NetLog, report};

const RANKS: u32 = 1024;
const RANKS_PER_NODE: u32 = 8;
/// Size of the chunks that the command reads.
const CHUNK: usize = 1 << 20;

fn main() -> Result<()> {
    let megabytes: usize = number_argument(1, 1000)?;
    let block = block();
    let mut log = NetLog::default();
    let source = log.add_source("log", None);
    let blocks = (megabytes * 1_000_000).div_ceil(block.len());
    let start = Instant::now();
    for chunk in (0..blocks).flat_map(|_| block.as_bytes().chunks(CHUNK)) {
        log.read(source, chunk);
    }
    log.finish(source);
    let read = start.elapsed();
    let report = report::report(&log, None);
    let all = start.elapsed();
    ensure!(report.ranks.len() == RANKS as usize, "{} ranks found", report.ranks.len());
    let bytes = blocks * block.len();
    println!("{} lines, {bytes} bytes: {}", report.counts.lines, report.verdict);
    println!(
        "read {:.2} s ({:.0} MB/s), report {:.3} s, largest resident set {} kB",
        read.as_secs_f64(),
        bytes as f64 / 1e6 / read.as_secs_f64(),
        (all - read).as_secs_f64(),
        peak_resident_kb()?
    );
    Ok(())
}

/// Records of all ranks, line by line in turn.
fn block() -> String {
    let mut text = String::new();
    for channel in 0..16 {
        for rank in 0..RANKS {
            let (node, device, next) =
                (rank / RANKS_PER_NODE, rank % RANKS_PER_NODE, (rank + 1) % RANKS);
            let pid = 10_000 + rank;
            let header = format!("{rank:>4}: nid{node:06}:{pid}:{} [{device}] NCCL INFO ", pid + 7);
            let via = match device == RANKS_PER_NODE - 1 {
                true => "[send] via NET/AWS Libfabric/3/GDRDMA comm 0x7ffbec000d70 nRanks 1024",
                false => "via P2P/IPC comm 0x7ffbec000d70 nRanks 1024",
            };
            let _ = writeln!(
                text,
                "{header}Channel {channel:02}/0 : {rank}[c1000] -> {next}[c9000] {via}"
            );
            if channel % 8 == 0 {
                let _ =
                    writeln!(text, "{header}Trees [0] 1/-1/-1->{rank}->-1 [1] 1/-1/-1->{rank}->-1");
                let _ = writeln!(text, "{rank:>4}: step {channel} loss 2.3456 tokens/s 123456");
            }
        }
    }
    text
}
