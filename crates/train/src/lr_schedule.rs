//! Learning-rate schedules. No I/O.

use regatta_comm::enum_names;
use serde::{Deserialize, Serialize};

/// Learning-rate decay after the warmup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LrDecay {
    /// Half a cosine period.
    Cosine,
    /// Linear.
    Linear,
    /// No decay.
    Constant,
}

enum_names!(LrDecay, "All decays.", Cosine "cosine", Linear "linear", Constant "constant");

/// Scaling of the learning rate with the number of data-parallel replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LrScaling {
    /// None: correct if the global batch stays the same.
    None,
    /// By the square root, by which the gradient noise falls.
    Sqrt,
    /// Linear.
    Linear,
}

enum_names!(LrScaling, "All scalings.", None "none", Sqrt "sqrt", Linear "linear");

impl LrScaling {
    /// Factor of the learning rate.
    pub fn factor(self, replicas: usize) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Sqrt => (replicas as f64).sqrt(),
            Self::Linear => replicas as f64,
        }
    }
}

/// Linear warmup, then decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LrSchedule {
    /// Form of the decay.
    pub decay: LrDecay,
    /// Peak learning rate.
    pub lr: f64,
    /// Final learning rate; unused without decay.
    pub min_lr: f64,
    /// Warmup steps.
    pub warmup_steps: u64,
    /// Step at which `min_lr` is reached.
    pub decay_steps: u64,
}

impl LrSchedule {
    /// Learning rate of a step, from 0.
    pub fn at(&self, step: u64) -> f64 {
        let (warmup, end) = (self.warmup_steps, self.decay_steps);
        if step < warmup {
            // Never 0, which would waste a step.
            return self.lr * (step + 1) as f64 / (warmup as f64 + 1.0);
        }
        let done = if step >= end { 1.0 } else { (step - warmup) as f64 / (end - warmup) as f64 };
        let left = match self.decay {
            LrDecay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
            LrDecay::Linear => 1.0 - done,
            LrDecay::Constant => 1.0,
        };
        self.min_lr + left * (self.lr - self.min_lr)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schedule(decay: LrDecay) -> LrSchedule {
        LrSchedule { decay, lr: 1e-3, min_lr: 1e-4, warmup_steps: 100, decay_steps: 2000 }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn cosine_schedule_matches_nanogpt() {
        // get_lr of nanoGPT's train.py, with learning_rate 1e-3, min_lr 1e-4, warmup_iters 100,
        // lr_decay_iters 2000, worked out by hand where the cosine is 1, 0 and -1.
        let schedule = schedule(LrDecay::Cosine);
        assert!(near(schedule.at(0), 1e-3 / 101.0));
        assert!(near(schedule.at(99), 1e-3 * 100.0 / 101.0));
        assert!(near(schedule.at(100), 1e-3));
        assert!(near(schedule.at(1050), 5.5e-4));
        assert!(near(schedule.at(2000), 1e-4) && near(schedule.at(5000), 1e-4));
    }

    #[test]
    fn linear_and_constant_schedules_and_scaling_factors() {
        assert!(near(schedule(LrDecay::Linear).at(575), 1e-3 - 0.25 * 9e-4));
        assert!(near(schedule(LrDecay::Linear).at(2000), 1e-4));
        assert!(near(schedule(LrDecay::Constant).at(1999), 1e-3));
        assert!(near(schedule(LrDecay::Constant).at(9999), 1e-3));
        let factors = [LrScaling::None, LrScaling::Sqrt, LrScaling::Linear].map(|s| s.factor(16));
        assert_eq!(factors, [1.0, 4.0, 16.0]);
    }

    proptest! {
        #[test]
        fn lr_stays_within_bounds_and_decays_monotonically(
            warmup in 0u64..50, more in 0u64..50, step in 0u64..200,
        ) {
            for decay in [LrDecay::Cosine, LrDecay::Linear, LrDecay::Constant] {
                let schedule = LrSchedule {
                    warmup_steps: warmup,
                    decay_steps: warmup + more,
                    ..schedule(decay)
                };
                let lr = schedule.at(step);
                prop_assert!(lr > 0.0 && lr <= 1e-3 + 1e-12, "{lr}");
                prop_assert!(step < warmup || lr >= 1e-4 - 1e-12, "{lr}");
                prop_assert!(step < warmup || schedule.at(step + 1) <= lr + 1e-12);
            }
        }
    }
}
