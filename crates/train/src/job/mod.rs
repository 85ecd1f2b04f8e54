//! A training from its first step to its last: data, steps, validations, checkpoints, metrics.
//!
//! Every rank does this. Nothing here prints: what happens is told as events.

mod begin;
mod error;
mod evaluate;
mod finish;
mod keep;
mod report;
mod resume;
mod sample;
pub mod smoke;
mod tally;
mod traffic;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use regatta_comm::{Collectives, Comm, ReduceOp};

pub use begin::go_on;
pub use error::TrainError;
use keep::Keeper;
use report::Speed;
use tally::Tally;
use traffic::{Counted, Traffic};

use crate::checkpoint;
use crate::config::{Config, Kind};
use crate::data::{Ahead, Batch, Dataset, Loader, Order, order};
use crate::metrics::{Ended, Event};
use crate::schedule::Schedule;
use crate::step::{self, Engine, Micro, Rule};
use regatta_device::device::Device;
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_predict::plan::ParallelPlan;

/// The tokenizer's file, beside the checkpoints.
pub const TOKENIZER: &str = "tokenizer.json";

/// Passes whose data is read ahead.
const AHEAD: usize = 8;

/// What a training is given.
pub struct Job {
    /// What it is told.
    pub config: Config,
    /// What that is called.
    pub name: String,
    /// The ranks.
    pub comm: Arc<dyn Comm>,
    /// Where it computes.
    pub device: Box<dyn Device>,
    /// With how many threads, and what else is to be said of that.
    pub threads: usize,
    /// What the processor does it with.
    pub kernels: String,
    /// What it is trained on.
    pub dataset: Dataset,
    /// Where metrics and checkpoints are kept.
    pub folder: PathBuf,
    /// What tells this run from others, if that is known: ranks that take the place of others have
    /// the same.
    pub run: String,
}

/// Trains. `stop` is asked after every step: if it says so on any rank, all save and end.
pub fn run(
    job: Job,
    stop: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(Event),
) -> Result<Ended, TrainError> {
    let comm = job.comm.clone();
    // Others may wait for this rank, and should know why they wait in vain.
    let trained = Training::begin(job, tell).and_then(|mut training| {
        let ended = training.go_to_the_end(stop, tell);
        ended.inspect_err(|error| training.engine.groups.abort(&error.to_string()))
    });
    trained.inspect_err(|error| comm.abort(&error.to_string()))
}

/// A rank's training.
struct Training {
    config: Config,
    plan: ParallelPlan,
    schedule: Schedule,
    comm: Arc<dyn Comm>,
    engine: Engine,
    dataset: Dataset,
    validation: Option<Loader>,
    keeper: Option<Keeper>,
    folder: PathBuf,
    /// Steps that are done.
    done: u64,
    /// Tokens that were trained on in them.
    tokens: u64,
    /// The steps of the last checkpoint that was begun.
    kept: Option<u64>,
    /// What else checkpoints tell.
    extra: BTreeMap<String, String>,
    speed: Speed,
    traffic: Traffic,
}

