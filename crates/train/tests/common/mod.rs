//! What tests of the same training under different splits have in common.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use regatta_comm::background::Background;
use regatta_comm::{Collectives, Comm, ReduceOp};
use regatta_device::optimizer::AdamW;
use regatta_device::random;
use regatta_train::step::{Engine, Micro, Plan, Rule};

/// Kinds of tokens.
#[allow(dead_code, reason = "not every test needs all of it")]
pub const KINDS: u64 = 13;

/// A step over so many tokens.
pub fn plan(step: u64, tokens: usize, dropout: f32, recompute: bool) -> Plan {
    let adamw = AdamW {
        rate: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        decay: 0.1,
        step: step + 1,
        scale: 1.0,
    };
    let (rule, tokens) = (Rule::AdamW(adamw), tokens as u64);
    Plan { step, tokens, rule, clip: 1.0, dropout, seed: 3, recompute }
}

/// Some sequences of a step, each of so many tokens: letters that follow each other, from random ones
/// on, and the same shifted.
#[allow(dead_code, reason = "not every test needs all of it")]
pub fn tokens(length: usize, step: u64, sequences: Range<usize>, shift: u64) -> Vec<u32> {
    let one = |sequence: usize| {
        let start = random::mix(step << 32 | sequence as u64);
        (0..length as u64).map(move |i| ((start % KINDS + 5 * (i + shift)) % KINDS) as u32)
    };
    sequences.flat_map(one).collect()
}

/// Runs all ranks of a world at once. Returns what each came to, in their order.
pub fn together<T: Send>(
    world: Vec<Background>,
    rank: impl Fn(Arc<dyn Comm>) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let rank = &rank;
        let start = |comm| scope.spawn(move || rank(Arc::new(comm)));
        let all: Vec<_> = world.into_iter().map(start).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A few steps of a training, the same however ranks share it.
#[allow(dead_code, reason = "not every test needs all of it")]
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    /// How many.
    pub count: u64,
    /// Sequences of a step, among all copies of the model.
    pub batch: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Micro-batches of a copy.
    pub passes: usize,
    /// The share of numbers that is left out.
    pub dropout: f32,
    /// Which steps compute activations anew.
    pub recompute: fn(u64) -> bool,
}

#[allow(dead_code, reason = "not every test needs all of it")]
impl Steps {
    /// Trains copy `copy` of `copies`. Returns the mean loss of each step, and the gradients' norm,
    /// which all ranks of `comm` have in common.
    pub fn train(
        self,
        engine: &mut Engine,
        comm: &dyn Comm,
        copy: usize,
        copies: usize,
    ) -> Vec<[f64; 2]> {
        let share = self.batch / copies;
        let own = copy * share..(copy + 1) * share;
        (0..self.count).map(|step| self.one(engine, comm, own.clone(), step)).collect()
    }

    /// A step over some of its sequences.
    fn one(self, engine: &mut Engine, comm: &dyn Comm, own: Range<usize>, step: u64) -> [f64; 2] {
        let each = own.len() / self.passes;
        let part = |first: usize| {
            let here = || first..first + each;
            (
                first as u64,
                tokens(self.length, step, here(), 0),
                tokens(self.length, step, here(), 1),
            )
        };
        let first = |pass: usize| own.start + pass * each;
        let parts: Vec<_> = (0..self.passes).map(|pass| part(first(pass))).collect();
        let micros = parts.iter().map(|(first, inputs, targets)| Micro {
            inputs,
            targets,
            batch: each,
            first: *first,
        });
        let all = self.batch * self.length;
        let plan = plan(step, all, self.dropout, (self.recompute)(step));
        let outcome = engine.step(&plan, micros).unwrap();
        let mut sum = [outcome.loss_sum];
        comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        [sum[0] / all as f64, outcome.gradient_norm]
    }
}
