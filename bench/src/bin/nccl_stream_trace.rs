//! A collective between a chain of copies on one stream and a copy on another, without host
//! synchronisation, as a Chrome trace (chrome://tracing, <https://ui.perfetto.dev>).
//!
//! `nccl_stream_trace TRACE.json [RANKS]`; the ranks share one GPU. Fails if the host returned from
//! enqueueing after the chain had ended, or if the collective overlaps what it depends on.

use std::ffi::c_void;
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use regatta_comm::bootstrap::{self, BootstrapConfig, listen};
use regatta_comm::gpu_runtime::{MEMCPY_DEFAULT, RawEvent, Runtime, STREAM_NON_BLOCKING, Stream};
use regatta_comm::nccl::{self, Gpu, NcclConfig, Vendor};
use regatta_comm::{Buffer, Comm, DType, Event, OwnedCall, ReduceOp};
use regatta_wire::secret::Secret;
use serde_json::{Value, json};

/// Environment of a rank: rank, number of ranks, port and secret.
const RANK: &str = "NCCL_STREAM_TRACE_RANK";

const CHAIN_BYTES: usize = 1 << 30;
const CHAIN_COPIES: usize = 700;
const BYTES: usize = 64 << 20;

fn main() -> Result<()> {
    if let Ok(rank) = std::env::var(RANK) {
        return run_rank(&rank);
    }
    let mut args = std::env::args().skip(1);
    let path = args.next().context("usage: nccl_stream_trace TRACE.json [RANKS]")?;
    let ranks: u32 = args.next().map_or(Ok(2), |text| text.parse())?;
    let secret = Secret::generate()?.to_hex();
    let port = listen("127.0.0.1:0".parse()?)?.local_addr()?.port();
    let spawn = |rank: u32| {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(RANK, format!("{rank} {ranks} {port} {secret}")).stdout(Stdio::piped());
        command.env("NCCL_HOSTID", format!("host{rank}")).env("NCCL_SOCKET_IFNAME", "lo");
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
        Ok(command.spawn()?)
    };
    let children = (0..ranks).map(spawn).collect::<Result<Vec<_>>>()?;
    let mut events = Vec::new();
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "rank {rank} failed");
        let text = String::from_utf8(output.stdout)?;
        let line = text.lines().find_map(|line| line.strip_prefix("trace ")).context("no trace")?;
        events.extend(serde_json::from_str::<Vec<Value>>(line)?);
    }
    std::fs::write(&path, serde_json::to_string(&json!({ "traceEvents": events }))?)?;
    println!("{path}: {} events of {ranks} ranks", events.len());
    Ok(())
}

/// A GPU with timed events.
struct TracedGpu {
    runtime: Runtime,
    /// The event and the host time that the trace starts at.
    start: (RawEvent, Instant),
}

impl TracedGpu {
    fn open() -> Result<Self> {
        let runtime = Runtime::open(Vendor::Nvidia)?;
        let mut gpu = Self { runtime, start: (null_mut(), Instant::now()) };
        let stream = gpu.stream()?;
        let event = gpu.record(stream)?;
        // SAFETY: the stream is valid.
        gpu.check(unsafe { (gpu.runtime.stream_synchronize)(stream) })?;
        gpu.start = (event, Instant::now());
        Ok(gpu)
    }

    fn check(&self, code: i32) -> Result<()> {
        ensure!(code == 0, "GPU runtime: {}", self.runtime.error_string(code));
        Ok(())
    }

    fn stream(&self) -> Result<Stream> {
        let mut stream = null_mut();
        let create = self.runtime.stream_create_with_priority;
        // SAFETY: the function writes one pointer.
        self.check(unsafe { create(&mut stream, STREAM_NON_BLOCKING, 0) })?;
        Ok(stream)
    }

    /// Records a timed event.
    fn record(&self, stream: Stream) -> Result<RawEvent> {
        let mut event = null_mut();
        // SAFETY: the function writes one pointer, and the stream is valid.
        self.check(unsafe { (self.runtime.event_create_with_flags)(&mut event, 0) })?;
        // SAFETY: both are valid.
        self.check(unsafe { (self.runtime.event_record)(event, stream) })?;
        Ok(event)
    }

    /// Records a timed event after an event of the communicator, on a stream of its own.
    fn record_after(&self, event: &Event) -> Result<RawEvent> {
        let stream = self.stream()?;
        // SAFETY: the stream is valid.
        unsafe { event.wait_on_stream(stream) }?;
        self.record(stream)
    }

    fn copy(&self, stream: Stream, to: &Buffer, from: &Buffer) -> Result<()> {
        let address = |buffer: &Buffer| buffer.address().as_ptr().cast::<c_void>();
        let (memcpy, bytes) = (self.runtime.memcpy_async, to.len());
        // SAFETY: both buffers live until the end of the trace.
        self.check(unsafe { memcpy(address(to), address(from), bytes, MEMCPY_DEFAULT, stream) })
    }

    /// Microseconds between the start of the trace and a completed event.
    fn time(&self, event: RawEvent) -> Result<f64> {
        let mut ms = 0.0;
        // SAFETY: both events are valid.
        self.check(unsafe { (self.runtime.event_elapsed_time)(&mut ms, self.start.0, event) })?;
        Ok(f64::from(ms) * 1e3)
    }

