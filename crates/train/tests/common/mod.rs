//! Helpers of tests that compare the same training under different parallel layouts.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use regatta_comm::communicator::Communicator;
use regatta_comm::{Collectives, Comm, ReduceOp};
use regatta_device::optimizer::AdamW;
use regatta_device::random;
use regatta_train::step::{Engine, MicroBatch, OptimizerStep, StepConfig};

/// Vocabulary size.
pub const VOCAB_SIZE: u64 = 13;

/// A step over a global batch of `tokens` tokens.
pub fn step_config(step: u64, tokens: usize, dropout: f32, recompute: bool) -> StepConfig {
    let optimizer = OptimizerStep::AdamW(AdamW {
        lr: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        step: step + 1,
        grad_scale: 1.0,
    });
    let (tokens, grad_clip, seed) = (tokens as u64, 1.0, 3);
    StepConfig { step, tokens, optimizer, grad_clip, dropout, seed, recompute }
}

/// Sequences of a step, each an arithmetic progression from a random token, shifted by `shift`.
pub fn tokens(seq_len: usize, step: u64, sequences: Range<usize>, shift: u64) -> Vec<u32> {
    let sequence = |index: usize| {
        let start = random::mix(step << 32 | index as u64);
        let token = move |i: u64| (start % VOCAB_SIZE + 5 * (i + shift)) % VOCAB_SIZE;
        (0..seq_len as u64).map(move |i| token(i) as u32)
    };
    sequences.flat_map(sequence).collect()
}

/// Runs all ranks of a world concurrently and returns their results in rank order.
pub fn run_ranks<T: Send>(
    world: Vec<Communicator>,
    rank: impl Fn(Arc<dyn Comm>) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let rank = &rank;
        let spawn = |comm| scope.spawn(move || rank(Arc::new(comm)));
        let ranks: Vec<_> = world.into_iter().map(spawn).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The loss and the gradient norm of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossAndNorm {
    /// Mean loss of the global batch.
    pub loss: f64,
    /// Gradient norm.
    pub grad_norm: f64,
}

/// A short training, the same for every parallel layout.
#[derive(Debug, Clone, Copy)]
pub struct Training {
    /// Number of steps.
    pub steps: u64,
    /// Sequences of the global batch.
    pub batch: usize,
    /// Tokens of a sequence.
    pub seq_len: usize,
    /// Micro-batches of each replica.
    pub micro_batches: usize,
    /// Dropout probability.
    pub dropout: f32,
    /// Whether a step recomputes activations.
    pub recompute: fn(u64) -> bool,
}

impl Training {
    /// Trains replica `replica` of `replicas`. All ranks of `comm` get the same metrics.
    pub fn run(
        self,
        engine: &mut Engine,
        comm: &dyn Comm,
        replica: usize,
        replicas: usize,
    ) -> Vec<LossAndNorm> {
        let share = self.batch / replicas;
        let sequences = replica * share..(replica + 1) * share;
        (0..self.steps).map(|step| self.step(engine, comm, sequences.clone(), step)).collect()
    }

    /// A step over some of its sequences.
    fn step(
        self,
        engine: &mut Engine,
        comm: &dyn Comm,
        sequences: Range<usize>,
        step: u64,
    ) -> LossAndNorm {
        let batch = sequences.len() / self.micro_batches;
        let firsts: Vec<usize> = sequences.step_by(batch).take(self.micro_batches).collect();
        let data: Vec<[Vec<u32>; 2]> = firsts
            .iter()
            .map(|first| {
                [0, 1].map(|shift| tokens(self.seq_len, step, *first..first + batch, shift))
            })
            .collect();
        let micro_batches = firsts.iter().zip(&data).map(|(first, [inputs, targets])| MicroBatch {
            inputs,
            targets,
            batch,
            first_sequence: *first as u64,
        });
        let all = self.batch * self.seq_len;
        let config = step_config(step, all, self.dropout, (self.recompute)(step));
        let result = engine.step(&config, micro_batches).unwrap();
        let mut sum = [result.loss_sum];
        comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        LossAndNorm { loss: sum[0] / all as f64, grad_norm: result.grad_norm }
    }
}
