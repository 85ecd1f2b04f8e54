//! Descriptors of a GEMM: what the library needs to choose and to launch an algorithm.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use regatta_comm::gpu_runtime::{SUCCESS, Stream, Vendor};
use regatta_device::ops::FP8_DTYPE;

use super::constants::{Constants, Fp8Constants};
use super::gemm::{Epilogue, Gemm, GemmArgs};
use super::owned::Owned;
use super::sys::{
    ALGORITHM_BYTES, Algorithm, CUBLASLT_ALGORITHM_WORDS, Functions, HIPBLASLT_ALGORITHM_WORDS,
    Handle, HeuristicResult,
};
use crate::Ptr;

/// Memory that algorithms may use for partial results.
pub(crate) const WORKSPACE_BYTES: usize = 64 << 20;

/// An error code of the library, and the function that returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatusError {
    pub function: &'static str,
    pub code: c_int,
}

pub(super) fn check(function: &'static str, code: c_int) -> Result<(), StatusError> {
    if code == SUCCESS { Ok(()) } else { Err(StatusError { function, code }) }
}

/// The descriptors of one GEMM.
pub(crate) struct Descriptors {
    gemm: Gemm,
    desc: Owned,
    a: Owned,
    b: Owned,
    /// `c` and `d` have the same layout.
    d: Owned,
    /// Dropped last: it keeps the library loaded.
    functions: Arc<Functions>,
}

impl Descriptors {
    /// Creates the descriptors.
    pub fn new(functions: &Arc<Functions>, gemm: Gemm) -> Result<Self, StatusError> {
        let Gemm { m, n, k, lda, ldb, ldd, transpose_a, transpose_b, input, output, .. } = gemm;
        let constants = Constants::of(functions.vendor);
        let create = functions.matmul_desc_create;
        // SAFETY: the functions are those of descriptors.
        let desc = unsafe {
            Owned::new("MatmulDescCreate", functions.matmul_desc_destroy, |desc| {
                create(desc, constants.compute_f32, constants.f32)
            })?
        };
        let layout = |dtype, (rows, columns): (u64, u64), ld: u64| {
            let create = functions.matrix_layout_create;
            // SAFETY: the functions are those of layouts.
            unsafe {
                Owned::new("MatrixLayoutCreate", functions.matrix_layout_destroy, |to| {
                    create(to, constants.data_type(dtype), rows, columns, ld as i64)
                })
            }
        };
        let stored =
            |transpose, rows, columns| if transpose { (columns, rows) } else { (rows, columns) };
        let a = layout(input, stored(transpose_a, m, k), lda)?;
        let b = layout(input, stored(transpose_b, k, n), ldb)?;
        let d = layout(output, (m, n), ldd)?;
        let created = Self { gemm, desc, a, b, d, functions: functions.clone() };
        let operation = |transpose: bool| constants.operations[usize::from(transpose)];
        created.set(constants.desc.transpose_a, operation(transpose_a))?;
        created.set(constants.desc.transpose_b, operation(transpose_b))?;
        created.set_epilogue()?;
        created.set_scale_modes()?;
        Ok(created)
    }

    fn set_epilogue(&self) -> Result<(), StatusError> {
        let Constants { desc, epilogues, .. } = self.constants();
        let (epilogue, bias) = match self.gemm.epilogue {
            Epilogue::None => (epilogues.default, None),
            Epilogue::Bias(dtype) => (epilogues.bias, Some(dtype)),
            Epilogue::GeluAuxBias(dtype) => {
                self.set(desc.aux_ld, self.gemm.ldd as i64)?;
                (epilogues.gelu_aux_bias, Some(dtype))
            }
        };
        if let Some(dtype) = bias {
            self.set(desc.bias_data_type, self.constants().data_type(dtype))?;
        }
        self.set(desc.epilogue, epilogue)
    }

    /// Operands in fp8 have a scale per row of the output's factors. Fast accumulation keeps fewer bits of
    /// partial sums than f32, but more than operands have.
    fn set_scale_modes(&self) -> Result<(), StatusError> {
        let Some(fp8) = self.fp8() else { return Ok(()) };
        for mode in fp8.scale_modes {
            self.set(mode, fp8.outer_vector)?;
        }
        self.set(fp8.fast_accumulation, 1i8)
    }

