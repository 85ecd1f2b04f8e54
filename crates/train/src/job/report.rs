//! What is told of a training: what it is, how fast it goes.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::Job;
use super::tally::Tally;
use crate::metrics::{About, Ended, FLOPS_FORMULA, StepMetrics, StepSeconds, Summary};
use regatta_predict::mesh::Mesh;
use regatta_predict::plan::ParallelPlan;
use regatta_predict::shape::Shape;

/// What is trained, on what, by whom.
pub fn about(job: &Job, plan: &ParallelPlan, shape: &Shape, done: u64) -> About {
    let config = &job.config;
    let hosts: BTreeSet<String> =
        (0..job.comm.size()).map(|rank| job.comm.peer(rank).host).collect();
    About {
        model: job.name.clone(),
        parameters: shape.parameters() as u64,
        ranks: plan.mesh.ranks(),
        split: Some(plan.mesh).filter(Mesh::is_shared).map_or_else(String::new, |m| m.to_string()),
        hosts: hosts.len(),
        threads: job.threads,
        precision: config.train.precision.name().to_owned(),
        kernels: job.kernels.clone(),
        data: config.data.source.clone(),
        data_tokens: job.dataset.train.len(),
        step_tokens: (plan.batch * shape.context) as u64,
        steps: config.train.steps,
        done,
        log_every: config.train.log_every,
        flops_formula: FLOPS_FORMULA.to_owned(),
        folder: job.folder.display().to_string(),
    }
}

/// How fast a training goes.
#[derive(Debug)]
pub struct Speed {
    ranks: f64,
    steps: u64,
    step_tokens: u64,
    flops_per_token: f64,
    began: Instant,
    /// Steps before it began.
    before: u64,
    loss: f64,
    validation_loss: Option<f64>,
}

impl Speed {
    /// Of a training that begins now, after so many steps.
    pub fn new(about: &About, shape: &Shape) -> Self {
        Self {
            ranks: about.ranks as f64,
            steps: about.steps,
            step_tokens: about.step_tokens,
            flops_per_token: shape.training_flops_per_token(shape.context),
            began: Instant::now(),
            before: about.done,
            loss: f64::NAN,
            validation_loss: None,
        }
    }

    /// A step in numbers: the whole and what was spent on a checkpoint by this rank, the rest by
    /// ranks on average.
    pub fn step(
        &mut self,
        (done, tokens): (u64, u64),
        loss: f64,
        rate: f64,
        gradient_norm: f64,
        all: &Tally,
        (whole, keeping): (Duration, Duration),
    ) -> StepMetrics {
        self.loss = loss;
        let whole = whole.as_secs_f64();
        let checkpoint = keeping.as_secs_f64();
        let [data, forward, backward, communication, optimizer] =
            all.seconds.map(|seconds| seconds / self.ranks);
        let known = data + forward + backward + communication + optimizer + checkpoint;
        let other = (whole - known).max(0.0);
        let tokens_per_second = self.step_tokens as f64 / whole.max(f64::MIN_POSITIVE);
        StepMetrics {
            step: done,
            steps: self.steps,
            loss,
            validation_loss: None,
            rate,
            gradient_norm,
            tokens,
            tokens_per_second,
            flops_per_second: tokens_per_second * self.flops_per_token,
            seconds: StepSeconds {
                step: whole,
                data,
                forward,
                backward,
                communication,
                optimizer,
                checkpoint,
                other,
            },
            time: since_1970(),
        }
    }

    /// Whether any of the steps that are done were done since it began.
    pub fn is_new(&self, done: u64) -> bool {
        done > self.before
    }

    /// The last loss on what is not trained on.
    pub fn validated(&mut self, loss: f64) {
        self.validation_loss = Some(loss);
    }

    /// All of it.
    pub fn summary(&self, ended: Ended, done: u64, folder: &Path) -> Summary {
        let seconds = self.began.elapsed().as_secs_f64();
        let tokens = (done - self.before) * self.step_tokens;
        let tokens_per_second = tokens as f64 / seconds.max(f64::MIN_POSITIVE);
        Summary {
            ended,
            step: done,
            loss: self.loss,
            validation_loss: self.validation_loss,
            tokens,
            seconds,
            tokens_per_second,
            flops_per_second: tokens_per_second * self.flops_per_token,
            folder: folder.display().to_string(),
            held: Vec::new(),
            sent: Vec::new(),
            moved: Vec::new(),
            ranks: Vec::new(),
        }
    }
}

/// Now, in seconds since 1970.
fn since_1970() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}
