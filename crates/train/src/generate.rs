//! Text from a model: what comes next, again and again.

use crate::model::{Cache, Given};
use crate::state::StepError;
use crate::step::Net;
use regatta_device::memory::{Tensor, View};
use regatta_device::random;

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Below 1 likelier tokens get likelier still; at 0 the likeliest is taken.
    pub temperature: f64,
    /// Only the so many likeliest; 0: all.
    pub top_k: usize,
    /// Only the likeliest that together have this probability; 1: all.
    pub top_p: f64,
    /// The same seed gives the same text.
    pub seed: u64,
}

impl Sampling {
    /// The token that a number from 0 to 1 stands for.
    pub fn choose(&self, logits: &[f32], uniform: f64) -> u32 {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // What is no number is never chosen if there is another.
        let value = |token: usize| if logits[token].is_nan() { f32::MIN } else { logits[token] };
        order.sort_unstable_by(|a, b| value(*b).total_cmp(&value(*a)).then(a.cmp(b)));
        let Some(&likeliest) = order.first() else { return 0 };
        if self.temperature <= 0.0 {
            return likeliest as u32;
        }
        let kept = if self.top_k == 0 { order.len() } else { self.top_k.min(order.len()) };
        let most = f64::from(value(likeliest));
        let weight = |token: &usize| ((f64::from(value(*token)) - most) / self.temperature).exp();
        let weights: Vec<f64> = order[..kept].iter().map(weight).collect();
        let nucleus = self.top_p * weights.iter().sum::<f64>();
        let within = nucleus_len(&weights, nucleus);
        let mut left = uniform * weights[..within].iter().sum::<f64>();
        for (token, weight) in order.iter().zip(&weights[..within]) {
            left -= weight;
            if left < 0.0 {
                return *token as u32;
            }
        }
        order[within - 1] as u32
    }
}

/// How many of the weights, at least one, come to that much.
fn nucleus_len(weights: &[f64], wanted: f64) -> usize {
    let mut sum = 0.0;
    let enough = weights.iter().position(|weight| {
        sum += weight;
        sum >= wanted
    });
    enough.map_or(weights.len(), |at| at + 1)
}

/// A model that writes.
pub struct Generator<'a> {
    net: &'a Net,
    params: Vec<View<'a>>,
    cache: Vec<Cache>,
    /// What is in the cache, at most as many as the model has context.
    tokens: Vec<u32>,
    /// What comes next, if anything was fed.
    logits: Vec<f32>,
    written: u64,
    /// How many kinds of tokens mean something.
    kinds: usize,
}

impl<'a> Generator<'a> {
    /// One that has read nothing.
    pub fn new(net: &'a Net, params: Vec<View<'a>>) -> Self {
        let cache = Cache::of(&net.model, &*net.device);
        let kinds = net.model.shape.vocabulary;
        Self { net, params, cache, tokens: Vec::new(), logits: Vec::new(), written: 0, kinds }
    }

    /// One that writes only the first so many kinds of tokens: models may have room for more.
    pub fn among(self, kinds: usize) -> Self {
        Self { kinds: kinds.min(self.kinds), ..self }
    }

    /// Reads a text anew; of one that is longer than the context, the end.
    pub fn read(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        let context = self.net.model.shape.context;
        self.tokens = tokens[tokens.len().saturating_sub(context)..].to_vec();
        if self.tokens.is_empty() {
            self.logits.clear();
            return Ok(());
        }
        let run = self.net.run(1, self.tokens.len());
        let model = &self.net.model;
        let given = |block| Given { all: &self.params, block };
        let mut x = model.embedding.forward(&run, &mut given(0), &self.tokens)?;
        for (number, layer) in model.layers.iter().enumerate() {
            let (out, saved) = layer.forward(&run, &mut given(number + 1), x)?;
            layer.keep(&run, &saved, &mut self.cache[number]);
            x = out;
        }
        let last = self.tokens.len() - 1..self.tokens.len();
        let logits = model.head.logits(&run, &mut given(model.last()), &x, last)?;
        self.take(&logits);
        Ok(())
    }

    /// The next token, which is read, too.
    pub fn next(&mut self, sampling: &Sampling) -> Result<u32, StepError> {
        let key = random::key(sampling.seed, &[WRITTEN]);
        let logits = &self.logits[..self.kinds.min(self.logits.len())];
        let token = sampling.choose(logits, random::uniform(key, self.written));
        self.written += 1;
        self.push(token)?;
        Ok(token)
    }

