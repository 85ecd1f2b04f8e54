//! The loss, of whole rows and of some of their columns.

use crate::device::{EntropyPart, merge_entropies};

pub fn cross_entropy(targets: &[u32], logits: &mut [f64], scale: Option<f64>) -> f64 {
    let kinds = logits.len() / targets.len();
    let mut sum = 0.0;
    for (target, logits) in targets.iter().zip(logits.chunks_exact_mut(kinds)) {
        let target = *target as usize;
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = logits.iter().map(|x| (x - most).exp()).sum();
        sum += most + total.ln() - logits[target];
        let Some(scale) = scale else { continue };
        logits.iter_mut().for_each(|x| *x = (*x - most).exp() / total * scale);
        logits[target] -= scale;
    }
    sum
}

/// The column of a target, if it is here.
fn column(target: u32, first: usize, columns: usize) -> Option<usize> {
    (target as usize).checked_sub(first).filter(|column| *column < columns)
}

pub fn part(targets: &[u32], first: usize, logits: &[f64], parts: &mut [f64]) {
    let columns = logits.len() / targets.len();
    assert_eq!(parts.len(), 3 * targets.len());
    for (row, target) in targets.iter().enumerate() {
        let logits = &logits[row * columns..(row + 1) * columns];
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = logits.iter().map(|x| (x - most).exp()).sum();
        let wanted = column(*target, first, columns).map_or(0.0, |column| logits[column]);
        parts[3 * row..3 * row + 3].copy_from_slice(&[most, sum, wanted]);
    }
}

pub fn whole(parts: &[f64], whole: &mut [f64]) -> f64 {
    let rows = whole.len() / 3;
    assert!(parts.len().is_multiple_of(3 * rows));
    let mut loss = 0.0;
    for row in 0..rows {
        let here = parts
            .chunks_exact(3 * rows)
            .map(|part| EntropyPart::from([part[3 * row], part[3 * row + 1], part[3 * row + 2]]));
        let merged = merge_entropies(here);
        whole[3 * row..3 * row + 3].copy_from_slice(&[merged.most, merged.sum, merged.wanted]);
        loss += merged.loss();
    }
    loss
}

pub fn back(targets: &[u32], first: usize, whole: &[f64], logits: &mut [f64], scale: f64) {
    let columns = logits.len() / targets.len();
    assert_eq!(whole.len(), 3 * targets.len());
    for (row, target) in targets.iter().enumerate() {
        let logits = &mut logits[row * columns..(row + 1) * columns];
        let (most, sum) = (whole[3 * row], whole[3 * row + 1]);
        logits.iter_mut().for_each(|x| *x = (*x - most).exp() / sum * scale);
        if let Some(column) = column(*target, first, columns) {
            logits[column] -= scale;
        }
    }
}
