//! What is known between two batches: the content of each file, which nodes run, what is open.

use std::collections::BTreeSet;

use super::content::Content;
use super::operation::{Author, Change, Operation, Way};

/// Opens that may be kept at a time.
pub const SLOTS: usize = 12;
/// Files up to this length come to the library whole, with their open.
const WHOLE_WITH_OPEN_BYTES: usize = 256 << 10;

/// A node as the driver left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It serves.
    Up,
    /// It was killed or stopped.
    Down,
}

/// What a kept open may read.
#[derive(Clone, Debug)]
pub struct View {
    /// The node it goes through.
    pub node: usize,
    /// How.
    pub way: Way,
    /// The file whose name was opened.
    pub file: usize,
    /// What it reads.
    pub content: Content,
    /// Ends that it may see, in pages: a reader may stay at the old end of a file that grew.
    pub ends: Vec<usize>,
    /// What it may go on to read: the library has small files whole with their open.
    pub earlier: Vec<Content>,
    /// The file was changed elsewhere, so that it may have become stale.
    pub is_left: bool,
}

impl View {
    /// What an open of a file may read that has this content.
    pub fn new(node: usize, way: Way, file: usize, content: Content) -> View {
        let ends = vec![content.pages()];
        View { node, way, file, content, ends, earlier: Vec::new(), is_left: false }
    }

    /// Whether it sees a change at once.
    pub fn follows(&self, change: Change, author: Author) -> bool {
        !self.is_left && author.node() == Some(self.node) && !change.leaves_opens()
    }

    /// Takes in that its file was changed.
    pub fn note(&mut self, change: Change, author: Author, after: &Content) {
        if !self.follows(change, author) {
            self.is_left = true;
            return;
        }
        let is_small =
            |it: &Content| it.pages() * super::content::PAGE_BYTES <= WHOLE_WITH_OPEN_BYTES;
        if self.way == Way::Library && (is_small(&self.content) || !self.earlier.is_empty()) {
            self.earlier.push(self.content.clone());
        }
        match after.pages() > self.content.pages() {
            true => self.ends.push(after.pages()),
            false => self.ends = vec![after.pages()],
        }
        self.content = after.clone();
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct World {
    /// Content by file.
    pub files: Vec<Content>,
    /// State by node.
    pub nodes: Vec<State>,
    /// Links through which nothing comes.
    pub cut: BTreeSet<(usize, usize)>,
    /// Kept opens by slot.
    pub views: Vec<Option<View>>,
}

/// A change that is under way, and what it makes of the file.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What is done.
    pub change: Change,
    /// By whom.
    pub author: Author,
    /// The file after it.
    pub after: Content,
}

impl World {
    /// Files that do not exist yet, nodes that run.
    pub fn new(files: usize, nodes: usize) -> World {
        World {
            files: vec![Content::default(); files],
            nodes: vec![State::Up; nodes],
            cut: BTreeSet::new(),
            views: vec![None; SLOTS],
        }
    }

    /// Whether a node runs.
    pub fn is_up(&self, node: usize) -> bool {
        self.nodes[node] == State::Up
    }

    /// Whether an operation makes sense now. A log from which operations were dropped, and a node
    /// without a mount, have some that do not.
    pub fn takes(&self, operation: &Operation, are_mounted: bool) -> bool {
        let can = |node: usize, way: Way| match way {
            Way::Library => true,
            Way::Mount | Way::Mapping => are_mounted && self.is_up(node),
        };
        match operation {
            Operation::Read { node, way, .. } => can(*node, *way),
            Operation::Hold { node, way, .. } => self.is_up(*node) && can(*node, *way),
            Operation::ReadHeld { slot, .. } | Operation::Release { slot } => {
                self.views[*slot].is_some()
            }
            Operation::Change { author: Author::Mount(node), .. } => can(*node, Way::Mount),
            Operation::Change { .. } | Operation::Link { .. } | Operation::Rest { .. } => true,
            Operation::Start { node } => !self.is_up(*node),
            Operation::Evict { node, .. }
            | Operation::Load { node, .. }
            | Operation::EvictAll { node, .. }
            | Operation::Resize { node, .. }
            | Operation::SetPolicy { node, .. }
            | Operation::Drain { node }
            | Operation::Pause { node, .. }
            | Operation::Kill { node, .. }
            | Operation::Stop { node } => self.is_up(*node),
        }
    }

    /// The change of a file in a batch, if there is one.
    pub fn pending(&self, batch: &[Operation], of: usize) -> Option<Pending> {
        batch.iter().find_map(|operation| match operation {
            Operation::Change { file, change, author, generation, .. } if *file == of => {
                let after = change.apply(&self.files[of], *generation);
                Some(Pending { change: *change, author: *author, after })
            }
            _ => None,
        })
    }
}
