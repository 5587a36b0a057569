//! `tidepool calibrate`: measures what the models need to know of this machine.

pub mod file;
pub mod machine;
