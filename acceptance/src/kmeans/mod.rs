//! K-means over files, the kind of job that the memory level is for: every iteration reads all of
//! the data again. Fast enough that reading decides how long an iteration takes.

pub mod cluster;
pub mod data;
pub mod pass;
