//! Every operation against the plain one in double precision: on all levels of instructions, in both
//! precisions, with sizes that fit no vector, on one to three threads.

mod attention;

use super::*;
use crate::random::{key, normal, uniform};
use crate::reference::Reference;

/// A tensor of an operation.
#[derive(Clone, Copy)]
enum Kind {
    /// As parameters are stored.
    Real(usize),
    /// As activations are stored.
    Activation(usize),
}
use Kind::{Activation as Act, Real};

/// Tensors on both devices.
type Tensors<'a> = &'a mut [Tensor];

fn devices() -> Vec<Cpu> {
    let mut all = Vec::new();
    for level in Level::all() {
        for precision in [Precision::F32, Precision::Bf16] {
            all.extend([1, 3].map(|threads| Cpu::with_level(threads, precision, level)));
        }
    }
    all.push(Cpu::new(2, Precision::F32));
    #[cfg(target_arch = "x86_64")]
    all.extend([1, 3].map(|threads| with_kernel(threads, bf16::Kernel::AmxEmulated)));
    all
}

/// One whose products of brain floats are made of other instructions than the best.
#[cfg(target_arch = "x86_64")]
fn with_kernel(threads: usize, kernel: bf16::Kernel) -> Cpu {
    Cpu { halves: Halves::of(kernel), ..Cpu::new(threads, Precision::Bf16) }
}

/// Numbers that both formats have.
fn numbers(seed: u64, elements: usize) -> Vec<f32> {
    let number = |i| half::bf16::from_f64(normal(key(seed, &[]), i)).to_f32();
    (0..elements as u64).map(number).collect()
}

fn tensors(device: &dyn Device, kinds: &[Kind]) -> Vec<Tensor> {
    let tensor = |(seed, kind): (u64, &Kind)| {
        let mut tensor = match kind {
            Real(elements) => device.real(*elements),
            Act(elements) => device.activation(*elements),
        };
        device.put(&numbers(seed, tensor.len()), tensor.view_mut());
        tensor
    };
    (0..).zip(kinds).map(tensor).collect()
}

fn fetched(device: &dyn Device, tensors: &[Tensor]) -> Vec<Vec<f32>> {
    let fetch = |tensor: &Tensor| {
        let mut numbers = vec![0.0; tensor.len()];
        device.fetch(tensor.view(), &mut numbers);
        numbers
    };
    tensors.iter().map(fetch).collect()
}

/// Runs an operation on both devices, and compares all tensors and what is returned. Twice here: it
/// must be the same to the last bit.
#[track_caller]
fn same(what: &str, kinds: &[Kind], operation: impl Fn(&dyn Device, Tensors<'_>) -> f64) {
    let reference = Reference::new();
    let mut expected = tensors(&reference, kinds);
    let expected_result = operation(&reference, &mut expected);
    let expected = fetched(&reference, &expected);
    for cpu in devices() {
        let run = || {
            let mut found = tensors(&cpu, kinds);
            let result = operation(&cpu, &mut found);
            (fetched(&cpu, &found), result)
        };
        let (found, result) = run();
        let (again, result_again) = run();
        assert!(again == found && result_again.to_bits() == result.to_bits(), "{what}: differs");
        let error = match cpu.precision {
            Precision::F32 => 2e-5,
            Precision::Bf16 => 3e-2,
        };
        let case = format!("{what} on {}", cpu.describe());
        let off = (result - expected_result).abs();
        assert!(
            off <= error * expected_result.abs().max(1.0),
            "{case}: {result} {expected_result}"
        );
        for (tensor, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // The largest number of a tensor says how exact its sums can be.
            let most = expected.iter().fold(1.0f32, |most, x| most.max(x.abs()));
            for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                let off = (found - expected).abs();
                assert!(
                    f64::from(off) <= error * f64::from(most) && found.is_finite(),
                    "{case}: number {at} of tensor {tensor} is {found}, not {expected}"
                );
            }
        }
    }
}

const LINEARS: [(usize, usize, usize); 8] = [
    (1, 1, 1),
    (1, 17, 3),
    (5, 1, 33),
    (7, 16, 1),
    (33, 31, 65),
    (64, 48, 32),
    (100, 70, 130),
    (130, 64, 200),
];

