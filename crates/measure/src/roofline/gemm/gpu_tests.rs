use super::super::super::TimingOptions;
use super::super::super::gpu::{self, fake};
use super::*;

fn settings(gpu_sizes: Vec<usize>) -> RooflineSettings {
    let timing = TimingOptions::minimal();
    RooflineSettings { gpu_sizes, timing, ..super::super::settings() }
}

/// Rows and error of a device that fails after `gemm_calls` calls.
fn measured(gemm_calls: i64) -> (Vec<RooflineRow>, Option<String>) {
    let (device, blas) = fake::device(gemm_calls);
    let mut report = |_: super::super::CaseProgress<'_>| ();
    let mut cases = Cases::new(&mut report);
    let found = GpuGemm { blas, device }.measure(&mut cases, &settings(vec![4, 8]), &GemmType::ALL);
    (cases.into_rows(), found.err().map(|error| error.to_string()))
}

#[test]
fn every_type_and_size_has_a_row() {
    let (rows, note) = measured(i64::MAX);
    assert_eq!((rows.len(), note), (10, None));
    assert_eq!((rows[0].case.as_str(), rows[9].case.as_str()), ("f64 4", "bf16 8"));
    assert!(rows.iter().all(|row| row.device == "Fake 3000" && row.device_index == Some(1)));
    assert_eq!(fake::allocated(), 0);
}

#[test]
fn a_failing_device_keeps_its_rows_and_reports_the_error() {
    // Each row takes two warm-up and two timed calls.
    let (rows, note) = measured(9);
    assert_eq!(rows.len(), 2);
    assert_eq!(note.as_deref(), Some("GEMM of f32 on GPU 1: library status 13"));
    assert_eq!(fake::allocated(), 0);
}

#[test]
fn matrix_bytes_match_the_element_type() {
    for dtype in GemmType::ALL {
        assert_eq!(matrix(dtype, 300, 0).len(), 300 * 300 * dtype.bytes());
    }
    let one = matrix(GemmType::Bf16, 1, 0);
    let value = f64::from(half::bf16::from_ne_bytes([one[0], one[1]]));
    assert!((value - pseudo_random(0)).abs() < 0.01);
}

/// Decodes the elements of a matrix.
fn dtypes(dtype: GemmType, bytes: &[u8]) -> Vec<f64> {
    let read = |element: &[u8]| match dtype {
        GemmType::F64 => f64::from_ne_bytes(element.try_into().unwrap()),
        GemmType::F32 | GemmType::Tf32 => f32::from_ne_bytes(element.try_into().unwrap()).into(),
        GemmType::F16 => half::f16::from_ne_bytes(element.try_into().unwrap()).into(),
        GemmType::Bf16 => half::bf16::from_ne_bytes(element.try_into().unwrap()).into(),
    };
    bytes.chunks_exact(dtype.bytes()).map(read).collect()
}

/// Needs a GPU.
#[test]
fn gpu_gemm_matches_the_reference() {
    let gemm_calls = match gpu::open() {
        Ok(Some(device)) => GpuGemm::open(device).unwrap(),
        found => {
            eprintln!("no GPU: {:?}", found.err());
            return;
        }
    };
    let (size, device) = (96, &gemm_calls.device);
    for dtype in gemm_calls.dtypes() {
        let (left, right) = (matrix(dtype, size, 0), matrix(dtype, size, PATTERN_ELEMENTS));
        let mut result = vec![0; left.len()];
        let on = [(); 3].map(|()| device.alloc(left.len()).unwrap());
        device.copy_from_host(&on[0], &left).unwrap();
        device.copy_from_host(&on[1], &right).unwrap();
        gemm_calls.blas.gemm(device, dtype, size, [&on[0], &on[1], &on[2]]).unwrap();
        device.copy_to_host(&mut result, &on[2]).unwrap();
        let [left, right, result] = [left, right, result].map(|bytes| dtypes(dtype, &bytes));
        let error = match dtype {
            GemmType::F64 => 1e-12,
            GemmType::F32 => 1e-4,
            GemmType::Tf32 | GemmType::F16 => 0.03,
            GemmType::Bf16 => 0.2,
        };
        for row in 0..size {
            for column in 0..size {
                let step = |k: usize| left[k * size + row] * right[column * size + k];
                let expected: f64 = (0..size).map(step).sum();
                let found = result[column * size + row];
                assert!((found - expected).abs() < error, "{}: {found} {expected}", dtype.name());
            }
        }
    }
}
