//! Text generation: sampling and decoding with a KV cache.

use crate::data::Tokenizer;
use crate::model::{KvCache, ResidentParams, Residual};
use crate::state::Result;
use crate::step::DeviceModel;
use regatta_device::random;
use regatta_device::tensor::{Tensor, View};

/// How the next token is sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Softmax temperature; 0 is greedy decoding.
    pub temperature: f64,
    /// Sample from the k most likely tokens; 0: all.
    pub top_k: usize,
    /// Nucleus sampling: sample from the most likely tokens with this total probability; 1: all.
    pub top_p: f64,
    /// Random seed.
    pub seed: u64,
}

impl Sampling {
    /// The token for a uniform random number in [0, 1). The vocabulary is not sorted: top-k selects, and top-p
    /// sorts only the tokens that may be in the nucleus.
    pub fn choose(&self, logits: &[f32], uniform: f64) -> u32 {
        // NaN is least likely.
        let logit = |token: u32| match logits[token as usize] {
            logit if logit.is_nan() => f32::MIN,
            logit => logit,
        };
        let descending = |a: &u32, b: &u32| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b));
        let vocabulary = 0..logits.len() as u32;
        let Some(likeliest) = vocabulary.clone().min_by(descending) else { return 0 };
        if self.temperature <= 0.0 {
            return likeliest;
        }
        let max = f64::from(logit(likeliest));
        let weight = |token: &u32| ((f64::from(logit(*token)) - max) / self.temperature).exp();
        let mut tokens: Vec<u32> = vocabulary.collect();
        if (1..tokens.len()).contains(&self.top_k) {
            tokens.select_nth_unstable_by(self.top_k - 1, descending);
            tokens.truncate(self.top_k);
            tokens.sort_unstable_by(descending);
        }
        if self.top_p < 1.0 {
            let total: f64 = tokens.iter().map(weight).sum();
            // Together, tokens below the mean of the tail have less than its probability.
            let tail_mean = (1.0 - self.top_p) * total / tokens.len() as f64;
            tokens.retain(|token| weight(token) >= tail_mean);
            tokens.sort_unstable_by(descending);
            tokens.truncate(nucleus_len(tokens.iter().map(weight), self.top_p * total));
        }
        let weights: Vec<f64> = tokens.iter().map(weight).collect();
        let mut remaining = uniform * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|weight| {
            remaining -= weight;
            remaining < 0.0
        });
        chosen.map_or(likeliest, |index| tokens[index])
    }
}

/// Number of leading weights whose sum reaches `wanted`, at least one.
fn nucleus_len(weights: impl Iterator<Item = f64>, wanted: f64) -> usize {
    let mut sum = 0.0;
    let before = weights.take_while(|weight| {
        sum += weight;
        sum < wanted
    });
    before.count() + 1
}

/// Generates text with a KV cache.
pub struct Generator<'a> {
    device_model: &'a DeviceModel,
    params: Vec<View<'a>>,
    cache: Vec<KvCache>,
    /// Tokens in the cache, at most the model's sequence length.
    tokens: Vec<u32>,
    /// Logits of the next token; empty before the first prefill.
    logits: Vec<f32>,
    /// Tokens sampled so far.
    sampled: u64,
    /// Tokens that may be sampled.
    vocab_size: usize,
    end_of_text: Option<u32>,
}

impl<'a> Generator<'a> {
    /// With an empty context.
    pub fn new(device_model: &'a DeviceModel, params: Vec<View<'a>>) -> Self {
        Self {
            device_model,
            params,
            cache: KvCache::for_model(&device_model.model, &*device_model.device),
            tokens: Vec::new(),
            logits: Vec::new(),
            sampled: 0,
            vocab_size: device_model.model.shape.vocab_size,
            end_of_text: None,
        }
    }

    /// Samples only tokens of the tokenizer, whose vocabulary may be smaller than the model's, and stops at its
    /// end-of-text token.
    pub fn with_tokenizer(self, tokenizer: &Tokenizer) -> Self {
        let vocab_size = tokenizer.vocab_size().min(self.vocab_size);
        Self { vocab_size, end_of_text: tokenizer.end_of_text(), ..self }
    }

