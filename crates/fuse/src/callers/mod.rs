//! What a calling user may use: rights on the PFS, descriptors, threads.

pub(crate) mod credentials;
pub(crate) mod shares;
pub(crate) mod thread_pool;
pub(crate) mod turns;
