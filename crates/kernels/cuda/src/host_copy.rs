//! Asynchronous copies between pinned host memory and the device, on a stream per direction: the link is
//! full duplex, and a copy must not wait for kernels that are unrelated to it.

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use regatta_comm::Event;
use regatta_comm::gpu_runtime::{MEMCPY_DEFAULT, Runtime, SUCCESS, Stream};
use regatta_device::HostTensor;
use regatta_device::tensor::View;

use crate::owned_stream::OwnedStream;
use crate::{CudaDevice, Ptr};

/// The copy streams of a device, created by the first copy.
pub(crate) struct CopyStreams {
    /// By direction.
    streams: [OnceLock<Result<OwnedStream, c_int>>; 2],
    /// The device in errors of copies.
    pub device: Arc<str>,
}

impl CopyStreams {
    pub fn new(device: &str) -> Self {
        Self { streams: Default::default(), device: device.into() }
    }

    /// The stream of a direction.
    fn get(&self, direction: CopyDirection, runtime: &Arc<Runtime>) -> Result<Stream, c_int> {
        match self.streams[direction as usize].get_or_init(|| OwnedStream::create(runtime)) {
            Ok(stream) => Ok(stream.raw),
            Err(code) => Err(*code),
        }
    }

    /// Waits for all copies; the error of the first that failed.
    pub fn synchronize(&self, runtime: &Runtime) -> c_int {
        let created = self.streams.iter().filter_map(|stream| stream.get()?.as_ref().ok());
        let codes = created.map(|stream| {
            // SAFETY: the stream is valid.
            unsafe { (runtime.stream_synchronize)(stream.raw) }
        });
        codes.fold(SUCCESS, |first, code| if first == SUCCESS { code } else { first })
    }
}

/// The direction of a copy.
#[derive(Clone, Copy)]
pub(crate) enum CopyDirection {
    ToDevice,
    ToHost,
}

impl CudaDevice {
    /// Queues a copy; an error is the device's.
    pub(crate) fn copy_pinned(
        &self,
        direction: CopyDirection,
        host: &mut HostTensor,
        on_device: View<'_>,
        after: Option<&Event>,
    ) -> Option<Event> {
        let pinned = host.view_for_copy();
        assert_eq!(pinned.len(), on_device.len(), "tensor lengths differ");
        assert_eq!(pinned.dtype(), on_device.dtype(), "tensor dtypes differ");
        let bytes = pinned.len() * pinned.dtype().size();
        let pinned = pinned.view().address().as_ptr().cast();
        if bytes == 0 || self.has_failed() || !self.make_current() {
            return None;
        }
        let device = Ptr::of(on_device).as_raw();
        let (to, from) = match direction {
            CopyDirection::ToDevice => (device, pinned),
            CopyDirection::ToHost => (pinned, device),
        };
        let queue = || -> Result<Event, String> {
            let code_error = |code| self.runtime.error_string(code);
            let stream = self.copies.get(direction, &self.runtime).map_err(code_error)?;
            for event in after.into_iter().chain(host.last_copy()) {
                // SAFETY: the stream is a stream of the runtime that the event belongs to.
                unsafe { event.wait_on_stream(stream) }.map_err(|error| error.to_string())?;
            }
            // SAFETY: both have this many bytes. The owner of the host memory waits for the event below; the
            // device memory is used and freed after the event, in stream order.
            let code =
                unsafe { (self.runtime.memcpy_async)(to, from, bytes, MEMCPY_DEFAULT, stream) };
            if code != SUCCESS {
                return Err(code_error(code));
            }
            // SAFETY: the stream is a stream of this device.
            unsafe { self.gpu.record(stream) }.map_err(|error| {
                // Without an event, the owners of the memory cannot wait for the copy.
                self.copies.synchronize(&self.runtime);
                error.to_string()
            })
        };
        match queue() {
            Ok(event) => {
                host.set_copy(event.clone(), self.copies.device.clone());
                Some(event)
            }
            Err(cause) => {
                self.fail("copying between host and device memory", cause);
                None
            }
        }
    }
}