    /// What the model holds of each token as the next one.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn push(&mut self, token: u32) -> Result<(), StepError> {
        let context = self.net.model.shape.context;
        if self.tokens.len() == context {
            // Room for as much again, instead of a pass over the whole context for every token.
            let mut kept = self.tokens.split_off(context - context / 2);
            kept.push(token);
            return self.read(&kept);
        }
        let position = self.tokens.len();
        self.tokens.push(token);
        let (run, model) = (self.net.run(1, 1), &self.net.model);
        let given = |block| Given { all: &self.params, block };
        let mut x = model.embedding.one(&run, &mut given(0), token, position)?;
        for (number, layer) in model.layers.iter().enumerate() {
            x = layer.one(&run, &mut given(number + 1), x, &mut self.cache[number], position)?;
        }
        let logits = model.head.logits(&run, &mut given(model.last()), &x, 0..1)?;
        self.take(&logits);
        Ok(())
    }

    fn take(&mut self, logits: &Tensor) {
        self.logits.resize(self.net.model.shape.vocabulary, 0.0);
        self.net.device.fetch(logits.view(), &mut self.logits);
    }
}

/// What the random numbers of a text are told apart from others by.
const WRITTEN: u64 = 0x7465_7874;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::step::Engine;
    use regatta_device::reference::Reference;
    use regatta_predict::shape::{Family, Shape, Share};

    fn engine(family: Family, tiles: usize) -> Engine {
        let shape = Shape {
            family,
            vocabulary: 9,
            context: 8,
            width: 8,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            feed_forward: 16,
            tied: true,
            bias: true,
            norm_epsilon: 1e-5,
            rope_base: 100.0,
        };
        let model = Model::tiled(shape, Share::ALL, tiles);
        let net = Net::new(model, Box::new(Reference));
        let mut engine = Engine::alone(net, 5);
        for block in engine.state.held() {
            engine.net.device.scale(20.0, engine.state.weights.own_mut(block));
        }
        engine
    }

    /// Token by token is the same as all at once, also past the end of the context.
    #[test]
    fn what_is_kept_changes_nothing() {
        for family in [Family::Gpt2, Family::Llama, Family::Mlp] {
            let engine = engine(family, 1);
            let mut one = Generator::new(&engine.net, engine.state.weights.whole().unwrap());
            one.read(&[3, 1]).unwrap();
            let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 4 };
            for _ in 0..20 {
                one.next(&sampling).unwrap();
                let mut all = Generator::new(&engine.net, engine.state.weights.whole().unwrap());
                all.read(&one.tokens).unwrap();
                let pairs = one.logits().iter().zip(all.logits());
                let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 1e-5, "{family:?}: {off}");
            }
            assert!(one.tokens.len() <= 8);
        }
    }

    #[test]
    fn tiles_change_nothing() {
        let logits = |tiles| {
            let engine = engine(Family::Gpt2, tiles);
            let mut one = Generator::new(&engine.net, engine.state.weights.whole().unwrap());
            one.read(&[3, 1]).unwrap();
            let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 4 };
            for _ in 0..5 {
                one.next(&sampling).unwrap();
            }
            one.logits().to_vec()
        };
        for (a, b) in logits(1).iter().zip(logits(4)) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }

    #[test]
    fn samples_follow_the_rules() {
        let logits = [1.0, 3.0, 2.0, f32::NAN];
        let all = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };
        assert_eq!(Sampling { temperature: 0.0, ..all }.choose(&logits, 0.99), 1);
        assert_eq!(all.choose(&logits, 0.0), 1);
        assert_eq!(all.choose(&logits, 0.999), 0);
        let two = Sampling { top_k: 2, ..all };
        assert_eq!(two.choose(&logits, 0.999), 2);
        // The likeliest has two thirds, and is enough for a half.
        assert_eq!(Sampling { top_p: 0.5, ..all }.choose(&logits, 0.999), 1);
        assert_eq!(Sampling { top_p: 0.7, ..all }.choose(&logits, 0.999), 2);
        let share = (0..1000).filter(|i| all.choose(&logits, *i as f64 / 1000.0) == 1).count();
        assert!((660..670).contains(&share), "{share}");
        assert_eq!(all.choose(&[], 0.5), 0);
    }
}
