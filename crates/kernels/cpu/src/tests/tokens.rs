//! Where tokens go in and come out: embeddings, positions, the loss.

use super::*;
use regatta_device::random::uniform;

pub(super) fn tokens(seed: u64, count: usize, kinds: usize) -> Vec<u32> {
    (0..count as u64).map(|i| (uniform(key(seed, &[]), i) * kinds as f64) as u32).collect()
}

#[test]
fn embedding() {
    for (rows, width, kinds) in [(1, 1, 1), (15, 17, 9), (256, 100, 65)] {
        let tokens = tokens(1, rows, kinds);
        // The whole table, and a part of it.
        for part in [0..kinds, kinds / 3..kinds / 2 + 1] {
            for y in [Real(rows * width), Act(rows * width)] {
                let what = format!("{rows} rows of {width}, tokens {part:?}");
                let all = [Real(part.len() * width), y];
                same(&what, &all, |device, t| {
                    let [table, y] = t else { panic!() };
                    device.embed(&tokens, part.start, table.view(), y.view_mut());
                    0.0
                });
                same(&what, &all, |device, t| {
                    let [table, y] = t else { panic!() };
                    device.embed_back(&tokens, part.start, y.view(), table.view_mut());
                    0.0
                });
            }
        }
    }
}

#[test]
fn positions() {
    for (rows, places, width) in [(1, 1, 1), (15, 5, 17), (256, 64, 100), (9, 9, 33)] {
        let places = tokens(3, places, 70);
        for y in [Real(rows * width), Act(rows * width)] {
            let what = format!("{rows} rows of {width}");
            same(&what, &[Real(70 * width), y], |device, t| {
                let [positions, y] = t else { panic!() };
                device.add_positions(width, &places, positions.view(), y.view_mut());
                0.0
            });
            same(&what, &[Real(70 * width), y], |device, t| {
                let [positions, dy] = t else { panic!() };
                device.add_positions_back(width, &places, dy.view(), positions.view_mut());
                0.0
            });
        }
    }
}

#[test]
fn cross_entropy() {
    for (rows, kinds) in [(1, 1), (3, 16), (5, 65), (700, 33), (2, 1000)] {
        let targets = tokens(2, rows, kinds);
        for scale in [None, Some(0.125)] {
            for logits in [Act(rows * kinds), Real(rows * kinds)] {
                let what = format!("{rows} rows of {kinds}, {scale:?}");
                same(&what, &[logits], |device, t| {
                    device.cross_entropy(&targets, t[0].view_mut(), scale)
                });
            }
        }
    }
}

/// Columns that several ranks have: the loss of the whole, and the gradients of each part.
#[test]
fn cross_entropy_of_parts() {
    for (rows, cuts) in [(1, vec![0, 1]), (3, vec![0, 16, 33]), (700, vec![0, 1, 20, 65])] {
        let kinds = cuts[cuts.len() - 1];
        let targets = tokens(2, rows, kinds);
        let ranks = cuts.len() - 1;
        let each = || cuts.windows(2).map(|cut| rows * (cut[1] - cut[0]));
        for logits in [each().map(Act).collect::<Vec<_>>(), each().map(Real).collect()] {
            let mut all = logits;
            all.extend([Real(3 * rows * ranks), Real(3 * rows)]);
            same(&format!("{rows} rows cut at {cuts:?}"), &all, |device, t| {
                let (logits, sums) = t.split_at_mut(ranks);
                let [parts, whole] = sums else { panic!() };
                for (rank, logits) in logits.iter().enumerate() {
                    let mut parts = parts.view_mut();
                    let here = parts.part(3 * rows * rank..3 * rows * (rank + 1));
                    device.entropy_part(&targets, cuts[rank], logits.view(), here);
                }
                let loss = device.entropy_whole(parts.view(), whole.view_mut());
                for (rank, logits) in logits.iter_mut().enumerate() {
                    let (whole, logits) = (whole.view(), logits.view_mut());
                    device.entropy_back(&targets, cuts[rank], whole, logits, 0.125);
                }
                loss
            });
        }
    }
}
