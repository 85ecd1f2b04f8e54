//! Copy and triad in host memory.

use std::hint::black_box;

use super::super::threads::{ThreadKernel, time_threads};
use super::super::{Cases, Result, RooflineSettings, threads_text};
use super::{COUNTED_ONCE, RooflineRow, case_name, row};

/// Copy and triad.
pub(super) const CASES: usize = 2;

/// Working sets of this size are expected to exceed all caches.
const MEMORY_BOUND_BYTES: usize = 64 << 20;

const ELEMENT: usize = size_of::<f64>();

/// Measures both kernels at all sizes and thread counts.
pub fn measure(
    cases: &mut Cases<'_>,
    settings: &RooflineSettings,
    thread_counts: &[usize],
) -> Result {
    for &bytes in &settings.sizes {
        for &threads in thread_counts {
            for kernel in &KERNELS {
                let name = format!("{}, {}", case_name(kernel.name, bytes), threads_text(threads));
                cases.case(&name, || {
                    let parts = elements_per_thread(bytes, threads);
                    let mut parts: Vec<_> =
                        parts.map(|part| KernelPart::new(kernel, part)).collect();
                    let counted = kernel.counted_arrays * (bytes / ELEMENT * ELEMENT);
                    let used = kernel.arrays * bytes;
                    let notes = notes_for(kernel.counted, used, last_level_cache());
                    let samples = time_threads(&mut parts, &settings.timing)?;
                    Ok(RooflineRow { notes, ..row(&samples, name.clone(), counted) })
                })?;
            }
        }
    }
    Ok(())
}

struct MemoryKernel {
    name: &'static str,
    /// Arrays in memory.
    arrays: usize,
    /// Arrays that count for the bandwidth.
    counted_arrays: usize,
    /// Which bytes are counted.
    counted: &'static str,
    /// Writes the first array.
    run: fn(&mut [Vec<f64>]),
}

const KERNELS: [MemoryKernel; CASES] = [
    MemoryKernel { name: "copy", arrays: 2, counted_arrays: 1, counted: COUNTED_ONCE, run: copy },
    MemoryKernel {
        name: "triad",
        arrays: 3,
        counted_arrays: 3,
        counted: "triad counts the bytes of all three arrays",
        run: triad,
    },
];

fn copy(arrays: &mut [Vec<f64>]) {
    let [to, from] = arrays else { return };
    to.copy_from_slice(black_box(from));
    black_box(to);
}

fn triad(arrays: &mut [Vec<f64>]) {
    let [a, b, c] = arrays else { return };
    let (b, c) = (black_box(&*b), black_box(&*c));
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + 3.0 * c;
    }
    black_box(a);
}

/// One thread's part of the arrays.
struct KernelPart {
    kernel: &'static MemoryKernel,
    elements: usize,
    arrays: Vec<Vec<f64>>,
}

impl KernelPart {
    fn new(kernel: &'static MemoryKernel, elements: usize) -> Self {
        Self { kernel, elements, arrays: Vec::new() }
    }
}

impl ThreadKernel for KernelPart {
    fn init(&mut self) {
        // Not zeros: zero pages need not be backed by memory.
        let array = |at: usize| vec![at as f64 + 0.5; self.elements];
        self.arrays = (0..self.kernel.arrays).map(array).collect();
    }

    fn run(&mut self) {
        (self.kernel.run)(&mut self.arrays);
    }
}

/// A copy of this many bytes on one thread.
pub fn copies(bytes: usize) -> impl ThreadKernel {
    KernelPart::new(&KERNELS[0], bytes / ELEMENT)
}

/// Notes which bytes are counted, and whether a large size still fits into the last-level cache.
fn notes_for(counted: &str, used: usize, cache: Option<usize>) -> Vec<String> {
    let within = cache.filter(|cache| used >= MEMORY_BOUND_BYTES && used / 2 < *cache);
    let note = within.map(|cache| {
        let cache = regatta_model::units::format_bytes(cache as u64);
        format!("the last-level cache holds {cache}, so this is not pure memory bandwidth")
    });
    std::iter::once(counted.to_owned()).chain(note).collect()
}

/// Elements per thread. Threads without elements are omitted.
fn elements_per_thread(bytes: usize, threads: usize) -> impl Iterator<Item = usize> {
    let (all, threads) = (bytes / ELEMENT, threads.max(1));
    let share = move |at: usize| (at + 1) * all / threads - at * all / threads;
    (0..threads).map(share).filter(|elements| *elements > 0)
}

/// Size of the largest cache of CPU 0 from sysfs.
fn last_level_cache() -> Option<usize> {
    let folder = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = folder.flatten().filter_map(|index| {
        let text = std::fs::read_to_string(index.path().join("size")).ok()?;
        cache_bytes(text.trim())
    });
    sizes.max()
}

/// Parses `32768K` to bytes.
fn cache_bytes(text: &str) -> Option<usize> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("", 1)];
    let (digits, unit) =
        units.into_iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)))?;
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_distributed_over_threads() {
        assert_eq!(elements_per_thread(80, 4).collect::<Vec<_>>(), [2, 3, 2, 3]);
        assert_eq!(elements_per_thread(16, 5).sum::<usize>(), 2);
        assert_eq!(elements_per_thread(1 << 20, 3).sum::<usize>(), 1 << 17);
    }

    #[test]
    fn kernels_compute_their_results() {
        for (kernel, expected) in KERNELS.iter().zip([1.5, 9.0]) {
            let mut part = KernelPart::new(kernel, 100);
            part.init();
            part.run();
            assert_eq!(part.arrays[0], vec![expected; 100], "{}", kernel.name);
        }
    }

    #[test]
    fn sizes_within_the_last_level_cache_are_noted() {
        let sizes = ["32768K", "32M", "512", "x", "99999999999999999999K"].map(cache_bytes);
        assert_eq!(sizes, [Some(32 << 20), Some(32 << 20), Some(512), None, None]);
        assert!(notes_for("x", 256 << 20, Some(1 << 30))[1].contains("1 GiB"));
        assert_eq!(notes_for("x", 256 << 20, Some(32 << 20)), ["x"]);
        assert_eq!(notes_for("x", 256 << 20, None), ["x"]);
    }
}
