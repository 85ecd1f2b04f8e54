//! Carries out plans as NCCL does: a thread per communicator calls the API, and a proxy thread per
//! communicator reports channels and network transfers, in random order.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, channel};

use nccl_profiler_regatta::callbacks::state;

use crate::plan::{Fate, PlannedCommunicator, PlannedOperation, Random, Transfer};
use crate::plugin::{CollectiveCall, Opaque, P2pCall, Plugin};

/// Something that the proxy thread reports of an operation.
#[derive(Debug, Clone, Copy)]
enum Report {
    ChannelStart(usize),
    ChannelEnd(usize),
    TransferStart(usize),
    TransferSteps(usize),
    TransferEnd(usize),
}

/// An operation that the proxy thread works on.
struct Active<'a> {
    operation: &'a PlannedOperation,
    handle: Opaque,
    reports: VecDeque<Report>,
    channels: Vec<Opaque>,
    transfers: Vec<Opaque>,
}

/// A host: the plug-in, and how it is driven.
pub struct Host<'a> {
    pub plugin: &'a Plugin,
    pub seed: u64,
    /// Whether the plug-in wants to know of the steps of network transfers.
    pub steps: bool,
}

/// Runs the plans of communicators that have been opened.
pub fn run(host: &Host<'_>, plan: &[PlannedCommunicator], contexts: &[Opaque]) {
    let Host { plugin, seed, steps } = *host;
    std::thread::scope(|scope| {
        for (index, (communicator, &context)) in plan.iter().zip(contexts).enumerate() {
            let (sender, receiver) = channel();
            scope.spawn(move || {
                let random = Random::new(seed ^ 0xabcd ^ index as u64);
                proxy(plugin, context, receiver, random, steps);
            });
            scope.spawn(move || {
                let mut random = Random::new(seed ^ 0x1234 ^ index as u64);
                for operation in &communicator.operations {
                    let handle = call(plugin, context, communicator, operation);
                    assert_ne!(handle, Opaque(null_mut()), "{operation:?}");
                    sender.send((operation, handle)).unwrap();
                    if random.one_in(8) {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}

/// A call of the API.
fn call(
    plugin: &Plugin,
    context: Opaque,
    communicator: &PlannedCommunicator,
    operation: &PlannedOperation,
) -> Opaque {
    let is_p2p = operation.kind.is_some_and(|kind| kind.is_p2p());
    let dtype = operation.dtype.0;
    let api = plugin.api(context, is_p2p, Some(dtype), operation.captured);
    if plugin.version >= 5 {
        plugin.stop(api);
    }
    if operation.copy_engine {
        let handle = plugin.copy_engine(context, api, &collective(communicator, operation));
        plugin.stop(handle);
        return handle;
    }
    let group = plugin.group(context);
    // NCCL up to 2.27 reports no operations otherwise.
    assert_ne!(group, Opaque(null_mut()));
    let handle = match is_p2p {
        true => {
            let call = P2pCall {
                comm_hash: communicator.id,
                rank: communicator.rank,
                function: operation.function.unwrap(),
                count: operation.count as usize,
                peer: operation.peer,
                dtype,
                channels: operation.channels.len() as u8,
            };
            plugin.p2p(context, group, api, &call)
        }
        false => plugin.collective(context, group, api, &collective(communicator, operation)),
    };
    plugin.stop(handle);
    plugin.stop(group);
    handle
}

fn collective<'a>(
    communicator: &PlannedCommunicator,
    operation: &'a PlannedOperation,
) -> CollectiveCall<'a> {
    use regatta_events::operation::OperationKind::{AllGather, Broadcast};
    let (mut dtype, mut count) = (operation.dtype.0, operation.count);
    // NCCL reports these in bytes, unless the copy engines run them.
    if matches!(operation.kind, Some(AllGather | Broadcast)) && !operation.copy_engine {
        count *= operation.dtype.1.bytes().unwrap();
        dtype = c"ncclInt8";
    }
    CollectiveCall {
        comm_hash: communicator.id,
        comm_name: communicator.name,
        rank: communicator.rank,
        sequence: operation.sequence,
        function: operation.function,
        count: count as usize,
        root: operation.peer,
        dtype: Some(dtype),
        // Wraps at 256.
        channels: operation.channels.len() as u8,
        algorithm: operation.algorithm.0,
        protocol: operation.protocol.0,
    }
}

/// The proxy thread: takes operations as they come, and reports of any of them.
fn proxy(
    plugin: &Plugin,
    context: Opaque,
    operations: Receiver<(&PlannedOperation, Opaque)>,
    mut random: Random,
    steps: bool,
) {
    let mut active: Vec<Active<'_>> = Vec::new();
    let mut open = true;
    while open || !active.is_empty() {
        if open && (active.is_empty() || random.one_in(4)) {
            match operations.recv() {
                Ok((operation, handle)) => {
                    let mut reports = reports(operation, &mut random);
                    reports.retain(|report| steps || !matches!(report, Report::TransferSteps(_)));
                    let channels = vec![Opaque(null_mut()); operation.channels.len()];
                    let transfers = vec![Opaque(null_mut()); operation.transfers.len()];
                    active.push(Active { operation, handle, reports, channels, transfers });
                }
                Err(_) => open = false,
            }
            continue;
        }
        let index = random.below(active.len());
        match active[index].reports.pop_front() {
            Some(report) => active[index].report(plugin, context, report),
            None => drop(active.swap_remove(index)),
        }
    }
}

/// The reports of an operation. Everything starts before the last channel ends: nothing else tells the
/// end of an operation whose number of channels is unknown.
fn reports(operation: &PlannedOperation, random: &mut Random) -> VecDeque<Report> {
    let (channels, transfers) = (operation.channels.len(), operation.transfers.len());
    if matches!(operation.fate, Fate::NeverStarts | Fate::NotReported) {
        return VecDeque::new();
    }
    let mut starts: Vec<Report> = (0..channels).map(Report::ChannelStart).collect();
    let mut ends: Vec<Report> = (0..channels).map(Report::ChannelEnd).collect();
    if operation.fate == Fate::NeverEnds {
        ends.swap_remove(random.below(channels));
    } else {
        starts.extend((0..transfers).map(Report::TransferStart));
        for transfer in 0..transfers {
            ends.extend([Report::TransferSteps(transfer), Report::TransferEnd(transfer)]);
        }
    }
    for list in [&mut starts, &mut ends] {
        for last in (1..list.len()).rev() {
            list.swap(last, random.below(last + 1));
        }
    }
    // Steps come before the end of their transfer.
    ends.sort_by_key(|report| matches!(report, Report::TransferEnd(_)));
    starts.into_iter().chain(ends).collect()
}

impl Active<'_> {
    fn report(&mut self, plugin: &Plugin, context: Opaque, report: Report) {
        match report {
            Report::ChannelStart(index) => {
                let (start, _) = self.operation.channels[index];
                let handle = plugin.kernel(context, self.handle, index as u8, start);
                assert_ne!(handle, Opaque(null_mut()));
                self.channels[index] = handle;
            }
            Report::ChannelEnd(index) => {
                let (handle, (_, end)) = (self.channels[index], self.operation.channels[index]);
                if plugin.version > 3 {
                    plugin.record(handle, state::CHANNEL_STOP, end);
                }
                plugin.stop(handle);
            }
            Report::TransferStart(index) => {
                let Transfer { foreign, sends, .. } = self.operation.transfers[index];
                let pid = std::process::id() as i32 + i32::from(foreign);
                let handle = plugin.proxy_op(context, self.handle, pid, index as u8, sends);
                assert_eq!(handle == Opaque(null_mut()), foreign);
                if handle != Opaque(null_mut()) && plugin.version > 3 {
                    plugin.record(handle, state::TRANSFER_IN_PROGRESS, 0);
                }
                self.transfers[index] = handle;
            }
            Report::TransferSteps(index) => {
                let transfer = self.operation.transfers[index];
                report_steps(plugin, context, self.transfers[index], transfer);
            }
            // NCCL does not stop events without a handle.
            Report::TransferEnd(index) if self.transfers[index] == Opaque(null_mut()) => {}
            Report::TransferEnd(index) => plugin.stop(self.transfers[index]),
        }
    }
}

/// Reports the steps of a transfer. NCCL from 2.28 on does not look whether their parent has a handle.
fn report_steps(plugin: &Plugin, context: Opaque, parent: Opaque, transfer: Transfer) {
    for (step, bytes) in transfer.steps.into_iter().enumerate() {
        let handle = plugin.proxy_step(context, parent, step as i32);
        assert_eq!(handle == Opaque(null_mut()), transfer.foreign);
        if handle == Opaque(null_mut()) {
            continue;
        }
        let states: &[i32] = match transfer.sends {
            true => &[8, 20, state::SEND_WAIT],
            false => &[state::RECEIVE_WAIT, state::RECEIVE_FLUSH_WAIT, state::RECEIVE_GPU_WAIT],
        };
        states.iter().for_each(|state| plugin.record(handle, *state, bytes));
        plugin.stop(handle);
    }
}
