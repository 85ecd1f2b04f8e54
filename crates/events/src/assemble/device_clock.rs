//! How far the device clock is ahead of the host clock.

/// Estimates the difference of the clocks. The host sees each device time with a delay, so the largest
/// difference `device - host` of many events is the closest.
#[derive(Debug, Default)]
pub(super) struct DeviceClock {
    /// Since the last [`Self::take_ahead`].
    window: Option<i64>,
    known: bool,
}

impl DeviceClock {
    pub(super) fn add(&mut self, host: u64, device: u64) {
        if device == 0 {
            return;
        }
        let ahead = device.wrapping_sub(host) as i64;
        self.window = Some(self.window.map_or(ahead, |window| window.max(ahead)));
        self.known = true;
    }

    pub(super) fn is_known(&self) -> bool {
        self.known
    }

    pub(super) fn take_ahead(&mut self) -> Option<i64> {
        self.window.take()
    }
}
