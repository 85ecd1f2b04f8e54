//! A kernel launch: its grid, its arguments and the memory that it may access.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

use regatta_comm::DType;

use super::array::{Array, Values};
use super::declarations::{Defines, Parameter};
use super::gpu::FakeGpu;
use super::memory::check_access;
use crate::{Arg, Ptr};

thread_local! {
    /// The arguments of the next launch: the driver's interface does not tell their number and types.
    static ANNOUNCED: RefCell<Vec<Arg>> = RefCell::default();
}

/// Announces the arguments of the next launch of this thread.
pub(crate) fn announce(args: &[Arg]) {
    ANNOUNCED.set(args.to_vec());
}

impl From<Arg> for Parameter {
    fn from(arg: Arg) -> Self {
        match arg {
            Arg::Ptr(_) => Self::Pointer,
            Arg::I32(_) | Arg::U32(_) => Self::Int32,
            Arg::I64(_) | Arg::U64(_) => Self::Int64,
            Arg::F32(_) => Self::F32,
            Arg::F64(_) => Self::F64,
        }
    }
}

/// The arguments at the addresses that the driver got.
///
/// # Safety
/// The addresses must be those of the announced arguments.
pub(super) unsafe fn read_args(
    addresses: *mut *mut c_void,
    declared: &[Parameter],
) -> Result<Vec<Arg>, String> {
    let announced: Vec<Parameter> = ANNOUNCED.take().into_iter().map(Parameter::from).collect();
    if announced != declared {
        return Err(format!("the arguments are {announced:?}, the source declares {declared:?}"));
    }
    let read = |(at, parameter): (usize, &Parameter)| {
        // SAFETY: there is an address per parameter, of a value of its type.
        unsafe {
            let address = *addresses.add(at);
            match parameter {
                Parameter::Pointer => Arg::Ptr(Ptr(*address.cast())),
                Parameter::Int32 => Arg::U32(*address.cast()),
                Parameter::Int64 => Arg::U64(*address.cast()),
                Parameter::F32 => Arg::F32(*address.cast()),
                Parameter::F64 => Arg::F64(*address.cast()),
            }
        }
    };
    Ok(declared.iter().enumerate().map(read).collect())
}

/// A launch.
pub(crate) struct Launch<'a> {
    pub defines: &'a Defines,
    /// The dtypes in the name of the kernel.
    pub dtypes: Vec<DType>,
    /// Elements of a vector, if the name of the kernel has a number.
    pub width: usize,
    pub blocks: [usize; 3],
    pub threads: usize,
    pub shared_bytes: usize,
    pub args: Vec<Arg>,
    pub gpu: Arc<FakeGpu>,
}

impl Launch<'_> {
    /// A definition.
    pub fn define(&self, name: &str) -> usize {
        let value = self.defines.get(name);
        *value.unwrap_or_else(|| panic!("{name} is not defined")) as usize
    }

    /// The dtype of a definition: 0 is f32, 1 is bf16.
    pub fn dtype(&self, name: &str) -> DType {
        if self.define(name) == 1 { DType::Bf16 } else { DType::F32 }
    }

    /// The arguments, in order.
    pub fn args(&self) -> Args<'_> {
        Args { launch: self, next: 0 }
    }

    /// The last `count` arguments, in order.
    pub fn args_from_end(&self, count: usize) -> Args<'_> {
        Args { launch: self, next: self.args.len() - count }
    }

    pub fn assert_threads(&self, threads: usize) {
        assert_eq!(self.threads, threads, "threads of a block");
    }

    /// A grid with one dimension.
    pub fn assert_one_dimension(&self) {
        assert_eq!(self.blocks[1..], [1, 1], "blocks");
    }

    /// Elements of f32 or bf16 in device memory.
    pub fn array(&self, start: Ptr, dtype: DType, len: usize) -> Array {
        self.assert_accessible(start, len, dtype.size());
        Array::new(start, dtype, len)
    }

    /// An array, unless the pointer is null.
    pub fn optional_array(&self, start: Ptr, dtype: DType, len: usize) -> Option<Array> {
        (start != Ptr::NULL).then(|| self.array(start, dtype, len))
    }

    /// Other values in device memory.
    pub fn values<T: Copy>(&self, start: Ptr, len: usize) -> Values<T> {
        self.assert_accessible(start, len, size_of::<T>());
        Values::new(start, len)
    }

    fn assert_accessible(&self, start: Ptr, len: usize, size: usize) {
        assert!(start.0.is_multiple_of(size as u64), "{start:?} is not aligned for its elements");
        if let Err(error) = check_access(&self.gpu, start.0, len * size) {
            panic!("{error}");
        }
    }
}

/// The arguments of a launch, read in order.
pub(crate) struct Args<'a> {
    launch: &'a Launch<'a>,
    next: usize,
}

macro_rules! read_as {
    ($($name:ident: $variant:ident -> $type:ty),* $(,)?) => {$(
        pub fn $name(&mut self) -> $type {
            match self.take() {
                Arg::$variant(value) => value as $type,
                other => panic!("argument {} is {other:?}", self.next),
            }
        }
    )*};
}

impl Args<'_> {
    fn take(&mut self) -> Arg {
        let arg = self.launch.args[self.next];
        self.next += 1;
        arg
    }

    pub fn ptr(&mut self) -> Ptr {
        match self.take() {
            Arg::Ptr(value) => value,
            other => panic!("argument {} is {other:?}", self.next),
        }
    }

    read_as! {
        size: U64 -> usize,
        size32: U32 -> usize,
        u64: U64 -> u64,
        u32: U32 -> u32,
        f32: F32 -> f32,
        f64: F64 -> f64,
    }

    /// Key and offset of a dropout mask: `state_key` and `state_offset` of the prelude.
    pub fn mask(&mut self) -> (u64, u64) {
        let (state, key, offset) = (self.ptr(), self.u64(), self.u64());
        if state == Ptr::NULL {
            return (key, offset);
        }
        let state = self.launch.values::<u64>(state, 2);
        (state.get(0), state.get(1).wrapping_add(offset))
    }

    /// A flag.
    pub fn flag(&mut self) -> bool {
        self.u32() != 0
    }

    /// Elements of a tensor of this dtype.
    pub fn array(&mut self, dtype: DType, len: usize) -> Array {
        let start = self.ptr();
        self.launch.array(start, dtype, len)
    }
}
