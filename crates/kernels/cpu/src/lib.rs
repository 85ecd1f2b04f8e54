//! The fast device: the processor's threads and vector instructions, in single precision or with
//! activations in brain floats.
//!
//! Read `level` for how a kernel is compiled for the instructions that are there, `lanes` for what
//! kernels are written in, `pool` for how work is cut, `product` for matrix products, and
//! `attention`. Results are the same from run to run for a number of threads.

mod attention;
pub mod bf16;
mod cache;
mod columns;
mod elementwise;
mod embed;
mod halves;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod lanes_avx2;
#[cfg(target_arch = "x86_64")]
mod lanes_avx512;
mod level;
mod linear;
mod loss;
mod math;
mod norm;
mod numbers;
mod packed;
mod pool;
mod product;
mod rope;
mod scratch;
mod step;
mod tile;

use std::ops::Range;

use self::halves::Halves;
use self::level::Level;
use self::pool::Pool;
use self::scratch::{Pieces, Scratch};
use regatta_device::device::{
    Attention, AttentionDrop, AttentionPart, AttentionPartSaved, AttentionSaved, Device, Linear,
    Norm, NormGrads, NormSaved, Turn,
};
use regatta_device::memory::{Format, Tensor, View, ViewMut};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::precision::Precision;
use regatta_device::random::Mask;

/// The processor.
#[derive(Debug)]
pub struct Cpu {
    pool: Pool,
    level: Level,
    precision: Precision,
    pieces: Pieces,
    angles: rope::Angles,
    halves: Halves,
    /// Summands that a product in single precision packs at once, at most.
    depth: usize,
}

impl Cpu {
    /// So many threads of it, at least one.
    pub fn new(threads: usize, precision: Precision) -> Self {
        Self::with_level(threads, precision, Level::best())
    }

    fn with_level(threads: usize, precision: Precision, level: Level) -> Self {
        let (pool, pieces, angles) = (Pool::new(threads), Pieces::default(), Default::default());
        let (halves, depth) = (Halves::new(level), cache::best_depth());
        Self { pool, level, precision, pieces, angles, halves, depth }
    }

    /// What it computes with, such as `2 threads, f32 on avx512`.
    pub fn describe(&self) -> String {
        let threads = match self.pool.threads() {
            1 => "1 thread".to_owned(),
            many => format!("{many} threads"),
        };
        format!("{threads}, {} on {}", self.precision.name(), self.kernels())
    }

    /// Which instructions multiply its matrices, such as `avx512`.
    pub fn kernels(&self) -> &'static str {
        match self.precision {
            Precision::F32 => self.level.name(),
            Precision::Bf16 => self.halves.kernel.name(),
        }
    }

    fn scratch(&self, elements: usize) -> Scratch<'_> {
        self.pieces.take(elements)
    }
}

impl Device for Cpu {
    fn real_format(&self) -> Format {
        Format::F32
    }

    fn activation_format(&self) -> Format {
        match self.precision {
            Precision::F32 => Format::F32,
            Precision::Bf16 => Format::Bf16,
        }
    }

    fn zeros(&self, elements: usize, format: Format) -> Tensor {
        Tensor::zeroed(elements, format)
    }

    fn put(&self, from: &[f32], to: ViewMut<'_>) {
        self.copy_numbers(View::of(from), to);
    }

    fn fetch(&self, from: View<'_>, to: &mut [f32]) {
        self.copy_numbers(from, ViewMut::of(to));
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) {
        self.copy_numbers(from, to);
    }

    fn take_columns(&self, from: View<'_>, wide: usize, columns: Range<usize>, to: ViewMut<'_>) {
        self.copy_columns(from, wide, columns.clone(), to, columns.len(), 0..columns.len());
    }

    fn put_columns(&self, from: View<'_>, to: ViewMut<'_>, wide: usize, columns: Range<usize>) {
        self.copy_columns(from, columns.len(), 0..columns.len(), to, wide, columns);
    }

    fn fill(&self, number: f64, x: ViewMut<'_>) {
        self.fill_numbers(number as f32, x);
    }

    fn linear(
        &self,
        of: Linear,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
    ) {
        self.linear_forward(of, x, weight, bias, y);
    }

    fn linear_back_input(
        &self,
        of: Linear,
        dy: View<'_>,
        weight: View<'_>,
        dx: ViewMut<'_>,
        add: bool,
    ) {
        self.linear_backward_input(of, dy, weight, dx, add);
    }

    fn linear_back_weight(
        &self,
        of: Linear,
        x: View<'_>,
        dy: View<'_>,
        dweight: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
    ) {
        self.linear_backward_weight(of, x, dy, dweight, dbias);
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
        self.norm_forward(how, x, weight, bias, y, statistics);
    }

