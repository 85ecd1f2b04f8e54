//! Slice one by one: activations, sums, columns, optimizers.

use super::*;

const LENGTHS: [usize; 6] = [1, 15, 16, 100, 4099, 33_000];

#[test]
fn activations() {
    for elements in LENGTHS {
        let what = format!("{elements}");
        same(&what, &[Act(elements), Act(elements)], |device, t| {
            let [x, y] = t else { panic!() };
            device.gelu(x.view_mut(), y.view_mut());
            0.0
        });
        same(&what, &[Act(elements), Act(elements)], |device, t| {
            let [slopes, dy] = t else { panic!() };
            device.gelu_back(slopes.view(), dy.view_mut());
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
                let mask = DropoutMask { share: 0.2, key: key(9, &[]), first: 77 };
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