    /// Replaces the context by a prompt, truncated from the left to the sequence length.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
        let seq_len = self.device_model.model.shape.seq_len;
        self.tokens = tokens[tokens.len().saturating_sub(seq_len)..].to_vec();
        if self.tokens.is_empty() {
            self.logits.clear();
            return Ok(());
        }
        let ctx = self.device_model.pass_ctx(1, self.tokens.len());
        let model = &self.device_model.model;
        let params = |block| ResidentParams { all: &self.params, block };
        let tokens = ctx.upload(&self.tokens);
        let mut x = Residual::new(model.embedding.forward(&ctx, &mut params(0), tokens.view())?);
        for (index, layer) in model.layers.iter().enumerate() {
            let (out, saved) = layer.forward(&ctx, &mut params(index + 1), x)?;
            layer.prefill_cache(&ctx, &saved, &mut self.cache[index]);
            x = out;
        }
        let last = self.tokens.len() - 1..self.tokens.len();
        let logits = model.head.logits(&ctx, &mut params(model.head_block()), x, last)?;
        self.read_logits(&logits)
    }

    /// Samples the next token and adds it to the context. None at the end of the text.
    pub fn next(&mut self, sampling: &Sampling) -> Result<Option<u32>> {
        let key = random::key(sampling.seed, &[RANDOM_STREAM]);
        let logits = &self.logits[..self.vocab_size.min(self.logits.len())];
        let token = sampling.choose(logits, random::uniform(key, self.sampled));
        self.sampled += 1;
        if self.end_of_text == Some(token) {
            return Ok(None);
        }
        self.decode(token)?;
        Ok(Some(token))
    }

    /// Logits of the next token.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn decode(&mut self, token: u32) -> Result<()> {
        let seq_len = self.device_model.model.shape.seq_len;
        if self.tokens.len() == seq_len {
            // Drops half of the context, to prefill once per half instead of once per token.
            let mut recent = self.tokens.split_off(seq_len - seq_len / 2);
            recent.push(token);
            return self.prefill(&recent);
        }
        let position = self.tokens.len();
        self.tokens.push(token);
        let (ctx, model) = (self.device_model.pass_ctx(1, 1), &self.device_model.model);
        let params = |block| ResidentParams { all: &self.params, block };
        let mut x = model.embedding.decode(&ctx, &mut params(0), token, position)?;
        for (index, layer) in model.layers.iter().enumerate() {
            let (params, cache) = (&mut params(index + 1), &mut self.cache[index]);
            x = layer.decode(&ctx, params, x, cache, position)?;
        }
        let (head, x) = (&mut params(model.head_block()), Residual::new(x));
        let logits = model.head.logits(&ctx, head, x, 0..1)?;
        self.read_logits(&logits)
    }

    fn read_logits(&mut self, logits: &Tensor) -> Result<()> {
        self.logits.resize(self.device_model.model.shape.vocab_size, 0.0);
        self.device_model.device.copy_to_host(logits.view(), &mut self.logits);
        Ok(self.device_model.device.synchronize()?)
    }
}

