//! How long a thread looks for messages before it sleeps.

use std::time::Duration;

/// Learns from how long it had to wait. Where messages come as fast as a thread falls asleep and is
/// woken up, to look is faster; where they do not, looking keeps the one from working whom it waits
/// for.
#[derive(Debug)]
pub struct Spin {
    most: Duration,
    budget: Duration,
}

impl Spin {
    /// At most so long.
    pub fn new(most: Duration) -> Self {
        Self { most, budget: Duration::ZERO }
    }

    /// How long to look.
    pub fn budget(&self) -> Duration {
        self.budget
    }

    /// It took so long until a message came.
    pub fn waited(&mut self, took: Duration) {
        self.budget = match took <= self.most {
            true => (self.budget * 2).max(self.most / 8).min(self.most),
            false => self.budget / 2,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_while_it_pays() {
        let us = Duration::from_micros;
        let mut spin = Spin::new(us(48));
        (0..4).for_each(|_| spin.waited(us(20)));
        assert_eq!(spin.budget(), us(48));
        (0..40).for_each(|_| spin.waited(us(200)));
        assert_eq!(spin.budget(), Duration::ZERO);
        let mut never = Spin::new(Duration::ZERO);
        never.waited(us(1));
        assert_eq!(never.budget(), Duration::ZERO);
    }
}
