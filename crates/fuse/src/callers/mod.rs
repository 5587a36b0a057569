//! What a calling user may use: rights on the PFS, descriptors, threads.

pub(crate) mod credentials;
pub(crate) mod shares;
pub(crate) mod turns;
pub(crate) mod waiting;
