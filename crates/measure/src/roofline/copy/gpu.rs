//! Copies between host and GPU, and on the GPU.

use regatta_model::bench::RateTest;

use super::super::gpu::{GpuBuffer, GpuError, GpuResult, RooflineGpu};
use super::super::timing::time;
use super::super::{Cases, RooflineRow, RooflineSettings};
use super::{COUNTED_ONCE, case_name, row};

/// Host to device, device to host, device to device.
pub(super) const CASES: usize = 3;

/// Measures copies of all sizes. Returns what each row is a test of.
pub fn measure(
    device: &RooflineGpu,
    cases: &mut Cases<'_>,
    settings: &RooflineSettings,
) -> GpuResult<Vec<RateTest>> {
    let pinned = |bytes| device.alloc_pinned(bytes);
    let on_device = |bytes| device.alloc(bytes);
    type Alloc<'a> = &'a dyn Fn(usize) -> GpuResult<GpuBuffer>;
    let directions: [(&str, RateTest, Alloc<'_>, Alloc<'_>); CASES] = [
        ("host to device", RateTest::HostToDevice, &pinned, &on_device),
        ("device to host", RateTest::DeviceToHost, &on_device, &pinned),
        ("device to device", RateTest::Copy, &on_device, &on_device),
    ];
    let mut tests = Vec::new();
    for &bytes in &settings.gpu_sizes {
        for (direction, test, from, to) in &directions {
            let what = case_name(direction, bytes);
            cases.case(&what, || {
                let (from, to) = (from(bytes)?, to(bytes)?);
                device.copy_from_host(&from, &vec![1; bytes])?;
                let timed =
                    time(&settings.timing, |calls| device.time(calls, || device.copy(&to, &from)))?;
                Ok::<_, GpuError>(RooflineRow {
                    device: device.name().to_owned(),
                    device_index: Some(device.index()),
                    notes: vec![COUNTED_ONCE.to_owned(), "host memory is pinned".to_owned()],
                    ..row(&timed, what.clone(), bytes)
                })
            })?;
            tests.push(*test);
        }
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::super::super::TimingOptions;
    use super::super::super::gpu::{self, fake};
    use super::*;

    #[test]
    fn copies_cover_all_directions() {
        let (device, _blas) = fake::device(0);
        let mut report = |_: super::super::CaseProgress<'_>| ();
        let mut cases = Cases::new(&mut report);
        let timing = TimingOptions::minimal();
        let settings =
            RooflineSettings { gpu_sizes: vec![4096], timing, ..super::super::settings() };
        let tests = measure(&device, &mut cases, &settings).unwrap();
        assert_eq!(tests, [RateTest::HostToDevice, RateTest::DeviceToHost, RateTest::Copy]);
        let rows = cases.into_rows();
        let names: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        let directions = ["host to device 4 KiB", "device to host 4 KiB", "device to device 4 KiB"];
        assert_eq!(names, directions);
        assert!(rows.iter().all(|row| row.device == "Fake 3000" && row.median > 0.0));
        assert_eq!(fake::allocated(), 0);
    }

    /// Needs a GPU.
    #[test]
    fn copied_bytes_arrive_unchanged() {
        let device = match gpu::open() {
            Ok(Some(device)) => device,
            found => {
                eprintln!("no GPU: {:?}", found.err());
                return;
            }
        };
        let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
        let [pinned, back] = [(); 2].map(|()| device.alloc_pinned(bytes.len()).unwrap());
        let [first, second] = [(); 2].map(|()| device.alloc(bytes.len()).unwrap());
        device.copy_from_host(&pinned, &bytes).unwrap();
        device.copy(&first, &pinned).unwrap();
        device.copy(&second, &first).unwrap();
        device.copy(&back, &second).unwrap();
        let mut found = vec![0; bytes.len()];
        device.copy_to_host(&mut found, &back).unwrap();
        assert_eq!(found, bytes);
    }
}
