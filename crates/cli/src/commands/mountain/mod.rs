//! `tidepool bench mountain`: the storage mountain.

pub mod own_node;
