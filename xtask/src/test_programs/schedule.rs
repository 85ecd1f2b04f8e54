//! Decides which test programs run at the same time.

/// What a test program does to others on the same cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Collectives, which wait actively: two of these at once take longer than one after the other.
    Spins,
    /// Processes and timeouts: waits for most of the time.
    Waits,
    /// Computes without timeouts, at a low priority: uses what the others leave.
    Computes,
}

/// How much may run at once.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub cores: usize,
    /// Whether programs have processes, network and shared memory of their own. Otherwise only those that
    /// compute run beside others.
    pub isolated: bool,
}

impl Limits {
    /// Programs that run at once: one more than there are cores, because most wait.
    pub fn units(self) -> usize {
        self.cores + 1
    }

    fn allows(self, load: Load, waiting: &[Load], running: &[Load]) -> bool {
        let count = |load: Load| running.iter().filter(|other| **other == load).count();
        let is_patient = |load: &Load| *load == Load::Computes;
        match load {
            Load::Spins if count(Load::Spins) > 0 => false,
            Load::Spins | Load::Waits => self.isolated || running.iter().all(is_patient),
            // The others finish sooner with fewer of these beside them.
            Load::Computes if waiting.iter().all(is_patient) => count(load) < self.cores,
            Load::Computes => count(load) < self.cores.div_ceil(2),
        }
    }
}

/// The index of the program to start next, of those that wait in order.
pub fn next(waiting: &[Load], running: &[Load], limits: Limits) -> Option<usize> {
    if running.len() >= limits.units() {
        return None;
    }
    waiting.iter().position(|load| limits.allows(*load, waiting, running))
}

#[cfg(test)]
mod tests {
    use super::Load::{Computes, Spins, Waits};
    use super::*;

    const ISOLATED: Limits = Limits { cores: 2, isolated: true };
    const SHARED: Limits = Limits { cores: 2, isolated: false };

    #[test]
    fn one_program_that_spins_runs_beside_others() {
        let waiting = [Spins, Spins, Computes, Computes, Waits];
        assert_eq!(next(&waiting, &[], ISOLATED), Some(0));
        assert_eq!(next(&waiting[1..], &[Spins], ISOLATED), Some(1));
        assert_eq!(next(&[Spins, Computes, Waits], &[Spins, Computes], ISOLATED), Some(2));
        assert_eq!(next(&waiting, &[Spins, Computes, Waits], ISOLATED), None);
    }

    #[test]
    fn programs_that_compute_have_all_cores_at_the_end() {
        assert_eq!(next(&[Computes, Computes], &[Computes], ISOLATED), Some(0));
        assert_eq!(next(&[Computes], &[Computes, Computes], ISOLATED), None);
        assert_eq!(next(&[Computes, Spins], &[Computes, Spins], ISOLATED), None);
    }

    #[test]
    fn programs_that_share_the_machine_run_one_at_a_time() {
        assert_eq!(next(&[Waits, Spins, Computes], &[Waits], SHARED), Some(2));
        assert_eq!(next(&[Waits, Spins], &[Computes], SHARED), Some(0));
        assert_eq!(next(&[Waits, Waits], &[Waits], ISOLATED), Some(0));
    }
}
