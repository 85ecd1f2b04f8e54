//! One rank at work: what it does with another while they are measured.
//!
//! Of a pair, the one that sends leads: every burst is told before it comes, so that only one clock
//! counts and both know when it is enough.

use std::time::{Duration, Instant};

use regatta_comm::{Call, Collectives, Comm, CommError, Counts, DType, Kind, ReduceOp};

use super::effort::{self, Burst, Effort, Sent};

/// What a rank measured of one other; what the other has measured is absent.
pub(super) struct Measured {
    /// To the other, in GB/s.
    pub bandwidth: Option<f64>,
    /// Half of there and back, each time.
    pub latencies_us: Vec<f64>,
}

/// One rank at work.
pub(super) struct Worker<'a> {
    comm: &'a dyn Comm,
    effort: &'a Effort,
    memory: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub fn new(comm: &'a dyn Comm, effort: &'a Effort) -> Self {
        Self { comm, effort, memory: Vec::new() }
    }

    /// Measures a pair; the one that `leads` asks first.
    pub fn pair(&mut self, other: u32, leads: bool) -> Result<Measured, CommError> {
        let mut measured = Measured { bandwidth: None, latencies_us: Vec::new() };
        if leads {
            measured.latencies_us = self.ping(other)?;
            // The way back is not of the burst.
            let back = measured.latencies_us.iter().copied().fold(f64::INFINITY, f64::min);
            measured.bandwidth = self.send_bursts(other, back)?;
            self.receive_bursts(other)?;
        } else {
            let latencies = self.pong(other)?;
            self.receive_bursts(other)?;
            measured.bandwidth = self.send_bursts(other, latencies)?;
        }
        Ok(measured)
    }

    /// Half the times there and back, in microseconds. The last ping says so.
    fn ping(&mut self, other: u32) -> Result<Vec<f64>, CommError> {
        let start = Instant::now();
        let mut halves = Vec::new();
        loop {
            let enough = halves.len() + 1 >= self.effort.pings as usize;
            let last = enough || start.elapsed() >= self.effort.limit;
            let sent = Instant::now();
            self.comm.send(&[i64::from(last)], other, 0)?;
            self.comm.receive(&mut [0i64], other, 0)?;
            halves.push(sent.elapsed().as_secs_f64() * 1e6 / 2.0);
            if last {
                break;
            }
        }
        // The first opens connections.
        if halves.len() > 1 {
            halves.remove(0);
        }
        let least = halves.iter().copied().fold(f64::INFINITY, f64::min);
        self.comm.send(&[least], other, 0)?;
        Ok(halves)
    }

    /// Answers pings until the last; what is given back is the least time that the other measured.
    fn pong(&mut self, other: u32) -> Result<f64, CommError> {
        let mut last = [0i64];
        while last == [0] {
            self.comm.receive(&mut last, other, 0)?;
            self.comm.send(&last, other, 0)?;
        }
        let mut least = [0f64];
        self.comm.receive(&mut least, other, 0)?;
        Ok(least[0])
    }

    /// Sends bursts until it is enough; what is given back is the bandwidth in GB/s.
    fn send_bursts(&mut self, other: u32, back_us: f64) -> Result<Option<f64>, CommError> {
        let start = Instant::now();
        let back = Duration::try_from_secs_f64(back_us / 1e6).unwrap_or_default();
        let mut sent = Vec::new();
        while let Some(burst) = self.effort.next(&sent, start.elapsed()) {
            self.comm.send(&[burst.bytes as i64, i64::from(burst.messages)], other, 0)?;
            let begun = Instant::now();
            self.burst(Kind::Send, burst, other)?;
            self.comm.receive(&mut [0u8], other, 0)?;
            let whole = begun.elapsed();
            let took = whole.saturating_sub(back).max(whole / 2);
            sent.push(Sent { burst, took });
        }
        self.comm.send(&[0i64, 0], other, 0)?;
        Ok(effort::bandwidth(&sent))
    }

    /// Receives bursts until the other has enough.
    fn receive_bursts(&mut self, other: u32) -> Result<(), CommError> {
        loop {
            let mut order = [0i64; 2];
            self.comm.receive(&mut order, other, 0)?;
            let burst = match order {
                [_, 0] => return Ok(()),
                [bytes, messages] => self.fitting(bytes, messages, other)?,
            };
            self.burst(Kind::Receive, burst, other)?;
            self.comm.send(&[0u8], other, 0)?;
        }
    }

    /// The burst that the other has told, which is never larger than the effort that all agree on.
    fn fitting(&self, bytes: i64, messages: i64, other: u32) -> Result<Burst, CommError> {
        if let (Ok(bytes), Ok(messages)) = (u64::try_from(bytes), u32::try_from(messages))
            && bytes <= self.effort.bytes.max(1)
            && messages <= self.effort.messages.max(1)
        {
            return Ok(Burst { bytes, messages });
        }
        Err(CommError::System {
            what: format!("measuring with {}", self.comm.peer(other)),
            why: format!(
                "it sends {messages} messages of {bytes} bytes, more than was asked for here; give \
                 all ranks the same options"
            ),
        })
    }

    /// All messages of a burst at once.
    fn burst(&mut self, kind: Kind, burst: Burst, other: u32) -> Result<(), CommError> {
        let bytes = burst.bytes as usize;
        let room = bytes * burst.messages as usize;
        if self.memory.len() < room {
            self.memory.resize(room, 1);
        }
        let parts = self.memory[..room].chunks_mut(bytes.max(1)).zip(0..);
        let call = |(part, tag)| message(kind, part, other, tag);
        self.comm.run_group(parts.map(call).collect())
    }
}

fn message(kind: Kind, part: &mut [u8], other: u32, tag: u32) -> Call<'_> {
    let (dtype, op, counts) = (DType::U8, ReduceOp::Sum, Counts::Equal(part.len()));
    let (input, output): (Option<&[u8]>, &mut [u8]) = match kind {
        Kind::Send => (Some(part), &mut []),
        _ => (None, part),
    };
    Call { kind, dtype, op, root: other, tag, counts, input, output }
}
