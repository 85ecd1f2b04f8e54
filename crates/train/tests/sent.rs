//! What ranks send in a step is what is said to be sent, to the byte and axis by axis.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::thread;

use regatta_comm::{Comm, fake};
use regatta_train::config::{Plan as Planned, resolve};
use regatta_train::model::Model;
use regatta_train::optimizer::AdamW;
use regatta_train::parallel::context::Ring;
use regatta_train::parallel::cost::{Form, cost};
use regatta_train::parallel::pipeline::Stage;
use regatta_train::parallel::tensor::Group;
use regatta_train::parallel::{Axis, Groups, Zero};
use regatta_train::reference::Reference;
use regatta_train::shape::Shape;
use regatta_train::state::Sharing;
use regatta_train::step::{Engine, Micro, Net, Plan, Rule};

const TOKENS: usize = 8;

/// A training that keys describe.
#[derive(Clone)]
struct Case {
    shape: Shape,
    planned: Planned,
    recompute: bool,
}

impl Case {
    fn new(words: &str, ranks: usize) -> Self {
        let model = format!(
            "context={TOKENS} width=16 layers=4 heads=8 feed_forward=24 vocabulary=13 bias=auto \
             tied=auto batch=8"
        );
        let words: Vec<&str> = model.split_whitespace().chain(words.split_whitespace()).collect();
        let config = resolve(None, &words).unwrap().config;
        let planned = config.validate(ranks).unwrap();
        Self { shape: config.shape(13).unwrap(), planned, recompute: config.train.recompute }
    }

    fn engine(&self, comm: Arc<dyn Comm>) -> Engine {
        let Planned { mesh, sequence, schedule, chunks, accumulation, zero, .. } = self.planned;
        let groups = Groups::new(comm, mesh).unwrap();
        let tensor = Group::new(groups.tensor.clone(), sequence);
        let model = Model::of(self.shape.clone(), tensor.share);
        let ring = Ring::new(groups.ring.clone(), groups.seat.context_share(&mesh));
        let net = Net::within(tensor, model, Box::new(Reference)).in_ring(ring);
        let how = (schedule, mesh.pp, chunks, accumulation);
        let stage = match mesh.pp {
            1 => Stage::whole(&self.shape),
            _ => Stage::new(&self.shape, how, groups.seat.pp).unwrap(),
        };
        let sharing = Sharing::zero(Zero::level(zero).unwrap());
        Engine::new(net, groups, stage, &sharing, 11).unwrap()
    }

    /// What a rank sends in each of three steps, by axis.
    fn sent(&self, comm: Arc<dyn Comm>) -> Vec<[u64; Axis::ALL.len()]> {
        let mut engine = self.engine(comm);
        let Planned { micro_batch, accumulation, .. } = self.planned;
        let tokens = vec![5; micro_batch * TOKENS];
        let micro = Micro { inputs: &tokens, targets: &tokens, batch: micro_batch, first: 0 };
        let one = |step| {
            let all = |engine: &Engine| Axis::ALL.map(|axis| engine.groups.sent(axis).all_bytes());
            let before = all(&engine);
            let micros = std::iter::repeat_n(micro, accumulation);
            engine.step(&plan(step, self.recompute), micros).unwrap();
            let mut sent = all(&engine);
            sent.iter_mut().zip(before).for_each(|(sent, before)| *sent -= before);
            sent
        };
        (0..3).map(one).collect()
    }

    /// Every rank sends what it is said to.
    fn check(&self, about: &str) {
        let world = fake::world(self.planned.mesh.ranks() as u32);
        let start = |comm| {
            let case = self.clone();
            thread::spawn(move || case.sent(Arc::new(comm)))
        };
        let all: Vec<_> = world.into_iter().map(start).collect();
        for (rank, sent) in all.into_iter().enumerate() {
            let sent = sent.join().unwrap();
            let form = Form { real: 8, activation: 8, recompute: self.recompute };
            let said = cost(&self.shape, &self.planned, form, rank).unwrap().sends;
            let said = Axis::ALL.map(|axis| said.on(axis));
            assert!(
                sent.iter().all(|sent| *sent == said),
                "{about}, rank {rank}: {sent:?} {said:?}"
            );
        }
    }
}

fn plan(step: u64, recompute: bool) -> Plan {
    let adamw = AdamW {
        rate: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        decay: 0.1,
        step: step + 1,
        scale: 1.0,
    };
    let (rule, tokens) = (Rule::AdamW(adamw), (8 * TOKENS) as u64);
    Plan { step, tokens, rule, clip: 1.0, dropout: 0.0, seed: 3, recompute }
}

fn check(words: &str, ranks: usize) {
    for family in ["gpt2", "llama"] {
        let kv = if family == "llama" { 4 } else { 8 };
        let words = format!("family={family} kv_heads={kv} {words}");
        Case::new(&words, ranks).check(&words);
    }
}

#[test]
fn one_axis() {
    check("micro_batch=2", 1);
    for ranks in [2, 3, 4] {
        check("batch=12 micro_batch=1", ranks);
    }
    for tp in [2, 4] {
        check(&format!("tp={tp} micro_batch=4"), tp);
        check(&format!("tp={tp} sequence=false recompute=true"), tp);
    }
    check("cp=2 micro_batch=4", 2);
    check("cp=4 recompute=true", 4);
}

#[test]
fn pipelines() {
    for kind in ["gpipe", "1f1b", "zero-bubble"] {
        check(&format!("pp=2 parallel.schedule={kind} micro_batch=2"), 2);
        check(&format!("pp=4 parallel.schedule={kind} micro_batch=1 recompute=true"), 4);
    }
    check("pp=2 parallel.schedule=interleaved chunks=2 micro_batch=2", 2);
}

#[test]
fn shared_state() {
    for zero in 1..4 {
        check(&format!("zero={zero} micro_batch=2"), 2);
        check(&format!("zero={zero} shard=2"), 4);
        check(&format!("zero={zero} cp=2 tp=2 micro_batch=4"), 4);
        check(&format!("zero={zero} pp=2 micro_batch=1"), 4);
    }
}

#[test]
fn together() {
    check("tp=2 pp=2 micro_batch=2", 8);
    check("cp=2 tp=2 pp=2 recompute=true", 8);
    check("zero=1 tp=2 pp=2 micro_batch=2", 8);
}
