//! Peak memory of the GPU.

use std::time::{Duration, Instant};

use regatta_device::ops::{Device, MemoryUse};

use crate::metrics::GpuMemory;
use crate::run_clock;

/// Interval of samples. A query takes a lock of the driver, and steps may take a few milliseconds only.
const INTERVAL: Duration = Duration::from_secs(1);

/// The largest amount of memory in use since the start. Buffers are pooled, so that the end of a step
/// has the memory of its peak.
#[derive(Debug, Default)]
pub struct GpuMemoryPeak {
    last: Option<Instant>,
    peak: Option<GpuMemory>,
}

impl GpuMemoryPeak {
    /// The peak so far, with a new sample if the last one is old; `None` if the device is no GPU.
    pub fn sample(&mut self, device: &dyn Device) -> Option<GpuMemory> {
        if self.last.is_none_or(|last| run_clock::elapsed(last) >= INTERVAL) {
            self.last = Some(run_clock::now());
            if let Some(memory) = device.memory_use() {
                self.add(memory);
            }
        }
        self.peak
    }

    fn add(&mut self, MemoryUse { used, total }: MemoryUse) {
        let earlier = self.peak.map_or(0, |memory| memory.peak);
        self.peak = Some(GpuMemory { peak: earlier.max(used), total });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_does_not_decrease() {
        let mut peak = GpuMemoryPeak::default();
        for used in [3, 7, 5] {
            peak.add(MemoryUse { used, total: 9 });
        }
        assert_eq!(peak.peak, Some(GpuMemory { peak: 7, total: 9 }));
    }
}
