//! A library that records descriptors and interprets graphs on the host.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_int, c_void};

use regatta_comm::gpu_runtime::Stream;

use super::super::sys::{
    Attribute, AttributeType, DescriptorType, Functions, Handle, RawDescriptor,
};
use super::interpreter;

const NOT_SUPPORTED: c_int = 3000;
const NOT_FINALISED: c_int = 2004;

/// A descriptor; attributes by their names.
pub struct FakeDescriptor {
    pub kind: DescriptorType,
    attributes: HashMap<u32, Value>,
    is_final: bool,
}

/// The elements of an attribute.
enum Value {
    Integers(Vec<i64>),
    Addresses(Vec<usize>),
}

impl FakeDescriptor {
    pub fn integers(&self, name: Attribute) -> &[i64] {
        match self.attributes.get(&(name as u32)) {
            Some(Value::Integers(values)) => values,
            _ => panic!("{:?} has no {name:?}", self.kind),
        }
    }

    pub fn addresses(&self, name: Attribute) -> &[usize] {
        match self.attributes.get(&(name as u32)) {
            Some(Value::Addresses(values)) => values,
            _ => panic!("{:?} has no {name:?}", self.kind),
        }
    }

    pub fn has(&self, name: Attribute) -> bool {
        self.attributes.contains_key(&(name as u32))
    }
}

/// Behaviour and record of the library.
#[derive(Default)]
pub struct Library {
    pub version: usize,
    /// Whether each engine of the heuristic supports the graph.
    pub engines: Vec<bool>,
    /// Heuristics that were asked.
    pub heuristics: usize,
    /// Operations of the last graph.
    pub operations: usize,
    pub executions: usize,
    pub streams: Vec<usize>,
    pub live_handles: usize,
    /// By address.
    pub descriptors: BTreeMap<usize, FakeDescriptor>,
    next: usize,
}

thread_local! {
    static LIBRARY: RefCell<Library> = RefCell::default();
}

/// Accesses this thread's library.
pub fn library<R>(access: impl FnOnce(&mut Library) -> R) -> R {
    LIBRARY.with_borrow_mut(access)
}

/// A new library with these engines.
pub fn functions(engines: &[bool]) -> Functions {
    library(|library| {
        *library = Library { version: 91_402, engines: engines.to_vec(), ..Library::default() };
    });
    Functions {
        create,
        destroy,
        set_stream,
        get_version,
        get_error_string,
        create_descriptor,
        destroy_descriptor,
        set_attribute,
        get_attribute,
        finalize,
        execute,
        _library: None,
    }
}

unsafe extern "C" fn create(handle: *mut Handle) -> c_int {
    library(|library| library.live_handles += 1);
    // SAFETY: the caller passes a pointer to a handle.
    unsafe { *handle = Handle(0x10 as *mut c_void) };
    0
}

unsafe extern "C" fn destroy(_: Handle) -> c_int {
    library(|library| library.live_handles -= 1);
    0
}

unsafe extern "C" fn set_stream(_: Handle, stream: Stream) -> c_int {
    library(|library| library.streams.push(stream.addr()));
    0
}

unsafe extern "C" fn get_version() -> usize {
    library(|library| library.version)
}

unsafe extern "C" fn get_error_string(status: c_int) -> *const c_char {
    match status {
        NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED".as_ptr(),
        _ => c"CUDNN_STATUS_BAD_PARAM".as_ptr(),
    }
}

unsafe extern "C" fn create_descriptor(kind: DescriptorType, to: *mut RawDescriptor) -> c_int {
    let address = library(|library| {
        library.next += 0x100;
        let descriptor = FakeDescriptor { kind, attributes: HashMap::new(), is_final: false };
        library.descriptors.insert(library.next, descriptor);
        library.next
    });
    // SAFETY: the caller passes a pointer to a descriptor.
    unsafe { *to = RawDescriptor(address as *mut c_void) };
    0
}

unsafe extern "C" fn destroy_descriptor(raw: RawDescriptor) -> c_int {
    let destroyed = library(|library| library.descriptors.remove(&raw.0.addr()));
    assert!(destroyed.is_some(), "a descriptor was destroyed twice");
    0
}