impl Training {
    fn go_to_the_end(
        &mut self,
        stop: &dyn Fn() -> bool,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Ended, TrainError> {
        let ended = self.steps(stop, tell)?;
        self.finish(ended, tell)?;
        Ok(ended)
    }

    /// All steps that are left, or until it is told to stop.
    fn steps(
        &mut self,
        stop: &dyn Fn() -> bool,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Ended, TrainError> {
        let mut data = self.read_ahead()?;
        let steps = self.config.train.steps;
        if self.done >= steps {
            tell(Event::Note(format!("all {steps} steps are done: train.steps=MORE goes on")));
        }
        while self.done < steps {
            if self.step(&mut data, stop, tell)? {
                return Ok(Ended::Interrupted);
            }
        }
        Ok(Ended::Done)
    }

    /// One step. Returns whether it is to be the last because some rank was told to stop.
    fn step(
        &mut self,
        data: &mut Ahead,
        stop: &dyn Fn() -> bool,
        tell: &mut dyn FnMut(Event),
    ) -> Result<bool, TrainError> {
        let began = Instant::now();
        let batches = self.batches(data)?;
        let waited = began.elapsed();
        let first = self.engine.groups.seat.dp * self.plan.share;
        let micros = (first..).step_by(self.plan.micro_batch).zip(&batches).map(micro);
        let before = Counted::by(&self.engine);
        let outcome = self.engine.step(&self.step_plan(), micros)?;
        self.traffic.after(before, &self.engine);
        let kept = self.keeper.as_mut().map_or([0.0; 2], Keeper::says);
        let own = Tally { stops: f64::from(stop()), kept, ..Tally::new(&outcome, waited) };
        let all = self.tally(own)?;
        let loss = all.loss_sum / self.step_tokens() as f64;
        self.check(loss, outcome.gradient_norm)?;
        self.done += 1;
        self.tokens += self.step_tokens();
        let keeping = Instant::now();
        self.hear(all.kept, tell)?;
        let stopping = all.stops > 0.0;
        let is_last = stopping || self.done == self.config.train.steps;
        if !is_last && is_due(self.done, self.config.checkpoint.every) {
            self.begin_keeping(tell)?;
        }
        let times = (began.elapsed(), keeping.elapsed());
        let rate = self.schedule.rate(self.done - 1);
        let metrics = self.speed.step(
            (self.done, self.tokens),
            loss,
            rate,
            outcome.gradient_norm,
            &all,
            times,
        );
        tell(Event::Step(Box::new(metrics)));
        // The last one is after the last checkpoint: who is told to end may not have much time.
        if !is_last && is_due(self.done, self.config.train.eval_every) {
            self.validate(tell)?;
        }
        Ok(stopping)
    }

    /// What is the same for all of the next step.
    fn step_plan(&self) -> step::Plan {
        let Config { train, optimizer, model, .. } = &self.config;
        let (rate, scale) = (self.schedule.rate(self.done), 1.0);
        let rule = match optimizer.kind {
            Kind::AdamW => Rule::AdamW(AdamW {
                rate,
                beta1: optimizer.beta1,
                beta2: optimizer.beta2,
                epsilon: optimizer.epsilon,
                decay: optimizer.weight_decay,
                step: self.done + 1,
                scale,
            }),
            Kind::Sgd => {
                let (momentum, decay) = (optimizer.momentum, optimizer.weight_decay);
                Rule::Sgd(Sgd { rate, momentum, decay, scale })
            }
        };
        step::Plan {
            step: self.done,
            tokens: self.step_tokens(),
            rule,
            clip: optimizer.clip,
            dropout: model.dropout as f32,
            seed: train.seed,
            recompute: train.recompute,
        }
    }

    /// Tokens of a step, of all ranks.
    fn step_tokens(&self) -> u64 {
        (self.plan.batch * self.config.model.context) as u64
    }

    /// The data of all steps that are left, a pass after the other.
    fn read_ahead(&self) -> Result<Ahead, TrainError> {
        let context = self.config.model.context as u64;
        let order = Order::shuffled(self.config.train.seed, self.dataset.train.len(), context)
            .map_err(|error| TrainError::unfit(&self.config.data.source, error))?;
        let loader = Loader::new(self.dataset.train.clone(), order);
        // Ranks that share a copy of the model all see its sequences.
        let [copy, copies] = [self.engine.groups.seat.dp, self.plan.mesh.dp].map(|n| n as u64);
        let ParallelPlan { batch, micro_batch, accumulation, .. } = self.plan;
        let passes = accumulation as u64;
        // Counted by samples, for a batch may be larger than it was in the steps before.
        let (done, seen) = (self.done, self.tokens / context);
        let lists = (self.done..self.config.train.steps)
            .flat_map(move |step| (0..passes).map(move |pass| (step, pass)))
            .map(move |(step, pass)| {
                let [batch, each] = [batch, micro_batch].map(|n| n as u64);
                let share = order::share(step - done, batch, copy, copies, pass, each);
                seen + share.start..seen + share.end
            });
        Ok(Ahead::new(loader, lists, AHEAD)?)
    }

    /// The batches of the next step.
    fn batches(&self, data: &mut Ahead) -> Result<Vec<Batch>, TrainError> {
        Ok(data.take(self.plan.accumulation).collect::<Result<_, _>>()?)
    }

    /// What all ranks say about a step, summed.
    fn tally(&self, own: Tally) -> Result<Tally, TrainError> {
        let mut numbers = own.numbers();
        self.comm.all_reduce(&mut numbers, ReduceOp::Sum)?;
        Ok(Tally::from_numbers(numbers))
    }

    /// The loss is a number, and so are the gradients.
    fn check(&self, loss: f64, gradient_norm: f64) -> Result<(), TrainError> {
        self.finite(self.done + 1, "the loss is", loss)?;
        self.finite(self.done + 1, "the norm of the gradients is", gradient_norm)
    }

    /// A number of a step is one.
    fn finite(&self, step: u64, what: &'static str, number: f64) -> Result<(), TrainError> {
        let rank = self.comm.rank();
        let host = self.comm.peer(rank).host;
        let wrong = TrainError::NotFinite { rank, host, what, number, step };
        if number.is_finite() { Ok(()) } else { Err(wrong) }
    }

    /// What was trained is worth keeping: an update can spoil what no later loss would show.
    fn check_parameters(&mut self) -> Result<(), TrainError> {
        let Engine { net, state, .. } = &mut self.engine;
        let mut squares = 0.0;
        for block in state.held() {
            squares +=
                state.look(block, checkpoint::Kind::Parameter, |own| net.device.square_sum(own))?;
        }
        self.finite(self.done, "the norm of the parameters is", squares.sqrt())
    }

    /// Tries the model on what it is not trained on.
    pub(super) fn validate(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        let Some(loader) = &self.validation else { return Ok(()) };
        let wanted = (self.config.train.eval_batches * self.plan.batch) as u64;
        let at_once = self.plan.micro_batch;
        // Its passes have other sizes, and memory for both at once would be more than for each.
        self.engine.net.trim();
        let loss = evaluate::loss(&mut self.engine, &*self.comm, loader, wanted, at_once)?;
        self.engine.net.trim();
        self.speed.validated(loss);
        tell(Event::Validation { step: self.done, loss });
        Ok(())
    }
}

/// Whether something that is done every so many steps is due after so many; 0 is never.
fn is_due(done: u64, every: u64) -> bool {
    every != 0 && done.is_multiple_of(every)
}

fn micro((first, batch): (usize, &Batch)) -> Micro<'_> {
    let Batch { inputs, targets, batch, .. } = batch;
    Micro { inputs, targets, batch: *batch, first: first as u64 }
}
