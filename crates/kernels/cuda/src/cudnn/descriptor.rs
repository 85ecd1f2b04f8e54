//! Backend descriptors: objects with attributes, immutable once finalised.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use super::sys::{
    Address, Attribute, AttributeType, DataType, DescriptorType, Functions, Handle, HeuristicMode,
    PointwiseMode, RawDescriptor, ReductionOperator, SUCCESS,
};

/// A function of cuDNN that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CudnnError {
    /// What was attempted.
    what: String,
    cause: String,
}

impl CudnnError {
    pub fn new(functions: &Functions, what: impl Into<String>, status: c_int) -> Self {
        Self { what: what.into(), cause: functions.error_string(status) }
    }

    /// An error that cuDNN did not report.
    pub fn unsupported(what: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { what: what.into(), cause: cause.into() }
    }
}

impl fmt::Display for CudnnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

/// The value of an attribute.
pub(crate) trait AttributeValue: Copy {
    /// Its type.
    const TYPE: AttributeType;
}

macro_rules! attribute_values {
    ($($type:ty => $variant:ident),* $(,)?) => {$(
        impl AttributeValue for $type {
            const TYPE: AttributeType = AttributeType::$variant;
        }
    )*};
}

attribute_values!(
    Handle => Handle,
    DataType => DataType,
    bool => Boolean,
    i64 => Int64,
    Address => VoidPointer,
    HeuristicMode => HeuristicMode,
    PointwiseMode => PointwiseMode,
    RawDescriptor => BackendDescriptor,
    ReductionOperator => ReductionOperator,
);

/// A descriptor.
pub(crate) struct Descriptor {
    raw: RawDescriptor,
    kind: DescriptorType,
    functions: Arc<Functions>,
}

impl Descriptor {
    pub fn new(functions: &Arc<Functions>, kind: DescriptorType) -> Result<Self, CudnnError> {
        let mut raw = RawDescriptor(null_mut());
        // SAFETY: the function writes one pointer.
        match unsafe { (functions.create_descriptor)(kind, &mut raw) } {
            SUCCESS => Ok(Self { raw, kind, functions: functions.clone() }),
            status => Err(CudnnError::new(functions, format!("creating {kind:?}"), status)),
        }
    }

    /// The descriptor as an attribute of others, which must not outlive it.
    pub fn raw(&self) -> RawDescriptor {
        self.raw
    }

    /// Sets an attribute.
    pub fn set<T: AttributeValue>(self, name: Attribute, values: &[T]) -> Result<Self, CudnnError> {
        let (count, start) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: the values have the type that the function is told, and it copies them.
        let status =
            unsafe { (self.functions.set_attribute)(self.raw, name, T::TYPE, count, start) };
        self.check(status, || format!("setting {name:?}")).map(|()| self)
    }

    /// Sets an attribute if there is a value.
    pub fn set_optional<T: AttributeValue>(
        self,
        name: Attribute,
        value: Option<T>,
    ) -> Result<Self, CudnnError> {
        match value {
            Some(value) => self.set(name, &[value]),
            None => Ok(self),
        }
    }

    /// Validates the attributes; the descriptor cannot be changed afterwards.
    pub fn finalize(self) -> Result<Self, CudnnError> {
        // SAFETY: the descriptor is valid, as are those in its attributes.
        let status = unsafe { (self.functions.finalize)(self.raw) };
        let kind = self.kind;
        self.check(status, || format!("finalising {kind:?}")).map(|()| self)
    }

    /// An integer attribute.
    pub fn get_i64(&self, name: Attribute) -> Result<i64, CudnnError> {
        let (mut value, mut count) = (0i64, 0i64);
        let to: *mut c_void = (&raw mut value).cast();
        let get = self.functions.get_attribute;
        // SAFETY: the function writes at most one integer, and their number.
        let status = unsafe { get(self.raw, name, AttributeType::Int64, 1, &mut count, to) };
        self.check(status, || format!("reading {name:?}")).map(|()| value)
    }

    /// An attribute that is a list of descriptors.
    pub fn get_descriptors(
        &self,
        name: Attribute,
        kind: DescriptorType,
    ) -> Result<Vec<Self>, CudnnError> {
        let (get, of) = (self.functions.get_attribute, AttributeType::BackendDescriptor);
        let mut count = 0i64;
        // SAFETY: without elements the function only writes their number.
        let status = unsafe { get(self.raw, name, of, 0, &mut count, null_mut()) };
        self.check(status, || format!("counting {name:?}"))?;
        let descriptors: Result<Vec<_>, _> =
            (0..count).map(|_| Self::new(&self.functions, kind)).collect();
        let mut descriptors = descriptors?;
        let mut raw: Vec<RawDescriptor> = descriptors.iter().map(Self::raw).collect();
        let mut written = 0i64;
        // SAFETY: the function fills at most `count` descriptors, which were created for it.
        let status =
            unsafe { get(self.raw, name, of, count, &mut written, raw.as_mut_ptr().cast()) };
        self.check(status, || format!("reading {name:?}"))?;
        descriptors.truncate(written.max(0) as usize);
        Ok(descriptors)
    }

    fn check(&self, status: c_int, what: impl FnOnce() -> String) -> Result<(), CudnnError> {
        match status {
            SUCCESS => Ok(()),
            status => Err(CudnnError::new(&self.functions, what(), status)),
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is valid and not used afterwards.
        unsafe { (self.functions.destroy_descriptor)(self.raw) };
    }
}