/// Separates the random numbers of generation from others of the same seed.
const RANDOM_STREAM: u64 = 0x7465_7874;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::Model;
    use crate::step::Engine;
    use regatta_device::reference::Reference;
    use regatta_predict::shape::{Family, ModelShape, Shard};

    fn engine(family: Family, tiles: usize) -> Engine {
        let shape = ModelShape {
            vocab_size: 9,
            num_heads: 4,
            tie_embeddings: true,
            bias: true,
            ..regatta_predict::testing::shape(family)
        };
        let model = Model::tiled(shape, Shard::UNSHARDED, tiles);
        let device_model = DeviceModel::new(model, Box::new(Reference));
        let mut engine = Engine::single_rank(device_model, 5);
        for block in engine.state.local_blocks() {
            engine.device_model.device.scale(20.0, engine.state.param_shard_mut(block));
        }
        engine
    }

    /// A generator with a prompt.
    fn generator(engine: &Engine) -> Generator<'_> {
        let mut generator =
            Generator::new(&engine.device_model, engine.state.all_params().unwrap());
        generator.prefill(&[3, 1]).unwrap();
        generator
    }

    /// Also past the end of the context.
    #[test]
    fn decoding_with_the_cache_equals_a_full_forward_pass() {
        for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
            let engine = engine(family, 1);
            let (mut one, mut all) = (generator(&engine), generator(&engine));
            for _ in 0..20 {
                one.next(&Sampling { seed: 4, ..ALL }).unwrap();
                all.prefill(&one.tokens).unwrap();
                let pairs = one.logits().iter().zip(all.logits());
                let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 1e-5, "{family:?}: {off}");
            }
            assert!(one.tokens.len() <= 8);
        }
    }

    #[test]
    fn tiles_do_not_change_logits() {
        let logits = |tiles| {
            let engine = engine(Family::Gpt2, tiles);
            let mut one = generator(&engine);
            for _ in 0..5 {
                one.next(&Sampling { seed: 4, ..ALL }).unwrap();
            }
            one.logits().to_vec()
        };
        for (a, b) in logits(1).iter().zip(logits(4)) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }

    const ALL: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };

    #[test]
    fn sampling_follows_temperature_top_k_and_top_p() {
        let logits = [1.0, 3.0, 2.0, f32::NAN];
        assert_eq!(Sampling { temperature: 0.0, ..ALL }.choose(&logits, 0.99), 1);
        assert_eq!(ALL.choose(&logits, 0.0), 0);
        assert_eq!(ALL.choose(&logits, 0.999), 2);
        let two = Sampling { top_k: 2, ..ALL };
        assert_eq!((two.choose(&logits, 0.0), two.choose(&logits, 0.999)), (1, 2));
        // The likeliest token has two thirds, which covers a half.
        assert_eq!(Sampling { top_p: 0.5, ..ALL }.choose(&logits, 0.999), 1);
        assert_eq!(Sampling { top_p: 0.7, ..ALL }.choose(&logits, 0.999), 2);
        let count = (0..1000).filter(|i| ALL.choose(&logits, *i as f64 / 1000.0) == 1).count();
        assert!((660..670).contains(&count), "{count}");
        assert_eq!(ALL.choose(&[], 0.5), 0);
    }

    proptest! {
        /// Against sorting the whole vocabulary.
        #[test]
        fn the_candidates_are_those_of_a_full_sort(
            logits in prop::collection::vec(-8.0f32..8.0, 1..200), top_k in 0usize..210,
            top_p in 0.05f64..1.0, uniform in 0.0f64..1.0,
        ) {
            let mut sorted: Vec<usize> = (0..logits.len()).collect();
            sorted.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            sorted.truncate(if top_k == 0 { logits.len() } else { top_k });
            let weight = |token: &usize| f64::from(logits[*token]).exp();
            let total: f64 = sorted.iter().map(weight).sum();
            let (mut sum, mut nucleus) = (0.0, Vec::new());
            for token in sorted {
                nucleus.push(token as u32);
                sum += weight(&token);
                // Rounding may add a token or not at the boundary.
                if sum >= top_p * total * (1.0 + 1e-9) {
                    break;
                }
            }
            let chosen = Sampling { top_k, top_p, ..ALL }.choose(&logits, uniform);
            prop_assert!(nucleus.contains(&chosen), "{chosen} is not in {nucleus:?}");
        }
    }

    #[test]
    fn generation_stops_at_the_end_of_text_token() {
        let engine = engine(Family::Gpt2, 1);
        let mut endless = generator(&engine);
        let tokens: Vec<u32> = (0..40).map(|_| endless.next(&ALL).unwrap().unwrap()).collect();
        let end = tokens[20];
        let first = tokens.iter().position(|token| *token == end).unwrap();
        let mut stopping = Generator { end_of_text: Some(end), ..generator(&engine) };
        let until_end: Vec<u32> = std::iter::from_fn(|| stopping.next(&ALL).unwrap()).collect();
        assert_eq!(until_end, tokens[..first]);
    }
}
