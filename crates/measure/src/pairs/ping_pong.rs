//! Measures one pair: ping-pong latency, and bandwidth in both directions.
//!
//! The sender announces each burst, so that a single clock is used and both ranks know when to
//! stop.

use std::time::{Duration, Instant};

use regatta_comm::{Call, CallKind, Collectives, Comm, CommError, Counts, DType};

use super::burst::{self, Burst, BurstOptions, SentBurst};
use crate::CommResult;

/// Measurements of this rank; those of the peer are absent.
pub(super) struct PairMeasurement {
    /// Bandwidth to the peer in GB/s.
    pub bandwidth: Option<f64>,
    /// Half the round-trip times.
    pub latencies_us: Vec<f64>,
}

/// One rank of a pair.
pub(super) struct PairWorker<'a> {
    comm: &'a dyn Comm,
    options: &'a BurstOptions,
    memory: Vec<u8>,
}

impl<'a> PairWorker<'a> {
    pub fn new(comm: &'a dyn Comm, options: &'a BurstOptions) -> Self {
        Self { comm, options, memory: Vec::new() }
    }

    /// Measures a pair; the initiator starts.
    pub fn measure_pair(&mut self, peer: u32, is_initiator: bool) -> CommResult<PairMeasurement> {
        if !is_initiator {
            let back = self.pong(peer)?;
            self.recv_bursts(peer)?;
            let bandwidth = self.send_bursts(peer, back)?;
            return Ok(PairMeasurement { bandwidth, latencies_us: Vec::new() });
        }
        let latencies_us = self.ping(peer)?;
        // The acknowledgement's latency is not part of the burst.
        let back = latencies_us.iter().copied().fold(f64::INFINITY, f64::min);
        let bandwidth = self.send_bursts(peer, back)?;
        self.recv_bursts(peer)?;
        Ok(PairMeasurement { bandwidth, latencies_us })
    }

    /// Half the round-trip times in µs. The last ping carries a flag.
    fn ping(&mut self, peer: u32) -> CommResult<Vec<f64>> {
        let start = Instant::now();
        let mut latencies = Vec::new();
        loop {
            let enough = latencies.len() + 1 >= self.options.ping_pongs as usize;
            let last = enough || start.elapsed() >= self.options.time_limit;
            let sent = Instant::now();
            self.comm.send(&[i64::from(last)], peer, 0)?;
            self.comm.receive(&mut [0i64], peer, 0)?;
            latencies.push(sent.elapsed().as_secs_f64() * 1e6 / 2.0);
            if last {
                break;
            }
        }
        // The first ping opens the connection.
        if latencies.len() > 1 {
            latencies.remove(0);
        }
        let min = latencies.iter().copied().fold(f64::INFINITY, f64::min);
        self.comm.send(&[min], peer, 0)?;
        Ok(latencies)
    }

    /// Answers pings until the last; returns the peer's minimum latency.
    fn pong(&mut self, peer: u32) -> CommResult<f64> {
        let mut last = [0i64];
        while last == [0] {
            self.comm.receive(&mut last, peer, 0)?;
            self.comm.send(&last, peer, 0)?;
        }
        let mut min = [0f64];
        self.comm.receive(&mut min, peer, 0)?;
        Ok(min[0])
    }

    /// Sends bursts; returns the bandwidth in GB/s.
    fn send_bursts(&mut self, peer: u32, back_us: f64) -> CommResult<Option<f64>> {
        let start = Instant::now();
        let back = Duration::try_from_secs_f64(back_us / 1e6).unwrap_or_default();
        let mut sent = Vec::new();
        while let Some(burst) = self.options.next_burst(&sent, start.elapsed()) {
            self.comm.send(&[burst.bytes as i64, i64::from(burst.window)], peer, 0)?;
            let start_of_burst = Instant::now();
            self.burst(CallKind::Send, burst, peer)?;
            self.comm.receive(&mut [0u8], peer, 0)?;
            let elapsed = start_of_burst.elapsed();
            let took = elapsed.saturating_sub(back).max(elapsed / 2);
            sent.push(SentBurst { burst, took });
        }
        self.comm.send(&[0i64, 0], peer, 0)?;
        Ok(burst::bandwidth(&sent))
    }

    /// Receives the peer's bursts.
    fn recv_bursts(&mut self, peer: u32) -> CommResult {
        loop {
            let mut order = [0i64; 2];
            self.comm.receive(&mut order, peer, 0)?;
            let burst = match order {
                [_, 0] => return Ok(()),
                [bytes, window] => self.checked_burst(bytes, window, peer)?,
            };
            self.burst(CallKind::Receive, burst, peer)?;
            self.comm.send(&[0u8], peer, 0)?;
        }
    }

    /// Validates an announced burst against the agreed options.
    fn checked_burst(&self, bytes: i64, window: i64, peer: u32) -> CommResult<Burst> {
        if let (Ok(bytes), Ok(window)) = (u64::try_from(bytes), u32::try_from(window))
            && bytes <= self.options.bytes.max(1)
            && window <= self.options.window.max(1)
        {
            return Ok(Burst { bytes, window });
        }
        Err(CommError::System {
            what: format!("pairwise measurement with {}", self.comm.peer(peer)),
            why: format!(
                "received a burst of {window} messages of {bytes} bytes, larger than configured; pass \
                 the same options to all ranks"
            ),
        })
    }

    /// Posts all messages of a burst as one group.
    fn burst(&mut self, kind: CallKind, burst: Burst, peer: u32) -> CommResult {
        let bytes = burst.bytes as usize;
        let total = bytes * burst.window as usize;
        if self.memory.len() < total {
            self.memory.resize(total, 1);
        }
        let messages = self.memory[..total].chunks_mut(bytes.max(1)).zip(0..);
        let call = |(buffer, tag)| message(kind, buffer, peer, tag);
        self.comm.run_group(messages.map(call).collect())
    }
}

fn message(kind: CallKind, buffer: &mut [u8], peer: u32, tag: u32) -> Call<'_> {
    let counts = Counts::Equal(buffer.len());
    let (input, output): (Option<&[u8]>, &mut [u8]) = match kind {
        CallKind::Send => (Some(buffer), &mut []),
        _ => (None, buffer),
    };
    Call { root: peer, tag, input, ..Call::new(kind, DType::U8, counts, output) }
}
