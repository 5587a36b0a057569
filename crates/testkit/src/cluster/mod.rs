//! Many nodes over one PFS directory, by random operations: whatever is read, by whichever node and
//! way, is of one version that the file had at or after the open, and nothing that was closed is
//! ever missing.
//!
//! Operations come in [batches](operation::Batch): those of one run at the same time, the next one
//! begins when all are done. A batch changes a file at most once. So the content of each file is
//! known before and after, and what a read beside a change may give is known too.
//!
//! * `content`: pages that describe themselves, and what a read may give.
//! * `operation`: what is done; `generator`: from a seed.
//! * `links`: what carries bytes between nodes, slow or cut; `nodes`: the processes.
//! * `act`: carries one operation out and looks at what came; `held`: opens that stay.
//! * `world`: what is known of files, nodes and opens between two batches.
//! * `run`: from a seed or a log to a finding; `ending`: what must hold at the end.

mod act;
pub mod content;
mod ending;
pub mod generator;
mod held;
mod links;
mod nodes;
pub mod operation;
pub mod run;
mod world;