    fn norm_back(
        &self,
        how: Norm,
        saved: NormSaved<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        grads: NormGrads<'_>,
    ) {
        self.norm_backward(how, saved, dy, dx, grads);
    }

    fn attention(
        &self,
        of: Attention,
        qkv: View<'_>,
        drop: Option<AttentionDrop>,
        y: ViewMut<'_>,
        log_sums: ViewMut<'_>,
    ) {
        self.attention_forward(of, qkv, drop, y, log_sums);
    }

    fn attention_back(
        &self,
        of: Attention,
        saved: AttentionSaved<'_>,
        drop: Option<AttentionDrop>,
        dy: View<'_>,
        dqkv: ViewMut<'_>,
    ) {
        self.attention_backward(of, saved, drop, dy, dqkv);
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
        self.attention_part_forward(of, q, kv, drop, y, log_sums);
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
        self.attention_part_backward(of, saved, drop, dy, dq, dkv);
    }

    fn attend(&self, of: Attention, q: View<'_>, keys: View<'_>, values: View<'_>, y: ViewMut<'_>) {
        self.attend_one(of, q, keys, values, y);
    }

    fn rope(&self, of: Attention, base: f64, places: &[u32], turn: Turn, qkv: ViewMut<'_>) {
        self.rope_turn(of, base, places, turn, qkv);
    }

    fn gelu(&self, x: ViewMut<'_>, y: ViewMut<'_>) {
        self.gelu_forward(x, y);
    }

    fn gelu_back(&self, slopes: View<'_>, dy: ViewMut<'_>) {
        self.multiply_numbers(slopes, dy);
    }

    fn swiglu(&self, width: usize, x: View<'_>, y: ViewMut<'_>) {
        self.swiglu_forward(width, x, y);
    }

    fn swiglu_back(&self, width: usize, x: View<'_>, dy: View<'_>, dx: ViewMut<'_>) {
        self.swiglu_backward(width, x, dy, dx);
    }

    fn embed(&self, tokens: &[u32], first: usize, table: View<'_>, y: ViewMut<'_>) {
        self.embed_forward(tokens, first, table, y);
    }

    fn embed_back(&self, tokens: &[u32], first: usize, dy: View<'_>, dtable: ViewMut<'_>) {
        self.embed_backward(tokens, first, dy, dtable);
    }

    fn add_positions(&self, width: usize, places: &[u32], positions: View<'_>, y: ViewMut<'_>) {
        self.positions_forward(width, places, positions, y);
    }

    fn add_positions_back(
        &self,
        width: usize,
        places: &[u32],
        dy: View<'_>,
        dpositions: ViewMut<'_>,
    ) {
        self.positions_backward(width, places, dy, dpositions);
    }

    fn cross_entropy(&self, targets: &[u32], logits: ViewMut<'_>, scale: Option<f64>) -> f64 {
        self.loss(targets, logits, scale)
    }

    fn entropy_part(&self, targets: &[u32], first: usize, logits: View<'_>, parts: ViewMut<'_>) {
        self.loss_part(targets, first, logits, parts);
    }

    fn entropy_whole(&self, parts: View<'_>, whole: ViewMut<'_>) -> f64 {
        self.loss_whole(parts, whole)
    }

    fn entropy_back(
        &self,
        targets: &[u32],
        first: usize,
        whole: View<'_>,
        logits: ViewMut<'_>,
        scale: f64,
    ) {
        self.loss_back(targets, first, whole, logits, scale);
    }

    fn sum(&self, x: View<'_>, y: View<'_>, z: ViewMut<'_>) {
        self.sum_numbers(x, y, z);
    }

    fn add(&self, x: View<'_>, y: ViewMut<'_>) {
        self.add_numbers(x, y);
    }

    fn dropout(&self, mask: Mask, x: ViewMut<'_>) {
        self.drop_numbers(mask, x);
    }

    fn scale(&self, by: f64, x: ViewMut<'_>) {
        self.scale_numbers(by, x);
    }

    fn square_sum(&self, x: View<'_>) -> f64 {
        self.sum_of_squares(x)
    }

    fn adamw(
        &self,
        how: &AdamW,
        gradients: View<'_>,
        state: [ViewMut<'_>; 2],
        parameters: ViewMut<'_>,
    ) {
        self.adamw_step(how, gradients, state, parameters);
    }

    fn sgd(&self, how: &Sgd, gradients: View<'_>, momentum: ViewMut<'_>, parameters: ViewMut<'_>) {
        self.sgd_step(how, gradients, momentum, parameters);
    }
}

#[cfg(test)]
mod tests;
