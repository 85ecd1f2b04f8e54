use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::super::super::gpu::{self, fake};
use super::super::super::{Effort, GpuChoice};
use super::*;

fn settings(gpu_sizes: Vec<usize>) -> Settings {
    let effort = Effort { repetitions: 2, repetition: Duration::ZERO, case: Duration::ZERO };
    Settings { gpu_sizes, effort, ..Settings::default() }
}

/// The rows and the note of a device that fails after so many products.
fn measured(products: i64) -> (Vec<Row>, Option<String>) {
    let (device, blas) = fake::device(products);
    let stop = AtomicBool::new(false);
    let mut report = |_: super::super::Progress<'_>| ();
    let mut cases = Cases::new(&stop, &mut report);
    let found = Products { blas, device }.measure(&mut cases, &settings(vec![4, 8]));
    (cases.finish(), found.err().map(|error| error.to_string()))
}

#[test]
fn every_type_and_size_has_a_row() {
    let (rows, note) = measured(i64::MAX);
    assert_eq!((rows.len(), note), (10, None));
    assert_eq!((rows[0].what.as_str(), rows[9].what.as_str()), ("f64 4", "bf16 8"));
    assert!(rows.iter().all(|row| row.device == "Fake 3000" && row.device_number == Some(1)));
    assert_eq!(fake::allocated(), 0);
}

#[test]
fn a_device_that_fails_keeps_its_rows_and_says_why() {
    // Two that warm up and two that are timed a row.
    let (rows, note) = measured(9);
    assert_eq!(rows.len(), 2);
    assert_eq!(note.as_deref(), Some("a product of f32 on GPU 1: the library says 13"));
    assert_eq!(fake::allocated(), 0);
}

#[test]
fn a_matrix_has_the_bytes_of_its_elements() {
    for number in Number::ALL {
        assert_eq!(matrix(number, 300, 0).len(), 300 * 300 * number.bytes());
    }
    let one = matrix(Number::Bf16, 1, 0);
    let value = f64::from(half::bf16::from_ne_bytes([one[0], one[1]]));
    assert!((value - noise(0)).abs() < 0.01);
}

/// The elements of a matrix.
fn numbers(number: Number, bytes: &[u8]) -> Vec<f64> {
    let read = |element: &[u8]| match number {
        Number::F64 => f64::from_ne_bytes(element.try_into().unwrap()),
        Number::F32 | Number::Tf32 => f32::from_ne_bytes(element.try_into().unwrap()).into(),
        Number::F16 => half::f16::from_ne_bytes(element.try_into().unwrap()).into(),
        Number::Bf16 => half::bf16::from_ne_bytes(element.try_into().unwrap()).into(),
    };
    bytes.chunks_exact(number.bytes()).map(read).collect()
}

/// On a machine with a GPU.
#[test]
fn a_product_on_a_gpu_is_the_product() {
    let products = match gpu::open(GpuChoice::First) {
        Ok(Some(device)) => Products::open(device).unwrap(),
        found => {
            eprintln!("no GPU: {:?}", found.err());
            return;
        }
    };
    let (size, device) = (96, &products.device);
    for number in products.numbers() {
        let (left, right) = (matrix(number, size, 0), matrix(number, size, DIFFERENT));
        let mut result = vec![0; left.len()];
        let on = [(); 3].map(|()| device.memory(left.len()).unwrap());
        device.put(&on[0], &left).unwrap();
        device.put(&on[1], &right).unwrap();
        products.blas.product(device, number, size, [&on[0], &on[1], &on[2]]).unwrap();
        device.fetch(&mut result, &on[2]).unwrap();
        let [left, right, result] = [left, right, result].map(|bytes| numbers(number, &bytes));
        let error = match number {
            Number::F64 => 1e-12,
            Number::F32 => 1e-4,
            Number::Tf32 | Number::F16 => 0.03,
            Number::Bf16 => 0.2,
        };
        for row in 0..size {
            for column in 0..size {
                let step = |k: usize| left[k * size + row] * right[column * size + k];
                let expected: f64 = (0..size).map(step).sum();
                let found = result[column * size + row];
                assert!((found - expected).abs() < error, "{}: {found} {expected}", number.name());
            }
        }
    }
}
