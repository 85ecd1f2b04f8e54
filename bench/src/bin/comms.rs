//! The analysis of `regatta comms` on ten million events in eight files: seconds, events per second and the
//! largest resident set of the process, beside the time to read and checksum the same bytes.
//! `comms EVENTS` writes another number of events.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use regatta_benchmarks::{TempDir, number_argument, peak_resident_kb};
use regatta_events::file::{BlockEncoder, MAGIC, Record, read};
use regatta_events::operation::{
    Algorithm, ClockSync, Communicator, DataType, Network, Operation, OperationKind, Process,
    Protocol, Source, Timing,
};
use regatta_observe::comms::{Analysis, Attempts, Collector};

const RANKS: u32 = 8;
/// Arrivals kept in all files, as the command does.
const ARRIVALS: usize = 1 << 20;

fn main() -> Result<()> {
    let events: u64 = number_argument(1, 10_000_000)?;
    let folder = TempDir::new()?;
    let paths: Vec<PathBuf> =
        (0..RANKS).map(|rank| folder.path().join(format!("rank-{rank:05}.events"))).collect();
    let start = Instant::now();
    each_file(&paths, |rank, path| write_file(path, rank as u32, events / u64::from(RANKS)))?;
    let bytes: u64 = paths.iter().map(|path| Ok(path.metadata()?.len())).sum::<Result<u64>>()?;
    println!("wrote {events} events, {bytes} bytes in {:.2} s", start.elapsed().as_secs_f64());

    let start = Instant::now();
    each_file(&paths, |_, path| checksum(path))?;
    let peer = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let analysis = Mutex::new(Analysis::default());
    each_file(&paths, |_, path| {
        let mut collector = Collector::new(path.display().to_string(), ARRIVALS / paths.len());
        let end = read(File::open(path)?, |record| collector.add(record))?;
        let summary = collector.finish(Ok(end));
        analysis.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?.add(summary);
        Ok(())
    })?;
    let analysis = analysis.into_inner()?;
    let collected = start.elapsed().as_secs_f64();
    let report = analysis.report(&analysis.select(Attempts::Last));
    let all = start.elapsed().as_secs_f64();
    ensure!(report.summary.calls == events / u64::from(RANKS) * u64::from(RANKS));
    ensure!(report.warnings.is_empty(), "{:?}", report.warnings);
    println!(
        "analysed in {all:.2} s: {:.1} million events/s; {collected:.2} s to read, largest resident set {} kB",
        events as f64 / 1e6 / all,
        peak_resident_kb()?
    );
    println!(
        "{} sizes, {} collectives matched; reading and checksums alone: {peer:.2} s, {:.2} times as fast",
        report.histogram.len(),
        report.summary.matched_collectives,
        all / peer
    );
    Ok(())
}

/// Runs `work` on all files, on all cores.
fn each_file(paths: &[PathBuf], work: impl Fn(usize, &Path) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        let run = || -> Result<()> {
            loop {
                let position = next.fetch_add(1, Ordering::Relaxed);
                let Some(path) = paths.get(position) else { return Ok(()) };
                work(position, path)?;
            }
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        running.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    })
}

/// Writes the events of a training step again and again: gradients in buckets, parameters, activations.
fn write_file(path: &Path, rank: u32, events: u64) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&MAGIC)?;
    let mut block = BlockEncoder::default();
    block.push(&Record::Process(Process {
        source: Source::Nccl,
        rank: Some(rank),
        world_size: Some(RANKS),
        restart: 0,
        pid: 1000 + rank,
        host: format!("node{}", rank / 4),
        boot_id: format!("boot-{}", rank / 4),
    }));
    for (index, name) in [(1, "data-parallel"), (2, "tensor-parallel"), (3, "pipeline")] {
        let (id, name) = (u64::from(index) << 32, name.to_owned());
        block.push(&Record::Communicator(Communicator {
            index,
            id,
            name,
            ranks: RANKS,
            nodes: 2,
            rank,
        }));
    }
    let mut indices = [0; 4];
    let mut time = 1_000_000_000;
    for number in 0..events {
        if number.is_multiple_of(10_000) {
            let (host, device_ahead) = (time, Some(500_000));
            block.push(&Record::Clock(ClockSync { host, realtime: time + 7, device_ahead }));
        }
        let operation = operation(number, rank, &mut indices, &mut time);
        block.push(&Record::Operation(operation));
        if block.is_full() {
            file.write_all(&block.take_block())?;
        }
    }
    block.push(&Record::End);
    file.write_all(&block.take_block())?;
    Ok(file.flush()?)
}

fn operation(number: u64, rank: u32, indices: &mut [u64; 4], time: &mut u64) -> Operation {
    let (communicator, kind) = match number % 8 {
        0 | 4 => (1, OperationKind::AllReduce),
        1 => (1, OperationKind::ReduceScatter),
        2 | 6 => (2, OperationKind::AllGather),
        3 => (2, OperationKind::AllReduce),
        5 => (3, OperationKind::Send),
        _ => (3, OperationKind::Receive),
    };
    let index = indices[communicator as usize];
    indices[communicator as usize] += 1;
    let count = 1024 << (number / 8 % 12);
    let bytes = kind.message_bytes(count, 2, RANKS);
    // Ranks arrive within 20 µs.
    let late = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(rank * 5) % 20_000;
    *time += 60_000 + bytes / 100;
    let network = Network { start: *time, end: *time + 30_000, sent: bytes, ..Network::default() };
    Operation {
        communicator,
        index,
        sequence: index,
        kind,
        dtype: DataType::Bf16,
        algorithm: if bytes > 1 << 20 { Algorithm::Ring } else { Algorithm::Tree },
        protocol: if bytes > 1 << 20 { Protocol::Simple } else { Protocol::Ll128 },
        channels: 16,
        peer: kind.is_p2p().then_some((rank + 1) % RANKS),
        count,
        bytes,
        enqueued: *time - 5_000,
        timing: Timing::Device,
        start: *time + late + 500_000,
        end: *time + 25_000 + bytes / 200 + 500_000,
        network: number.is_multiple_of(2).then_some(network),
        captured: false,
        completed: true,
    }
}

/// Reads a file in chunks and computes their checksum.
fn checksum(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let mut chunk = vec![0; 1 << 20];
    let mut hash = crc32fast::Hasher::new();
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            length => hash.update(&chunk[..length]),
        }
    }
    std::hint::black_box(hash.finalize());
    Ok(())
}