#[test]
fn linear() {
    for (rows, inputs, outputs) in LINEARS {
        let of = Linear { rows, inputs, outputs };
        let what = format!("{of:?}");
        let (x, w, y) = (Act(rows * inputs), Real(outputs * inputs), Act(rows * outputs));
        for with_bias in [false, true] {
            same(&what, &[x, w, Real(outputs), y], |device, t| {
                let (before, y) = t.split_at_mut(3);
                let bias = with_bias.then(|| before[2].view());
                device.linear(of, before[0].view(), before[1].view(), bias, y[0].view_mut());
                0.0
            });
        }
    }
}

#[test]
fn linear_backward() {
    for (rows, inputs, outputs) in LINEARS {
        let of = Linear { rows, inputs, outputs };
        let what = format!("{of:?}");
        let (x, w, y) = (Act(rows * inputs), Real(outputs * inputs), Act(rows * outputs));
        for add in [false, true] {
            for dx in [Act(rows * inputs), Real(rows * inputs)] {
                same(&what, &[y, w, dx], |device, t| {
                    let (before, dx) = t.split_at_mut(2);
                    let (dy, w) = (before[0].view(), before[1].view());
                    device.linear_back_input(of, dy, w, dx[0].view_mut(), add);
                    0.0
                });
            }
            same(&what, &[x, y, w, Real(outputs)], |device, t| {
                let (before, after) = t.split_at_mut(2);
                let (dw, db) = after.split_at_mut(1);
                let db = add.then(|| db[0].view_mut());
                let (x, dy) = (before[0].view(), before[1].view());
                device.linear_back_weight(of, x, dy, dw[0].view_mut(), db);
                0.0
            });
        }
    }
}

#[test]
fn norm() {
    for how in [Norm::Layer { epsilon: 1e-5 }, Norm::Rms { epsilon: 1e-6 }] {
        for (rows, width) in [(1, 1), (3, 5), (1, 16), (17, 33), (40, 128), (700, 50)] {
            let elements = rows * width;
            let what = format!("{how:?} of {rows} rows of {width}");
            let kinds = [Real(elements), Real(width), Real(width), Act(elements), Real(2 * rows)];
            for with_bias in [false, true] {
                same(&what, &kinds, |device, t| {
                    let [x, weight, bias, y, statistics] = t else { panic!() };
                    let bias = with_bias.then(|| bias.view());
                    let (y, statistics) = (y.view_mut(), statistics.view_mut());
                    device.norm(how, x.view(), weight.view(), bias, y, statistics);
                    0.0
                });
                let kinds = [
                    Real(elements),
                    Real(width),
                    Real(2 * rows),
                    Act(elements),
                    Real(elements),
                    Real(width),
                    Real(width),
                ];
                same(&what, &kinds, |device, t| {
                    let [x, weight, statistics, dy, dx, dweight, dbias] = t else { panic!() };
                    let saved = NormSaved {
                        x: x.view(),
                        weight: weight.view(),
                        statistics: statistics.view(),
                    };
                    let bias = with_bias.then(|| dbias.view_mut());
                    let grads = NormGrads { weight: dweight.view_mut(), bias };
                    device.norm_back(how, saved, dy.view(), dx.view_mut(), grads);
                    0.0
                });
            }
        }
    }
}

const LENGTHS: [usize; 6] = [1, 15, 16, 100, 4099, 33_000];

#[test]
fn activations() {
    for elements in LENGTHS {
        let what = format!("{elements}");
        same(&what, &[Act(elements), Act(elements)], |device, t| {
            let [x, y] = t else { panic!() };
            device.gelu(x.view(), y.view_mut());
            0.0
        });
        same(&what, &[Act(elements), Act(elements)], |device, t| {
            let [x, dy] = t else { panic!() };
            device.gelu_back(x.view(), dy.view_mut());
            0.0
        });
    }
    for (rows, width) in [(1, 1), (3, 16), (5, 33), (700, 50)] {
        let (one, two) = (rows * width, 2 * rows * width);
        let what = format!("{rows} rows of {width}");
        same(&what, &[Act(two), Act(one)], |device, t| {
            let [x, y] = t else { panic!() };
            device.swiglu(width, x.view(), y.view_mut());
            0.0
        });
        same(&what, &[Act(two), Act(one), Act(two)], |device, t| {
            let [x, dy, dx] = t else { panic!() };
            device.swiglu_back(width, x.view(), dy.view(), dx.view_mut());
            0.0
        });
    }
}

