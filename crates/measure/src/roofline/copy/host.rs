//! Copy and triad in host memory.

use std::hint::black_box;

use super::super::threads::{ThreadKernel, time_threads};
use super::super::{Cases, RooflineError, threads_text};
use super::{COUNTED_ONCE, CopySettings, RooflineRow, case_name, row};

/// Copy and triad.
pub(super) const CASES: usize = 2;

/// Working sets of this size are expected to exceed all caches.
const MEMORY_BOUND_BYTES: usize = 64 << 20;

const ELEMENT: usize = size_of::<f64>();

/// Measures both kernels at all sizes and thread counts.
pub(super) fn measure(
    cases: &mut Cases<'_>,
    settings: &CopySettings,
    thread_counts: &[usize],
) -> Result<(), RooflineError> {
    for &bytes in &settings.sizes {
        for &threads in thread_counts {
            measure_kernel::<CopyKernel>(cases, settings, bytes, threads)?;
            measure_kernel::<TriadKernel>(cases, settings, bytes, threads)?;
        }
    }
    Ok(())
}

trait MemoryKernel: ThreadKernel + Sized {
    const NAME: &'static str;
    /// Arrays that count for the bandwidth.
    const COUNTED_ARRAYS: usize;
    /// Arrays in memory.
    const ARRAYS: usize;
    /// Which bytes are counted.
    const COUNTED: &'static str;

    fn new(elements: usize) -> Self;
}

fn measure_kernel<K: MemoryKernel>(
    cases: &mut Cases<'_>,
    settings: &CopySettings,
    bytes: usize,
    threads: usize,
) -> Result<(), RooflineError> {
    let name = format!("{}, {}", case_name(K::NAME, bytes), threads_text(threads));
    cases.case(&name, |stop| {
        let mut kernels: Vec<K> = elements_per_thread(bytes, threads).map(K::new).collect();
        let counted = K::COUNTED_ARRAYS * (bytes / ELEMENT * ELEMENT);
        let notes = notes_for(K::COUNTED, K::ARRAYS * bytes, last_level_cache());
        let samples = time_threads(&mut kernels, &settings.timing, stop)?;
        Ok(samples.map(|samples| RooflineRow { notes, ..row(&samples, name.clone(), counted) }))
    })
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

/// One thread's share of a copy.
struct CopyKernel {
    elements: usize,
    from: Vec<f64>,
    to: Vec<f64>,
}

impl MemoryKernel for CopyKernel {
    const NAME: &'static str = "copy";
    const COUNTED_ARRAYS: usize = 1;
    const ARRAYS: usize = 2;
    const COUNTED: &'static str = COUNTED_ONCE;

    fn new(elements: usize) -> Self {
        Self { elements, from: Vec::new(), to: Vec::new() }
    }
}

impl ThreadKernel for CopyKernel {
    fn init(&mut self) {
        // Not zeros: zero pages need not be backed by memory.
        self.from = vec![1.5; self.elements];
        self.to = vec![0.5; self.elements];
    }

    fn run(&mut self) {
        self.to.copy_from_slice(black_box(&self.from));
        black_box(&mut self.to);
    }
}

/// One thread's share of a triad.
struct TriadKernel {
    elements: usize,
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl MemoryKernel for TriadKernel {
    const NAME: &'static str = "triad";
    const COUNTED_ARRAYS: usize = 3;
    const ARRAYS: usize = 3;
    const COUNTED: &'static str = "bytes of all three arrays";

    fn new(elements: usize) -> Self {
        Self { elements, a: Vec::new(), b: Vec::new(), c: Vec::new() }
    }
}

impl ThreadKernel for TriadKernel {
    fn init(&mut self) {
        [&mut self.a, &mut self.b, &mut self.c]
            .into_iter()
            .zip([0.5, 1.5, 2.5])
            .for_each(|(array, value)| *array = vec![value; self.elements]);
    }

    fn run(&mut self) {
        let (b, c) = (black_box(&self.b), black_box(&self.c));
        for ((a, b), c) in self.a.iter_mut().zip(b).zip(c) {
            *a = b + 3.0 * c;
        }
        black_box(&mut self.a);
    }
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
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
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
        let mut copy = CopyKernel::new(100);
        copy.init();
        copy.run();
        assert_eq!(copy.to, copy.from);
        let mut triad = TriadKernel::new(100);
        triad.init();
        triad.run();
        assert_eq!(triad.a, vec![9.0; 100]);
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