    /// Microseconds between the start of the trace and now, on the host.
    fn now(&self) -> f64 {
        self.start.1.elapsed().as_secs_f64() * 1e6
    }
}

fn run_rank(environment: &str) -> Result<()> {
    let words: Vec<&str> = environment.split(' ').collect();
    let [rank, ranks, port, secret] = words[..] else { bail!("{RANK} is incomplete") };
    let (rank, secret) = (rank.parse()?, Secret::from_hex(secret)?);
    let config = BootstrapConfig::new(rank, ranks.parse()?, "127.0.0.1", port.parse()?, secret);
    let bootstrap = bootstrap::join(config)?;
    let comm: Arc<dyn Comm> = Arc::new(nccl::init(
        Box::new(bootstrap),
        NcclConfig {
            vendor: Vendor::Nvidia,
            device: 0,
            desync_after: Duration::from_secs(60),
            debug: false,
            blocking: false,
        },
    )?);
    println!("trace {}", serde_json::to_string(&trace(comm.as_ref())?)?);
    Ok(())
}

/// Spans of a trace: name, row, start and end in microseconds.
type Span = (&'static str, &'static str, f64, f64);

fn trace(comm: &dyn Comm) -> Result<Vec<Value>> {
    let memory = Gpu::open(Vendor::Nvidia, 0)?;
    let buffer = |bytes| memory.buffer(bytes);
    let chain = (buffer(CHAIN_BYTES)?, buffer(CHAIN_BYTES)?);
    let (ones, result, arena) = (buffer(BYTES)?, buffer(BYTES)?, buffer(2 * BYTES)?);
    let shard = || arena.device_range(BYTES..2 * BYTES);
    let sum = || Ok::<_, anyhow::Error>(OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, shard()?));
    // The first call connects the ranks.
    comm.start(sum()?).wait()?;
    let gpu = TracedGpu::open()?;
    let (producer, consumer) = (gpu.stream()?, gpu.stream()?);
    let host_0 = gpu.now();
    let chain_start = gpu.record(producer)?;
    for _ in 0..CHAIN_COPIES {
        gpu.copy(producer, &chain.0, &chain.1)?;
    }
    gpu.copy(producer, &shard()?, &ones)?;
    let chain_end = gpu.record(producer)?;
    // SAFETY: the stream is valid.
    let ready = unsafe { memory.record(producer) }?;
    let host_1 = gpu.now();
    let dependency = comm.enqueue(Vec::new(), std::slice::from_ref(&ready)).event();
    let reduced = comm.enqueue(vec![sum()?], std::slice::from_ref(&ready)).event();
    let host_2 = gpu.now();
    let is_running = !ready.is_complete()?;
    let (reduce_start, reduce_end) = (gpu.record_after(&dependency)?, gpu.record_after(&reduced)?);
    // SAFETY: the stream is valid.
    unsafe { reduced.wait_on_stream(consumer) }?;
    let copy_start = gpu.record(consumer)?;
    gpu.copy(consumer, &result, &shard()?)?;
    let copy_end = gpu.record(consumer)?;
    // SAFETY: the stream is valid.
    let copied = unsafe { memory.record(consumer) }?;
    let host_3 = gpu.now();
    copied.wait()?;
    let host_4 = gpu.now();
    let spans: [Span; 7] = [
        ("enqueue copy chain", "host", host_0, host_1),
        ("enqueue all-reduce", "host", host_1, host_2),
        ("enqueue copy of the result", "host", host_2, host_3),
        ("wait for the last event", "host", host_3, host_4),
        ("copy chain", "stream A", gpu.time(chain_start)?, gpu.time(chain_end)?),
        ("all-reduce", "communicator", gpu.time(reduce_start)?, gpu.time(reduce_end)?),
        ("copy of the result", "stream B", gpu.time(copy_start)?, gpu.time(copy_end)?),
    ];
    for (name, row, start, end) in spans {
        eprintln!("rank {}: {row:>12} {start:>10.0} to {end:>10.0} us: {name}", comm.rank());
    }
    ensure!(is_running, "the host waited for the device, or the chain is too short");
    let [.., chain, reduce, copy] = spans;
    ensure!(host_3 < chain.3, "the host enqueued the last copy after the chain had ended");
    ensure!(chain.3 <= reduce.2 && reduce.2 <= copy.2, "the streams did not wait for each other");
    Ok(chrome_events(comm.rank(), &spans))
}

/// A rank is a process of the trace, and a stream a thread.
fn chrome_events(rank: u32, spans: &[Span]) -> Vec<Value> {
    let event = |(row, (name, stream, start, end)): (usize, &Span)| {
        let row = spans.iter().position(|span| span.1 == *stream).unwrap_or(row);
        let args = json!({ "name": stream });
        [
            json!({ "name": "thread_name", "ph": "M", "pid": rank, "tid": row, "args": args }),
            json!({ "name": name, "ph": "X", "ts": start, "dur": end - start, "pid": rank, "tid": row }),
        ]
    };
    spans.iter().enumerate().flat_map(event).collect()
}