fn tokens(seed: u64, count: usize, kinds: usize) -> Vec<u32> {
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
            all.extend([Real(3 * rows * ranks), Real(2 * rows)]);
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

#[test]
fn sums_copies_and_masks() {
    for elements in LENGTHS {
        let what = format!("{elements}");
        for (x, y) in [(Real(elements), Act(elements)), (Act(elements), Real(elements))] {
            same(&what, &[x, y], |device, t| {
                let [x, y] = t else { panic!() };
                device.add(x.view(), y.view_mut());
                device.square_sum(y.view())
            });
            same(&what, &[x, y, x], |device, t| {
                let [x, y, z] = t else { panic!() };
                device.sum(x.view(), y.view(), z.view_mut());
                0.0
            });
            same(&what, &[x, y], |device, t| {
                let [x, y] = t else { panic!() };
                device.copy(x.view(), y.view_mut());
                device.scale(0.75, x.view_mut());
                0.0
            });
            same(&what, &[x, y], |device, t| {
                let [x, y] = t else { panic!() };
                device.clear(x.view_mut());
                let mask = Mask { share: 0.2, key: key(9, &[]), first: 77 };
                device.dropout(mask, y.view_mut());
                0.0
            });
        }
    }
}

#[test]
fn columns() {
    for (rows, wide, columns) in [(1, 1, 0..1), (3, 40, 7..39), (700, 50, 0..17), (9, 20, 4..4)] {
        let (whole, part) = (rows * wide, rows * columns.len());
        let what = format!("{columns:?} of {rows} rows of {wide}");
        for kinds in [[Real(whole), Act(part)], [Act(whole), Act(part)], [Act(whole), Real(part)]] {
            same(&what, &kinds, |device, t| {
                let [whole, part] = t else { panic!() };
                device.take_columns(whole.view(), wide, columns.clone(), part.view_mut());
                0.0
            });
            same(&what, &kinds, |device, t| {
                let [whole, part] = t else { panic!() };
                device.put_columns(part.view(), whole.view_mut(), wide, columns.clone());
                device.fill(-2.5, part.view_mut());
                0.0
            });
        }
    }
}

#[test]
fn optimizers() {
    for elements in LENGTHS {
        let what = format!("{elements}");
        same(&what, &[Real(elements); 4], |device, t| {
            let [g, m, v, p] = t else { panic!() };
            // Squares have no sign.
            let mut squares = numbers(2, elements);
            squares.iter_mut().for_each(|x| *x = *x * *x);
            device.put(&squares, v.view_mut());
            let how = AdamW {
                rate: 0.1,
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-8,
                decay: 0.1,
                step: 3,
                scale: 0.5,
            };
            device.adamw(&how, g.view(), [m.view_mut(), v.view_mut()], p.view_mut());
            0.0
        });
        same(&what, &[Real(elements); 3], |device, t| {
            let [g, m, p] = t else { panic!() };
            let how = Sgd { rate: 0.1, momentum: 0.9, decay: 0.01, scale: 0.5 };
            device.sgd(&how, g.view(), m.view_mut(), p.view_mut());
            0.0
        });
    }
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    let cpu = Cpu::new(1, Precision::F32);
    let mut logits = Tensor::zeroed(40, Format::F32);
    logits.view_mut().host::<f32>()[17] = f32::NAN;
    assert!(cpu.cross_entropy(&[0, 3], logits.view_mut(), None).is_nan());
    assert!(cpu.square_sum(logits.view()).is_nan());
}

#[test]
#[should_panic(expected = "tensors of different lengths")]
fn wrong_lengths_are_refused() {
    let cpu = Cpu::new(2, Precision::F32);
    cpu.add(Tensor::zeroed(3, Format::F32).view(), Tensor::zeroed(4, Format::F32).view_mut());
}

#[test]
fn it_says_what_it_computes_with() {
    let text = Cpu::with_level(2, Precision::Bf16, Level::Plain).describe();
    assert_eq!(text, "2 threads, bf16 on portable");
    assert_eq!(serde_json::to_string(&Precision::Bf16).unwrap(), "\"bf16\"");
}
