//! Positions that turn pairs of numbers.

use std::sync::{Arc, Mutex, PoisonError};

use crate::Cpu;
use crate::elementwise::rows;
use crate::lanes::WIDTH;
use crate::level::kernel;
use crate::numbers::{Apart, Target, get};
use regatta_device::device::{Attention, Turn};
use regatta_device::memory::ViewMut;

/// A thread gets at least so many numbers.
const LEAST: usize = 8 * 1024;

/// Cosines and sines of all positions so far, for they take long.
#[derive(Debug, Default)]
pub struct Angles(Mutex<Arc<Table>>);

#[derive(Debug, Default)]
struct Table {
    base: f64,
    half: usize,
    /// For each position the cosines of all pairs, then their sines.
    numbers: Vec<f32>,
}

impl Angles {
    fn table(&self, base: f64, half: usize, positions: usize) -> Arc<Table> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = table.base == base && table.half == half;
        if !fits || table.numbers.len() < positions * 2 * half {
            *table = Arc::new(Table::new(base, half, positions.next_power_of_two()));
        }
        table.clone()
    }
}

impl Table {
    fn new(base: f64, half: usize, positions: usize) -> Self {
        let pace = |pair: usize| base.powf(-(pair as f64) / half as f64);
        let paces: Vec<f64> = (0..half).map(pace).collect();
        let mut numbers = Vec::with_capacity(positions * 2 * half);
        for position in 0..positions {
            let angle = |pace: &f64| position as f64 * pace;
            numbers.extend(paces.iter().map(|pace| angle(pace).cos() as f32));
            numbers.extend(paces.iter().map(|pace| angle(pace).sin() as f32));
        }
        Self { base, half, numbers }
    }
}

impl Cpu {
    pub(super) fn rope_turn(
        &self,
        of: Attention,
        base: f64,
        places: &[u32],
        turn: Turn,
        qkv: ViewMut<'_>,
    ) {
        let (width, half) = (of.qkv_width(), of.head_width / 2);
        assert!(of.head_width.is_multiple_of(2), "rotary positions turn pairs");
        assert_eq!(qkv.len(), of.rows() * width, "rows of another width");
        assert_eq!(places.len(), of.sequence, "a place for each token of a sequence");
        if qkv.is_empty() || half == 0 {
            return;
        }
        let rows = rows(qkv.len(), width);
        let turned = (of.heads + of.kv_heads) * of.head_width;
        let last = places.iter().max().map_or(0, |last| *last as usize);
        let table = self.angles.table(base, half, last + 1);
        let qkv = Apart::new(qkv);
        self.pool.run_ranges(rows, LEAST.div_ceil(width), 1, |range| {
            for row in range {
                // SAFETY: rows are disjoint.
                let heads = unsafe { qkv.part(row * width..row * width + turned) };
                let position = places[row % of.sequence] as usize;
                let (cosines, sines) =
                    table.numbers[position * 2 * half..(position + 1) * 2 * half].split_at(half);
                turn_row(self.level, turn, cosines, sines, heads);
            }
        });
    }
}

kernel! {
    fn turn_row<V>(turn: Turn, cosines: &[f32], sines: &[f32], heads: Target<'_>) {
        let mut heads = heads;
        let half = cosines.len();
        let way = V::splat(match turn { Turn::There => 1.0, Turn::Back => -1.0 });
        for head in (0..heads.len()).step_by(2 * half) {
            for at in (0..half).step_by(WIDTH) {
                let (cosine, sine): (V, V) = (get(cosines, at), get::<V>(sines, at).times(way));
                let first: V = heads.part(head..head + half).get(at);
                let second: V = heads.part(head + half..head + 2 * half).get(at);
                let turned = first.times(cosine).minus(second.times(sine));
                heads.part(head..head + half).put(at, turned);
                let turned = second.times(cosine).plus(first.times(sine));
                heads.part(head + half..head + 2 * half).put(at, turned);
            }
        }
    }
}
