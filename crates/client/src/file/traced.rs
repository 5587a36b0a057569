//! Request tracing of the methods of [`File`].

use std::sync::Arc;

use tidepool_pfs::cost;
use tidepool_proto::trace::Operation;
use tidepool_proto::{ReadOutcome, Result};

use super::File;
use crate::binding::Binding;
use crate::trace::{self, Asked, Outcome};

/// Where and how much, in bytes.
pub(super) type Range = (Option<u64>, Option<u64>);
/// Of requests that are about no range.
pub(super) const NO_RANGE: Range = (None, None);

/// A range of so many bytes.
pub(super) fn range(offset: u64, length: usize) -> Range {
    (Some(offset), Some(length as u64))
}

/// What a read brought; nothing where it was left to another.
pub(super) fn brought(read: &Option<ReadOutcome>) -> Option<Outcome> {
    read.map(|read| Outcome { bytes: read.bytes as u64, levels: read.levels, handle: None })
}

impl File {
    /// Makes a request by `work`; where somebody watches, it is recorded with what came of it.
    pub(super) fn traced<T>(
        &self,
        operation: Operation,
        range: Range,
        work: impl FnOnce() -> Result<T>,
        bytes: impl FnOnce(&T) -> u64,
    ) -> Result<T> {
        match self.traced_binding() {
            None => work(),
            Some(binding) => recorded(&binding, operation, range, work, |done| {
                Some(Outcome { bytes: bytes(done), ..Outcome::default() })
            }),
        }
    }

    /// Whether a request that begins now is to be recorded, and is no part of another one.
    #[cold]
    pub(super) fn is_to_be_recorded(&self) -> bool {
        !cost::is_open() && self.traced_binding().is_some()
    }

    /// A read, recorded.
    pub(super) fn recorded_read(
        &self,
        range: Range,
        read: impl FnOnce() -> Result<Option<ReadOutcome>>,
    ) -> Result<Option<ReadOutcome>> {
        match self.traced_binding() {
            Some(binding) => recorded(&binding, Operation::Read, range, read, brought),
            // The trace ended in between.
            None => cost::of(read).0,
        }
    }

    fn traced_binding(&self) -> Option<Arc<Binding>> {
        let bound = self.binding.load();
        bound.as_ref().filter(|binding| binding.connection.is_traced()).cloned()
    }

    /// The number of the file at the node, if that serves it.
    pub(crate) fn handle(&self) -> Option<u64> {
        self.binding_alive().map(|binding| binding.handle)
    }

    /// Whether no node has it open.
    pub(crate) fn is_unbound(&self) -> bool {
        self.binding.load().is_none()
    }

    /// Whether the file is none that the node could serve.
    pub(crate) fn is_without_node(&self) -> bool {
        self.without_node
    }
}

/// Makes a request on the file of `binding` and records it.
#[cold]
pub(super) fn recorded<T>(
    binding: &Arc<Binding>,
    operation: Operation,
    range: Range,
    work: impl FnOnce() -> Result<T>,
    outcome: impl FnOnce(&T) -> Option<Outcome>,
) -> Result<T> {
    let asked = Asked { operation, handle: binding.handle, path: None, range };
    trace::recorded(&binding.connection, asked, work, outcome)
}
