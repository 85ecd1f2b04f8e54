//! Copies between the host and a GPU, and on it.

use super::super::gpu::{Device, GpuError, Memory};
use super::super::timing::time;
use super::super::{Cases, Row};
use super::{COUNTED, Settings, row, sized};

/// To the device, from it, and on it.
pub(super) const WAYS: usize = 3;

/// Measures copies of all sizes.
pub(super) fn measure(
    device: &Device,
    cases: &mut Cases<'_>,
    settings: &Settings,
) -> Result<(), GpuError> {
    let pinned = |bytes| device.pinned(bytes);
    let on_it = |bytes| device.memory(bytes);
    type Place<'a> = &'a dyn Fn(usize) -> Result<Memory, GpuError>;
    let ways: [(&str, Place<'_>, Place<'_>); WAYS] = [
        ("host to device", &pinned, &on_it),
        ("device to host", &on_it, &pinned),
        ("device to device", &on_it, &on_it),
    ];
    for &bytes in &settings.gpu_sizes {
        for (way, from, to) in &ways {
            let what = sized(way, bytes);
            cases.case(&what, |stop| {
                let (from, to) = (from(bytes)?, to(bytes)?);
                device.put(&from, &vec![1; bytes])?;
                let timed = time(&settings.effort, stop, |calls| {
                    device.time(calls, || device.copy(&to, &from))
                })?;
                Ok::<_, GpuError>(timed.map(|timed| Row {
                    device: device.name().to_owned(),
                    device_number: Some(device.number()),
                    notes: vec![COUNTED.to_owned(), "host memory is pinned".to_owned()],
                    ..row(&timed, what.clone(), bytes)
                }))
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::super::super::gpu::{self, fake};
    use super::super::super::{Effort, GpuChoice};
    use super::*;

    #[test]
    fn copies_go_all_ways() {
        let (device, _blas) = fake::device(0);
        let stop = AtomicBool::new(false);
        let mut report = |_: super::super::Progress<'_>| ();
        let mut cases = Cases::new(&stop, &mut report);
        let effort = Effort { repetitions: 2, repetition: Duration::ZERO, case: Duration::ZERO };
        let settings = Settings { gpu_sizes: vec![4096], effort, ..Settings::default() };
        measure(&device, &mut cases, &settings).unwrap();
        let rows = cases.finish();
        let whats: Vec<&str> = rows.iter().map(|row| row.what.as_str()).collect();
        let ways = ["host to device 4 KiB", "device to host 4 KiB", "device to device 4 KiB"];
        assert_eq!(whats, ways);
        assert!(rows.iter().all(|row| row.device == "Fake 3000" && row.median > 0.0));
        assert_eq!(fake::allocated(), 0);
    }

    /// On a machine with a GPU.
    #[test]
    fn what_is_copied_arrives() {
        let device = match gpu::open(GpuChoice::First) {
            Ok(Some(device)) => device,
            found => {
                eprintln!("no GPU: {:?}", found.err());
                return;
            }
        };
        let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
        let [pinned, first, second, back] = [true, false, false, true].map(|host| {
            let place = if host { device.pinned(bytes.len()) } else { device.memory(bytes.len()) };
            place.unwrap()
        });
        device.put(&pinned, &bytes).unwrap();
        device.copy(&first, &pinned).unwrap();
        device.copy(&second, &first).unwrap();
        device.copy(&back, &second).unwrap();
        let mut found = vec![0; bytes.len()];
        device.fetch(&mut found, &back).unwrap();
        assert_eq!(found, bytes);
    }
}