    fn fp8(&self) -> Option<&'static Fp8Constants> {
        self.constants().fp8.as_ref().filter(|_| self.gemm.input == FP8_DTYPE)
    }

    /// Sets the addresses that are attributes, not arguments. The heuristic considers their alignment.
    pub fn set_pointers(&self, args: &GemmArgs) -> Result<(), StatusError> {
        let desc = &self.constants().desc;
        if self.gemm.epilogue != Epilogue::None {
            self.set(desc.bias_pointer, args.bias.as_raw())?;
        }
        if matches!(self.gemm.epilogue, Epilogue::GeluAuxBias(_)) {
            self.set(desc.aux_pointer, args.aux.as_raw())?;
        }
        if let Some(fp8) = self.fp8() {
            for (attribute, scales) in fp8.scale_pointers.into_iter().zip(args.scales) {
                self.set(attribute, scales.as_raw())?;
            }
        }
        Ok(())
    }

    fn set<T: Copy>(&self, attribute: c_int, value: T) -> Result<(), StatusError> {
        let set = ("MatmulDescSetAttribute", self.functions.matmul_desc_set_attribute);
        // SAFETY: the function is that of descriptors.
        unsafe { self.desc.set(set, attribute, value) }
    }

    /// At most `count` algorithms, the best by the library's estimate first.
    ///
    /// # Safety
    /// `handle` must be valid.
    pub unsafe fn heuristic(
        &self,
        handle: Handle,
        count: usize,
    ) -> Result<Vec<Algorithm>, StatusError> {
        match self.functions.vendor {
            // SAFETY: as required of the caller; the results have the vendor's layout.
            Vendor::Nvidia => unsafe { self.query::<CUBLASLT_ALGORITHM_WORDS>(handle, count) },
            // SAFETY: as above.
            Vendor::Amd => unsafe { self.query::<HIPBLASLT_ALGORITHM_WORDS>(handle, count) },
        }
    }

    /// # Safety
    /// `handle` must be valid, and algorithms must have this number of words.
    unsafe fn query<const WORDS: usize>(
        &self,
        handle: Handle,
        count: usize,
    ) -> Result<Vec<Algorithm>, StatusError> {
        let preference = self.preference()?;
        let none = HeuristicResult::<WORDS> {
            algorithm: [0; WORDS],
            workspace_bytes: 0,
            state: 0,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut results = vec![none; count];
        let mut found: c_int = 0;
        // SAFETY: handle and descriptors are valid; the function writes at most `count` results and
        // their number.
        let code = unsafe {
            (self.functions.matmul_algo_get_heuristic)(
                handle,
                self.desc.raw,
                self.a.raw,
                self.b.raw,
                self.d.raw,
                self.d.raw,
                preference.raw,
                count as c_int,
                results.as_mut_ptr().cast(),
                &mut found,
            )
        };
        check("MatmulAlgoGetHeuristic", code)?;
        results.truncate(found.max(0) as usize);
        let usable =
            results.iter().filter(|r| r.state == SUCCESS && r.workspace_bytes <= WORKSPACE_BYTES);
        Ok(usable.map(|result| algorithm_of(&result.algorithm)).collect())
    }

    /// Limits on the algorithms of the heuristic.
    fn preference(&self) -> Result<Owned, StatusError> {
        let (functions, constants) = (&self.functions, self.constants());
        let set = ("MatmulPreferenceSetAttribute", functions.matmul_preference_set_attribute);
        let (create, destroy) =
            (functions.matmul_preference_create, functions.matmul_preference_destroy);
        // SAFETY: the functions are those of preferences.
        unsafe {
            let preference = Owned::new("MatmulPreferenceCreate", destroy, |to| create(to))?;
            preference.set(set, constants.max_workspace_bytes, WORKSPACE_BYTES as u64)?;
            for attribute in constants.min_alignment_bytes {
                preference.set(set, *attribute, self.gemm.alignment)?;
            }
            Ok(preference)
        }
    }

    /// Queues the GEMM; the result is the library's code.
    ///
    /// # Safety
    /// `handle` and `stream` must be valid. The matrices must be as large as the GEMM demands, and
    /// `workspace` must have [`WORKSPACE_BYTES`].
    pub unsafe fn launch(
        &self,
        handle: Handle,
        args: &GemmArgs,
        algorithm: &Algorithm,
        workspace: Ptr,
        stream: Stream,
    ) -> c_int {
        let alpha = 1.0f32;
        let beta = f32::from(u8::from(self.gemm.accumulate));
        let scalar = |value: &f32| (&raw const *value).cast::<c_void>();
        let d = args.d.as_raw();
        // SAFETY: as required of the caller; the scalars are read before the function returns.
        unsafe {
            (self.functions.matmul)(
                handle,
                self.desc.raw,
                scalar(&alpha),
                args.a.as_raw(),
                self.a.raw,
                args.b.as_raw(),
                self.b.raw,
                scalar(&beta),
                d,
                self.d.raw,
                d,
                self.d.raw,
                algorithm,
                workspace.as_raw(),
                WORKSPACE_BYTES,
                stream,
            )
        }
    }

    fn constants(&self) -> &'static Constants {
        Constants::of(self.functions.vendor)
    }
}

fn algorithm_of(words: &[u64]) -> Algorithm {
    let mut bytes = [0; ALGORITHM_BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Algorithm(bytes)
}
