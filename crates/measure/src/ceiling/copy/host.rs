//! Copies in the host's memory.

use std::hint::black_box;

use super::super::together::{Work, time_all};
use super::super::{Cases, CeilingError, threads_text};
use super::{COUNTED, Settings, row, sized};

/// How memory is used: a copy and a triad.
pub(super) const WAYS: usize = 2;

/// Which bytes of a triad count.
const ALL_COUNTED: &str = "bytes of all three arrays counted";

/// So many bytes are thought to be beyond all caches.
const LARGE: usize = 64 << 20;

const ELEMENT: usize = size_of::<f64>();

/// Measures copies of all sizes by so many threads.
pub(super) fn measure(
    cases: &mut Cases<'_>,
    settings: &Settings,
    thread_counts: &[usize],
) -> Result<(), CeilingError> {
    let cache = last_level_cache();
    let effort = &settings.effort;
    for &bytes in &settings.sizes {
        for &threads in thread_counts {
            let what = format!("{}, {}", sized("copy", bytes), threads_text(threads));
            cases.case(&what, |stop| {
                let mut parts: Vec<Copy> = parts(bytes, threads).map(Copy::new).collect();
                let counted = bytes / ELEMENT * ELEMENT;
                let notes = noted(COUNTED, 2 * bytes, cache);
                let timed = time_all(&mut parts, effort, stop)?;
                Ok::<_, CeilingError>(
                    timed.map(|timed| super::Row { notes, ..row(&timed, what.clone(), counted) }),
                )
            })?;
            let what = format!("{}, {}", sized("triad", bytes), threads_text(threads));
            cases.case(&what, |stop| {
                let mut parts: Vec<Triad> = parts(bytes, threads).map(Triad::new).collect();
                let counted = 3 * (bytes / ELEMENT * ELEMENT);
                let notes = noted(ALL_COUNTED, 3 * bytes, cache);
                let timed = time_all(&mut parts, effort, stop)?;
                Ok::<_, CeilingError>(
                    timed.map(|timed| super::Row { notes, ..row(&timed, what.clone(), counted) }),
                )
            })?;
        }
    }
    Ok(())
}

/// What is counted; and whether the largest size is not beyond the last cache after all.
fn noted(counted: &str, used: usize, cache: Option<usize>) -> Vec<String> {
    let within = cache.filter(|cache| used >= LARGE && used / 2 < *cache);
    let note = within.map(|cache| {
        let cache = regatta_model::units::bytes(cache as u64);
        format!("the last-level cache has {cache}, so this is not memory alone")
    });
    std::iter::once(counted.to_owned()).chain(note).collect()
}

/// How many elements each thread has of so many bytes. A thread without any is left out.
fn parts(bytes: usize, threads: usize) -> impl Iterator<Item = usize> {
    let (all, threads) = (bytes / ELEMENT, threads.max(1));
    let part = move |at: usize| (at + 1) * all / threads - at * all / threads;
    (0..threads).map(part).filter(|elements| *elements > 0)
}

/// One thread's part of a copy.
struct Copy {
    elements: usize,
    from: Vec<f64>,
    to: Vec<f64>,
}

impl Copy {
    fn new(elements: usize) -> Self {
        Self { elements, from: Vec::new(), to: Vec::new() }
    }
}

impl Work for Copy {
    fn prepare(&mut self) {
        // Not zeros: pages of those need not be there.
        self.from = vec![1.5; self.elements];
        self.to = vec![0.5; self.elements];
    }

    fn once(&mut self) {
        self.to.copy_from_slice(black_box(&self.from));
        black_box(&mut self.to);
    }
}

/// One thread's part of a triad.
struct Triad {
    elements: usize,
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl Triad {
    fn new(elements: usize) -> Self {
        Self { elements, a: Vec::new(), b: Vec::new(), c: Vec::new() }
    }
}

impl Work for Triad {
    fn prepare(&mut self) {
        [&mut self.a, &mut self.b, &mut self.c]
            .into_iter()
            .zip([0.5, 1.5, 2.5])
            .for_each(|(array, value)| *array = vec![value; self.elements]);
    }

    fn once(&mut self) {
        let (b, c) = (black_box(&self.b), black_box(&self.c));
        for ((a, b), c) in self.a.iter_mut().zip(b).zip(c) {
            *a = b + 3.0 * c;
        }
        black_box(&mut self.a);
    }
}

/// Bytes of the largest cache, as the kernel tells of the first CPU.
fn last_level_cache() -> Option<usize> {
    let folder = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = folder.flatten().filter_map(|index| {
        let text = std::fs::read_to_string(index.path().join("size")).ok()?;
        cache_bytes(text.trim())
    });
    sizes.max()
}

/// `32768K` in bytes.
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
    fn threads_share_the_bytes() {
        assert_eq!(parts(80, 4).collect::<Vec<_>>(), [2, 3, 2, 3]);
        assert_eq!(parts(16, 5).sum::<usize>(), 2);
        assert_eq!(parts(1 << 20, 3).sum::<usize>(), 1 << 17);
    }

    #[test]
    fn what_is_measured_is_done() {
        let mut copy = Copy::new(100);
        copy.prepare();
        copy.once();
        assert_eq!(copy.to, copy.from);
        let mut triad = Triad::new(100);
        triad.prepare();
        triad.once();
        assert_eq!(triad.a, vec![9.0; 100]);
    }

    #[test]
    fn a_size_within_the_last_cache_is_noted() {
        let sizes = ["32768K", "32M", "512", "x", "99999999999999999999K"].map(cache_bytes);
        assert_eq!(sizes, [Some(32 << 20), Some(32 << 20), Some(512), None, None]);
        assert!(noted("x", 256 << 20, Some(1 << 30))[1].contains("1 GiB"));
        assert_eq!(noted("x", 256 << 20, Some(32 << 20)), ["x"]);
        assert_eq!(noted("x", 256 << 20, None), ["x"]);
    }
}
