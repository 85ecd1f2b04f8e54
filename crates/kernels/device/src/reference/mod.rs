//! The device that results are checked by: plain loops in double precision, as the formulas are
//! written in a textbook. Slow on purpose.

mod attention;
mod attention_part;
mod embed;
mod loss;
mod product;
mod rows;

use std::ops::Range;

use crate::device::{
    Attention, AttentionDrop, AttentionPart, AttentionPartSaved, AttentionSaved, Device, Linear,
    Norm, NormGrads, NormSaved, Turn,
};
use crate::memory::{Format, Tensor, View, ViewMut};
use crate::optimizer::{AdamW, Sgd};
use crate::random::Mask;

/// The plain device. It knows nothing but double precision.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Reference {
    /// It.
    pub fn new() -> Self {
        Self
    }
}

impl Device for Reference {
    fn real_format(&self) -> Format {
        Format::F64
    }

    fn activation_format(&self) -> Format {
        Format::F64
    }

    fn zeros(&self, elements: usize, format: Format) -> Tensor {
        Tensor::zeroed(elements, format)
    }

    fn put(&self, from: &[f32], to: ViewMut<'_>) {
        let to = to.host::<f64>();
        assert_eq!(from.len(), to.len());
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f64::from(*from));
    }

    fn fetch(&self, from: View<'_>, to: &mut [f32]) {
        let from = from.host::<f64>();
        assert_eq!(from.len(), to.len());
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from as f32);
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) {
        to.host::<f64>().copy_from_slice(from.host());
    }

    fn take_columns(&self, from: View<'_>, wide: usize, columns: Range<usize>, to: ViewMut<'_>) {
        rows::take_columns(from.host(), wide, columns, to.host());
    }

    fn put_columns(&self, from: View<'_>, to: ViewMut<'_>, wide: usize, columns: Range<usize>) {
        rows::put_columns(from.host(), to.host(), wide, columns);
    }

    fn fill(&self, number: f64, x: ViewMut<'_>) {
        x.host::<f64>().fill(number);
    }

    fn linear(
        &self,
        of: Linear,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
    ) {
        product::linear(of, x.host(), weight.host(), bias.map(View::host), y.host());
    }

    fn linear_back_input(
        &self,
        of: Linear,
        dy: View<'_>,
        weight: View<'_>,
        dx: ViewMut<'_>,
        add: bool,
    ) {
        product::back_input(of, dy.host(), weight.host(), dx.host(), add);
    }

    fn linear_back_weight(
        &self,
        of: Linear,
        x: View<'_>,
        dy: View<'_>,
        dweight: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
    ) {
        let dbias = dbias.map(ViewMut::host);
        product::back_weight(of, x.host(), dy.host(), dweight.host(), dbias);
    }

    fn norm(
        &self,
        how: Norm,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
        statistics: ViewMut<'_>,
    ) {
        let bias = bias.map(View::host);
        rows::norm(how, x.host(), weight.host(), bias, y.host(), statistics.host());
    }

    fn norm_back(
        &self,
        how: Norm,
        saved: NormSaved<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        grads: NormGrads<'_>,
    ) {
        let bias = grads.bias.map(ViewMut::host);
        rows::norm_back(how, saved, dy.host(), dx.host(), grads.weight.host(), bias);
    }

    fn attention(
        &self,
        of: Attention,
        qkv: View<'_>,
        drop: Option<AttentionDrop>,
        y: ViewMut<'_>,
        log_sums: ViewMut<'_>,
    ) {
        attention::forward(of, qkv.host(), drop, y.host(), log_sums.host());
    }

    fn attention_back(
        &self,
        of: Attention,
        saved: AttentionSaved<'_>,
        drop: Option<AttentionDrop>,
        dy: View<'_>,
        dqkv: ViewMut<'_>,
    ) {
        attention::backward(of, saved.qkv.host(), drop, dy.host(), dqkv.host());
    }

    fn attention_part(
        &self,
        of: AttentionPart,
        q: View<'_>,
        kv: View<'_>,
        drop: Option<AttentionDrop>,
        y: ViewMut<'_>,
        log_sums: ViewMut<'_>,
    ) {
        attention_part::forward(of, q.host(), kv.host(), drop, y.host(), log_sums.host());
    }

    fn attention_part_back(
        &self,
        of: AttentionPart,
        saved: AttentionPartSaved<'_>,
        drop: Option<AttentionDrop>,
        dy: View<'_>,
        dq: ViewMut<'_>,
        dkv: ViewMut<'_>,
    ) {
        attention_part::backward(of, saved, drop, dy.host(), dq.host(), dkv.host());
    }

    fn attend(&self, of: Attention, q: View<'_>, keys: View<'_>, values: View<'_>, y: ViewMut<'_>) {
        attention::attend(of, q.host(), keys.host(), values.host(), y.host());
    }

    fn rope(&self, of: Attention, base: f64, places: &[u32], turn: Turn, qkv: ViewMut<'_>) {
        attention::rope(of, base, places, turn, qkv.host());
    }

    fn gelu(&self, x: ViewMut<'_>, y: ViewMut<'_>) {
        let x = x.host::<f64>();
        rows::map(x, y.host(), rows::gelu);
        x.iter_mut().for_each(|x| *x = rows::gelu_slope(*x));
    }

    fn gelu_back(&self, slopes: View<'_>, dy: ViewMut<'_>) {
        let dy = dy.host::<f64>();
        dy.iter_mut().zip(slopes.host::<f64>()).for_each(|(dy, slope)| *dy *= slope);
    }

    fn swiglu(&self, width: usize, x: View<'_>, y: ViewMut<'_>) {
        rows::swiglu(width, x.host(), y.host());
    }

    fn swiglu_back(&self, width: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) {
        rows::swiglu_back(width, x.host(), dy.host(), dx.host());
    }

    fn embed(&self, tokens: &[u32], first: usize, table: View<'_>, y: ViewMut<'_>) {
        embed::embed(tokens, first, table.host(), y.host());
    }

    fn embed_back(&self, tokens: &[u32], first: usize, dy: View<'_>, dtable: ViewMut<'_>) {
        embed::embed_back(tokens, first, dy.host(), dtable.host());
    }

    fn add_positions(&self, width: usize, places: &[u32], positions: View<'_>, y: ViewMut<'_>) {
        embed::add_positions(width, places, positions.host(), y.host());
    }

    fn add_positions_back(
        &self,
        width: usize,
        places: &[u32],
        dy: View<'_>,
        dpositions: ViewMut<'_>,
    ) {
        embed::add_positions_back(width, places, dy.host(), dpositions.host());
    }

    fn cross_entropy(&self, targets: &[u32], logits: ViewMut<'_>, scale: Option<f64>) -> f64 {
        loss::cross_entropy(targets, logits.host(), scale)
    }

    fn entropy_part(&self, targets: &[u32], first: usize, logits: View<'_>, parts: ViewMut<'_>) {
        loss::part(targets, first, logits.host(), parts.host());
    }

    fn entropy_whole(&self, parts: View<'_>, whole: ViewMut<'_>) -> f64 {
        loss::whole(parts.host(), whole.host())
    }

    fn entropy_back(
        &self,
        targets: &[u32],
        first: usize,
        whole: View<'_>,
        logits: ViewMut<'_>,
        scale: f64,
    ) {
        loss::back(targets, first, whole.host(), logits.host(), scale);
    }

    fn sum(&self, x: View<'_>, y: View<'_>, z: ViewMut<'_>) {
        let (x, y, z) = (x.host::<f64>(), y.host::<f64>(), z.host::<f64>());
        assert_eq!((x.len(), y.len()), (z.len(), z.len()));
        (0..z.len()).for_each(|i| z[i] = x[i] + y[i]);
    }

    fn add(&self, x: View<'_>, y: ViewMut<'_>) {
        let y = y.host::<f64>();
        assert_eq!(x.len(), y.len());
        y.iter_mut().zip(x.host::<f64>()).for_each(|(y, x)| *y += x);
    }

    fn dropout(&self, mask: Mask, x: ViewMut<'_>) {
        let x = x.host::<f64>();
        (0..).zip(x).for_each(|(index, x)| *x *= f64::from(mask.factor(index)));
    }

    fn scale(&self, by: f64, x: ViewMut<'_>) {
        x.host::<f64>().iter_mut().for_each(|x| *x *= by);
    }

    fn square_sum(&self, x: View<'_>) -> f64 {
        x.host::<f64>().iter().map(|x| x * x).sum()
    }

    fn adamw(
        &self,
        how: &AdamW,
        gradients: View<'_>,
        state: [ViewMut<'_>; 2],
        parameters: ViewMut<'_>,
    ) {
        let [m, v] = state.map(ViewMut::host::<f64>);
        let factors = how.factors();
        let p = parameters.host::<f64>();
        assert!([gradients.len(), m.len(), v.len()].iter().all(|len| *len == p.len()));
        for (i, g) in gradients.host::<f64>().iter().enumerate() {
            let g = g * how.scale;
            m[i] = how.beta1 * m[i] + (1.0 - how.beta1) * g;
            v[i] = how.beta2 * v[i] + (1.0 - how.beta2) * g * g;
            let pace = factors.pace * m[i] / (v[i].sqrt() * factors.root + how.epsilon);
            p[i] = p[i] * factors.kept - pace;
        }
    }

    fn sgd(&self, how: &Sgd, gradients: View<'_>, momentum: ViewMut<'_>, parameters: ViewMut<'_>) {
        let (m, p) = (momentum.host::<f64>(), parameters.host::<f64>());
        assert!([gradients.len(), m.len()].iter().all(|len| *len == p.len()));
        for (i, g) in gradients.host::<f64>().iter().enumerate() {
            m[i] = how.momentum * m[i] + g * how.scale + how.decay * p[i];
            p[i] -= how.rate * m[i];
        }
    }
}
