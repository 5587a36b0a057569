//! Tests of the socket server: over a node in miniature, with clients that speak the wire protocol
//! by hand, rightly and wrongly.

mod hostile;
mod protocol;
mod raw;
mod socket;

use tidepool_fake_node as fake;
