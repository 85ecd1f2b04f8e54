//! Token and position embeddings, and cross-entropy.

use super::*;
use regatta_device::ops::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyPartialsArgs, EmbeddingBackwardArgs,
    PositionBackwardArgs,
};
use regatta_device::random::uniform;

pub(super) fn random_tokens(seed: u64, count: usize, vocab: usize) -> Vec<u32> {
    (0..count as u64).map(|i| (uniform(key(seed, &[]), i) * vocab as f64) as u32).collect()
}

#[test]
fn embedding_matches_reference() {
    for (rows, dim, vocab) in [(1, 1, 1), (15, 17, 9), (256, 100, 65)] {
        let ids = random_tokens(1, rows, vocab);
        // The full table, and a shard of it.
        for local in [0..vocab, vocab / 3..vocab / 2 + 1] {
            for y in [Master(rows * dim), Act(rows * dim)] {
                let what = format!("{rows} rows of {dim}, tokens {local:?}");
                let specs = [Master(local.len() * dim), y];
                check_reference(&what, specs, |device, [table, y]| {
                    let ids = tokens(device, &ids);
                    device.embedding(ids.view(), local.start, table.view(), y)
                });
                check_reference(&what, specs, |device, [table, y]| {
                    let (ids, first) = (tokens(device, &ids), local.start);
                    let (tokens, dy, dtable) = (ids.view(), y.view(), table);
                    let args = EmbeddingBackwardArgs { tokens, first, dy, dtable };
                    device.embedding_backward(args)
                });
            }
        }
    }
}

#[test]
fn position_embedding_matches_reference() {
    for (rows, seq_len, dim) in [(1, 1, 1), (15, 5, 17), (256, 64, 100), (9, 9, 33)] {
        let positions = random_tokens(3, seq_len, 70);
        for y in [Master(rows * dim), Act(rows * dim)] {
            let what = format!("{rows} rows of {dim}");
            check_reference(&what, [Master(70 * dim), y], |device, [table, y]| {
                let positions = tokens(device, &positions);
                device.add_position_embedding(dim, positions.view(), table.view(), y)
            });
            check_reference(&what, [Master(70 * dim), y], |device, [dtable, dy]| {
                let positions = tokens(device, &positions);
                let (positions, dy) = (positions.view(), dy.view());
                let args = PositionBackwardArgs { dim, positions, dy, dtable };
                device.position_embedding_backward(args);
            });
        }
    }
}

#[test]
fn cross_entropy_matches_reference() {
    for (rows, vocab) in [(1, 1), (3, 16), (5, 65), (700, 33), (2, 1000)] {
        let targets = random_tokens(2, rows, vocab);
        for grad_scale in [None, Some(0.125)] {
            for logits in [Act(rows * vocab), Master(rows * vocab)] {
                let what = format!("{rows} rows of {vocab}, {grad_scale:?}");
                check_result(&what, &[logits], |device, t| {
                    let (targets, mut loss) = (tokens(device, &targets), scalar(device, 1.5));
                    device.cross_entropy(CrossEntropyArgs {
                        targets: targets.view(),
                        vocab,
                        logits: t[0].view_mut(),
                        grad_scale,
                        loss: loss.view_mut(),
                    });
                    read_scalar(device, &loss)
                });
            }
        }
    }
}

#[test]
fn vocab_parallel_cross_entropy_matches_reference() {
    for (rows, bounds) in [(1, vec![0, 1]), (3, vec![0, 16, 33]), (700, vec![0, 1, 20, 65])] {
        let vocab = bounds[bounds.len() - 1];
        let targets = random_tokens(2, rows, vocab);
        let ranks = bounds.len() - 1;
        let lens = || bounds.windows(2).map(|bounds| rows * (bounds[1] - bounds[0]));
        for logits in [lens().map(Act).collect::<Vec<_>>(), lens().map(Master).collect()] {
            let mut specs = logits;
            specs.extend([Master(3 * rows * ranks), Master(3 * rows)]);
            let what = format!("{rows} rows split at {bounds:?}");
            check_result(&what, &specs, |device, t| {
                let (targets, mut loss) = (tokens(device, &targets), scalar(device, 1.5));
                let (logits, others) = t.split_at_mut(ranks);
                let [partials, merged] = others else { unreachable!() };
                for (rank, logits) in logits.iter().enumerate() {
                    let mut partials = partials.view_mut();
                    device.cross_entropy_partials(CrossEntropyPartialsArgs {
                        targets: targets.view(),
                        vocab: bounds[rank]..bounds[rank + 1],
                        logits: logits.view(),
                        partials: partials.slice(3 * rows * rank..3 * rows * (rank + 1)),
                    });
                }
                let (to, sum) = (merged.view_mut(), Some(loss.view_mut()));
                device.merge_cross_entropy_partials(partials.view(), to, sum);
                for (rank, logits) in logits.iter_mut().enumerate() {
                    device.cross_entropy_backward(CrossEntropyBackwardArgs {
                        targets: targets.view(),
                        vocab: bounds[rank]..bounds[rank + 1],
                        merged: merged.view(),
                        logits: logits.view_mut(),
                        grad_scale: 0.125,
                    });
                }
                read_scalar(device, &loss)
            });
        }
    }
}

/// Bits of the loss of one or two calls that add to the same scalar.
fn loss_bits(cpu: &Cpu, rows: &[u32], grad_scale: Option<f64>, calls: usize) -> u64 {
    let vocab = 65;
    let (targets, mut loss) = (tokens(cpu, rows), scalar(cpu, 0.0));
    for _ in 0..calls {
        let mut logits = tensors(cpu, &[Master(rows.len() * vocab)]).remove(0);
        let (targets, logits, loss) = (targets.view(), logits.view_mut(), loss.view_mut());
        cpu.cross_entropy(CrossEntropyArgs { targets, vocab, logits, grad_scale, loss });
    }
    read_scalar(cpu, &loss).to_bits()
}

#[test]
fn losses_are_added_and_do_not_depend_on_the_gradient_scale() {
    let targets = random_tokens(2, 50, 65);
    for cpu in devices() {
        let once = loss_bits(&cpu, &targets, None, 1);
        assert_eq!(loss_bits(&cpu, &targets, Some(0.3), 1), once, "{}", cpu.describe());
        let twice = f64::from_bits(loss_bits(&cpu, &targets, None, 2));
        assert_eq!(twice, 2.0 * f64::from_bits(once), "{}", cpu.describe());
    }
}
