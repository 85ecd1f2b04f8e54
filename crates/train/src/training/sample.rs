//! The text that rank 0 generates at the end of a run.

use std::time::Instant;

use super::TrainingLoop;
use super::start::checkpoint_dir;
use crate::checkpoint::Checkpoint;
use crate::generate::{Generator, Sampling};
use crate::load::{self, Loaded};
use crate::metrics::Event;
use crate::model::Model;
use crate::step::DeviceModel;
use regatta_device::tensor::{Tensor, View};

/// Tokens to generate.
const SAMPLE_TOKENS: usize = 500;

/// Largest model that one rank loads if the model is sharded: a larger one may not fit next to its state.
const MAX_PARAMETERS: usize = 64 << 20;

impl TrainingLoop {
    /// Generates text, or explains why not.
    pub(super) fn sample(&mut self) -> Option<Event> {
        self.engine.state.wait().ok()?;
        let engine = &self.engine;
        let is_shared = engine.groups.mesh.is_model_parallel();
        if let Some(all) = engine.state.all_params().filter(|_| !is_shared) {
            return self.generate(&engine.device_model, all).map(Event::Sample);
        }
        let parameters = engine.device_model.model.shape.num_params();
        if parameters > MAX_PARAMETERS {
            return Some(Event::Note(format!(
                "no sample: the model is sharded and has {parameters} parameters, more than \
                 {MAX_PARAMETERS}; use `regatta generate`"
            )));
        }
        let loaded = self.load_last_checkpoint()?;
        let device_model = self.engine.device_model.unsharded(Model::new(loaded.shape));
        let params = loaded.parameters.iter().map(Tensor::view).collect();
        self.generate(&device_model, params).map(Event::Sample)
    }

    /// The model from the checkpoint of the last step, if there is one.
    fn load_last_checkpoint(&self) -> Option<Loaded> {
        let folder = checkpoint_dir(&self.config, &self.folder)?;
        let last = Checkpoint::latest(&folder).ok()??;
        if last.meta().step != self.done {
            return None;
        }
        load::from_checkpoint(&last, &*self.engine.device_model.device).ok()
    }

    fn generate(&self, device_model: &DeviceModel, parameters: Vec<View<'_>>) -> Option<String> {
        let tokenizer = &self.dataset.tokenizer;
        // A new line, as in the text, if the vocabulary has one.
        let mut first = tokenizer.encode("\n").unwrap_or_default();
        if first.is_empty() {
            self.dataset.validation.read(0..1, &mut first).ok()?;
        }
        let mut generator = Generator::new(device_model, parameters).with_tokenizer(tokenizer);
        generator.prefill(&first).ok()?;
        let seed = self.config.train.seed;
        let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 1.0, seed };
        let start = Instant::now();
        let mut tokens = first;
        // Limits the time for large models.
        while tokens.len() < SAMPLE_TOKENS && start.elapsed().as_secs() < 5 {
            let Some(token) = generator.next(&sampling).ok()? else { break };
            tokens.push(token);
        }
        tokenizer.decode(&tokens).ok()
    }
}
