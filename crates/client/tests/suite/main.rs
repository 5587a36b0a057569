//! Tests of the client library with the real server over a node in miniature.

mod another_node;
mod death;
mod direct;
mod few_descriptors;
mod giving_up;
mod hanging;
mod memory_only;
mod page_cache;
mod random;
mod reading;
mod scene;
mod unanswered;
mod whole;
mod writing;

use tidepool_fake_node as fake;
