//! The text that a trained model writes at the end, by rank 0.

use std::time::Instant;

use super::Training;
use super::begin::checkpoints;
use crate::checkpoint::Checkpoint;
use crate::generate::{Generator, Sampling};
use crate::load::{self, Loaded};
use crate::metrics::Event;
use crate::model::Model;
use crate::step::Net;
use regatta_device::memory::{Tensor, View};
use regatta_device::reference::Reference;

/// Tokens of the text.
const TOKENS: usize = 300;

/// The most parameters of a model that one rank reads again where ranks share it: more may not fit
/// beside what it has.
const MOST_READ: usize = 64 << 20;

impl Training {
    /// What the model writes by itself, or why it does not where that is to be said.
    pub(super) fn sample(&mut self) -> Option<Event> {
        self.engine.state.settle().ok()?;
        let engine = &self.engine;
        let is_shared = engine.groups.mesh.is_shared();
        if let Some(all) = engine.state.weights.whole().filter(|_| !is_shared) {
            return self.write(&engine.net, all).map(Event::Sample);
        }
        let parameters = engine.net.model.shape.parameters();
        if parameters > MOST_READ {
            return Some(Event::Note(format!(
                "no text is written: ranks share the model, and one of them reads at most \
                 {MOST_READ} parameters, not {parameters}; regatta generate does"
            )));
        }
        let loaded = self.last_kept()?;
        // All that is left to do is this: the device is free for it.
        let device = std::mem::replace(&mut self.engine.net.device, Box::new(Reference));
        let net = Net::new(Model::new(loaded.shape), device);
        let text = self.write(&net, loaded.parameters.iter().map(Tensor::view).collect());
        self.engine.net.device = net.device;
        text.map(Event::Sample)
    }

    /// The whole model, from the checkpoint of what was trained, if there is one.
    fn last_kept(&self) -> Option<Loaded> {
        let folder = checkpoints(&self.config, &self.folder)?;
        let last = Checkpoint::latest(&folder).ok()??;
        if last.about().step != self.done {
            return None;
        }
        load::from_checkpoint(&last, &*self.engine.net.device).ok()
    }

    fn write(&self, net: &Net, parameters: Vec<View<'_>>) -> Option<String> {
        let tokenizer = &self.dataset.tokenizer;
        let mut first = Vec::new();
        self.dataset.validation.read(0..1, &mut first).ok()?;
        let mut generator = Generator::new(net, parameters).among(tokenizer.vocabulary());
        generator.read(&first).ok()?;
        let seed = self.config.train.seed;
        let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 1.0, seed };
        let began = Instant::now();
        let mut tokens = first;
        // A large model is slow by itself; nobody waits for this.
        while tokens.len() < TOKENS && began.elapsed().as_secs() < 5 {
            tokens.push(generator.next(&sampling).ok()?);
        }
        tokenizer.decode(&tokens).ok()
    }
}
