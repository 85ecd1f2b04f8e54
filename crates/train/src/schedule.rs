//! The learning rate of a step. No I/O.

/// How the learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// As half a period of a cosine: slowly, fast, slowly.
    Cosine,
    /// Evenly.
    Linear,
    /// Not at all.
    Constant,
}

/// How the learning rate grows with the number of data-parallel ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// Not at all: right where the batch stays the same.
    None,
    /// With the root: the noise of a gradient falls with it.
    Sqrt,
    /// As much: a step for many is many steps.
    Linear,
}

impl Scaling {
    /// What rates are multiplied by.
    pub fn factor(self, ranks: usize) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Sqrt => (ranks as f64).sqrt(),
            Self::Linear => ranks as f64,
        }
    }
}

/// The learning rate over the steps: it rises evenly, then falls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// How it falls.
    pub curve: Curve,
    /// What it is after the warm-up.
    pub rate: f64,
    /// What it falls to; a constant one does not.
    pub minimum: f64,
    /// Steps in which it rises.
    pub warmup: u64,
    /// The step from which on it is the minimum.
    pub decay: u64,
}

impl Schedule {
    /// The learning rate of a step, from 0.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            // Never 0, which would be a step for nothing.
            return self.rate * (step + 1) as f64 / (self.warmup as f64 + 1.0);
        }
        let length = self.decay.saturating_sub(self.warmup);
        let done =
            if step >= self.decay { 1.0 } else { (step - self.warmup) as f64 / length as f64 };
        let left = match self.curve {
            Curve::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
            Curve::Linear => 1.0 - done,
            Curve::Constant => 1.0,
        };
        self.minimum + left * (self.rate - self.minimum)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schedule(curve: Curve) -> Schedule {
        Schedule { curve, rate: 1e-3, minimum: 1e-4, warmup: 100, decay: 2000 }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn rates_are_those_of_nanogpt() {
        // get_lr of nanoGPT's train.py, with learning_rate 1e-3, min_lr 1e-4, warmup_iters 100,
        // lr_decay_iters 2000, worked out by hand where the cosine is 1, 0 and -1.
        let rates = schedule(Curve::Cosine);
        assert!(near(rates.rate(0), 1e-3 / 101.0));
        assert!(near(rates.rate(99), 1e-3 * 100.0 / 101.0));
        assert!(near(rates.rate(100), 1e-3));
        assert!(near(rates.rate(1050), 5.5e-4));
        assert!(near(rates.rate(2000), 1e-4) && near(rates.rate(5000), 1e-4));
    }

    #[test]
    fn other_curves_are_what_they_say() {
        assert!(near(schedule(Curve::Linear).rate(575), 1e-3 - 0.25 * 9e-4));
        assert!(near(schedule(Curve::Linear).rate(2000), 1e-4));
        assert!(near(schedule(Curve::Constant).rate(1999), 1e-3));
        assert!(near(schedule(Curve::Constant).rate(9999), 1e-3));
        let factors = [Scaling::None, Scaling::Sqrt, Scaling::Linear].map(|s| s.factor(16));
        assert_eq!(factors, [1.0, 4.0, 16.0]);
    }

    proptest! {
        #[test]
        fn rates_stay_between_the_least_and_the_most(
            warmup in 0u64..50, more in 0u64..50, step in 0u64..200,
        ) {
            for curve in [Curve::Cosine, Curve::Linear, Curve::Constant] {
                let rates = Schedule { warmup, decay: warmup + more, ..schedule(curve) };
                let rate = rates.rate(step);
                prop_assert!(rate > 0.0 && rate <= 1e-3 + 1e-12, "{rate}");
                prop_assert!(step < warmup || rate >= 1e-4 - 1e-12, "{rate}");
                prop_assert!(step < warmup || rates.rate(step + 1) <= rate + 1e-12);
            }
        }
    }
}
