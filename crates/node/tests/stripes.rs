//! Fills of a striped file: the transfers in flight are spread over its data servers.

mod support;

use std::collections::HashSet;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use support::{Fixture, content, read_all};
use tidepool_pfs::Layout;
use tidepool_proto::admin::{AdminRequest, AdminService};

const SERVERS: u64 = 4;
/// Blocks of a stripe.
const STRIPE: u64 = 4;
const STRIPES: u64 = 12;

/// Reads that are held back until as many as there are transfer threads are under way, or no more
/// come.
#[derive(Default)]
struct Barrier {
    state: Mutex<(Vec<u64>, u64, usize)>,
    changed: Condvar,
}

impl Barrier {
    /// Holds a read of this server; the most servers at a time are in the state.
    fn wait(&self, server: u64) {
        let mut state = self.state.lock().unwrap();
        state.0.push(server);
        let round = state.1;
        let is_full = |held: &[u64]| held.len() as u64 >= SERVERS;
        if !is_full(&state.0) {
            let waits = |state: &mut (Vec<u64>, u64, usize)| state.1 == round;
            let limit = Duration::from_millis(500);
            state = self.changed.wait_timeout_while(state, limit, waits).unwrap().0;
        }
        if state.1 == round {
            let distinct: HashSet<u64> = state.0.drain(..).collect();
            state.2 = state.2.max(distinct.len());
            state.1 += 1;
            self.changed.notify_all();
        }
    }
}

/// What the program does that tells layouts.
type Tool = Box<dyn Fn() + Send + Sync>;

/// Servers that had work at the same time while a file of that layout was loaded.
fn servers_at_once(layout: impl FnOnce(u64) -> Layout, tool: Option<Tool>) -> usize {
    let (fixture, hooks) = Fixture::hooked(|config| {
        config.transfers = SERVERS as u32;
        config.capacity_bytes = STRIPES * STRIPE * 2 * config.block_bytes;
    });
    let block_bytes = fixture.node.status().store.block_bytes;
    let bytes = content(1, (STRIPES * STRIPE * block_bytes) as usize - 1);
    let path = fixture.put("striped", &bytes);
    let barrier = Arc::<Barrier>::default();
    let held = barrier.clone();
    let server = move |offset: u64| offset / (STRIPE * block_bytes) % SERVERS;
    tool.into_iter().for_each(|tool| hooks.tell_by_tool(tool));
    hooks.stripe(layout(STRIPE * block_bytes), move |offset| held.wait(server(offset)));
    let file = File::open(&path).unwrap();
    fixture.node.admin(AdminRequest::Load, Some(file.into()), 0).unwrap();
    let before = fixture.pfs_read_bytes();
    assert!(read_all(&*fixture.open("striped")).unwrap().0 == bytes);
    assert_eq!(fixture.pfs_read_bytes(), before, "all of it is in memory");
    barrier.state.lock().unwrap().2
}

#[test]
fn a_load_keeps_all_data_servers_busy() {
    let stripes = |size| Layout { stripe_size_bytes: Some(size), ..Layout::default() };
    let in_turn = |size| Layout { stripe_count: Some(SERVERS as u32), ..stripes(size) };
    assert_eq!(servers_at_once(in_turn, None), SERVERS as usize);
    assert_eq!(servers_at_once(stripes, None), SERVERS as usize, "placed by hash");
    assert!(servers_at_once(|_| Layout::default(), None) < SERVERS as usize, "in order otherwise");
}

#[test]
fn reads_do_not_wait_for_the_program_that_tells_a_layout() {
    let name = |stripe| format!("server {}", stripe % SERVERS);
    let placed = |size| Layout {
        stripe_size_bytes: Some(size),
        stripes: (0..STRIPES).map(name).collect(),
        ..Layout::default()
    };
    assert_eq!(servers_at_once(placed, Some(Box::new(|| ()))), SERVERS as usize);
    let (end, ended) = mpsc::channel::<()>();
    let ended = Mutex::new(ended);
    let hangs = move || _ = ended.lock().unwrap().recv();
    assert!(servers_at_once(placed, Some(Box::new(hangs))) < SERVERS as usize);
    drop(end);
}