unsafe extern "C" fn set_attribute(
    raw: RawDescriptor,
    name: Attribute,
    kind: AttributeType,
    count: i64,
    from: *const c_void,
) -> c_int {
    let count = count as usize;
    // SAFETY: the caller passes `count` elements of the type.
    let value = unsafe {
        match kind {
            AttributeType::Int64 => {
                Value::Integers(std::slice::from_raw_parts(from.cast::<i64>(), count).to_vec())
            }
            AttributeType::Boolean => Value::Integers(vec![i64::from(*from.cast::<u8>())]),
            AttributeType::Handle
            | AttributeType::VoidPointer
            | AttributeType::BackendDescriptor => {
                Value::Addresses(std::slice::from_raw_parts(from.cast::<usize>(), count).to_vec())
            }
            _ => Value::Integers(vec![i64::from(*from.cast::<u32>())]),
        }
    };
    library(|library| {
        // Only descriptors that are final may be attributes of others.
        if let (AttributeType::BackendDescriptor, Value::Addresses(addresses)) = (kind, &value) {
            let is_final = |at: &usize| library.descriptors.get(at).is_some_and(|d| d.is_final);
            if !addresses.iter().all(is_final) {
                return NOT_FINALISED;
            }
        }
        let Some(descriptor) = library.descriptors.get_mut(&raw.0.addr()) else { return 2000 };
        if descriptor.is_final {
            return NOT_FINALISED;
        }
        descriptor.attributes.insert(name as u32, value);
        0
    })
}

unsafe extern "C" fn get_attribute(
    _: RawDescriptor,
    name: Attribute,
    _: AttributeType,
    requested: i64,
    count: *mut i64,
    to: *mut c_void,
) -> c_int {
    let engines = library(|library| library.engines.len()) as i64;
    // SAFETY: the caller passes pointers to a count and to as many elements as it requests.
    unsafe {
        match name {
            Attribute::ExecutionPlanWorkspaceSize => {
                *to.cast::<i64>() = 4096;
                *count = 1;
            }
            Attribute::EngineHeuristicResults if requested == 0 => *count = engines,
            Attribute::EngineHeuristicResults => {
                let configs =
                    std::slice::from_raw_parts(to.cast::<usize>(), requested as usize).to_vec();
                for (engine, config) in configs.into_iter().enumerate() {
                    fill_engine_config(config, engine);
                }
                *count = requested;
            }
            _ => return 2000,
        }
    }
    0
}

/// An engine configuration is final when the heuristic has filled it. It has the number of the engine in
/// place of its real attributes.
fn fill_engine_config(config: usize, engine: usize) {
    library(|library| {
        let Some(config) = library.descriptors.get_mut(&config) else { return };
        let engine = Value::Integers(vec![engine as i64]);
        config.attributes.insert(Attribute::TensorUniqueId as u32, engine);
        config.is_final = true;
    });
}

unsafe extern "C" fn finalize(raw: RawDescriptor) -> c_int {
    library(|library| {
        let Some(descriptor) = library.descriptors.get(&raw.0.addr()) else { return 2000 };
        match descriptor.kind {
            DescriptorType::EngineHeuristic => library.heuristics += 1,
            DescriptorType::OperationGraph => {
                let operations = descriptor.addresses(Attribute::OperationGraphOperations);
                library.operations = operations.len();
            }
            DescriptorType::ExecutionPlan => {
                let config = descriptor.addresses(Attribute::ExecutionPlanEngineConfig)[0];
                let engine = library.descriptors[&config].integers(Attribute::TensorUniqueId)[0];
                if !library.engines[engine as usize] {
                    return NOT_SUPPORTED;
                }
            }
            _ => {}
        }
        if let Some(descriptor) = library.descriptors.get_mut(&raw.0.addr()) {
            descriptor.is_final = true;
        }
        0
    })
}

unsafe extern "C" fn execute(_: Handle, _: RawDescriptor, pack: RawDescriptor) -> c_int {
    library(|library| {
        library.executions += 1;
        let pack = &library.descriptors[&pack.0.addr()];
        let ids = pack.integers(Attribute::VariantPackUniqueIds);
        let addresses = pack.addresses(Attribute::VariantPackDataPointers);
        let memory = ids.iter().copied().zip(addresses.iter().copied()).collect();
        // The tests make one plan each, so there is one graph.
        let is_graph =
            |descriptor: &&FakeDescriptor| descriptor.kind == DescriptorType::OperationGraph;
        let Some(graph) = library.descriptors.values().find(is_graph) else { return 2000 };
        interpreter::run(&library.descriptors, graph, &memory);
        0
    })
}
