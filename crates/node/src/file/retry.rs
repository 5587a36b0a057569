//! The thread that tries memory-only files again for which the PFS had no room, also while nobody
//! needs their memory, so that operators are told no longer than it lasts.

use std::sync::{Arc, Weak};

use super::memory_only::{is_expendable, write_back};
use super::state::FileState;
use super::write_back_state::{Room, WriteBackState};
use crate::core::Core;
use tidepool_proto::FileId;

/// Starts the thread that tries again. It ends when nothing is left to try.
pub fn start(core: &Arc<Core>) {
    let (weak, write_back_state) =
        (Arc::downgrade(core), core.memory_only.write_back_state().clone());
    let builder = std::thread::Builder::new().name("retry".into()).stack_size(256 << 10);
    if let Err(error) = builder.spawn(move || retry(&weak, &write_back_state)) {
        core.memory_only.write_back_state().is_not_retried();
        tracing::warn!(%error, "nobody tries again until memory is needed: no thread");
    }
}

fn retry(core: &Weak<Core>, write_back_state: &WriteBackState) {
    while let Some((room, refused)) = write_back_state.next_try() {
        let Some(core) = core.upgrade() else { return };
        match waiting(&core, room, refused) {
            Some(file) => {
                // First: whatever comes of it, it is not tried again at once.
                write_back_state.postpone(room);
                try_again(&core, &file);
            }
            None => write_back_state.clear(room),
        }
    }
}

/// A file that needs this room: the one that found none, while it is there.
fn waiting(core: &Core, room: Room, refused: FileId) -> Option<Arc<FileState>> {
    let needs_room = |file: &Arc<FileState>| {
        let stub = file.inner.lock().stub.clone();
        stub.is_some_and(|stub| room.is_of(&**stub.lower())) && !is_expendable(core, file)
    };
    let refused = core.files.get(refused).filter(needs_room);
    refused.or_else(|| {
        let cached_versions = core.memory_only.cached_versions().into_iter();
        cached_versions.filter_map(|cached| core.files.get(cached.id())).find(needs_room)
    })
}

/// Passes over a file that is being changed.
fn try_again(core: &Arc<Core>, file: &FileState) {
    let Some(changing) = file.try_close_gate() else { return };
    let Some(cached) = file.cached().filter(|cached| cached.is_memory_only()) else { return };
    // What became of it is noted.
    let _ = write_back(core, &changing, &cached);
}
