//! Loads of large files take turns, each user's among themselves: one already keeps all transfers
//! busy, and a user's loads shall not queue up more of them than that user has files.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidepool_proto::{Error, ErrorKind, Result};

/// How often a load that waits for its turn asks whether it shall.
const LOOK: Duration = Duration::from_millis(50);

/// The users whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    users: Mutex<HashSet<u32>>,
    ended: Condvar,
}

/// A turn, given back when it drops.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    loads: &'a Loads,
    user_id: u32,
}

impl Loads {
    /// Waits for the user's other large loads, as long as `go_on` says so.
    pub(crate) fn turn(&self, user_id: u32, go_on: &dyn Fn() -> bool) -> Result<Turn<'_>> {
        let mut users = self.users.lock();
        while users.contains(&user_id) {
            check(go_on)?;
            self.ended.wait_for(&mut users, LOOK);
        }
        users.insert(user_id);
        Ok(Turn { loads: self, user_id })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.loads.users.lock().remove(&self.user_id);
        self.loads.ended.notify_all();
    }
}

/// Fails where nobody waits for a load any more.
pub(crate) fn check(go_on: &dyn Fn() -> bool) -> Result<()> {
    if go_on() {
        return Ok(());
    }
    let detail = "the client went, or the node is stopping";
    Err(Error::new(ErrorKind::NodeUnavailable, "loading a file", detail))
}
