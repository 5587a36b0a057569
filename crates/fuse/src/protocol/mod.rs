//! The kernel's FUSE protocol: message layouts, the device, requests and replies.

pub(crate) mod abi;
pub(crate) mod device;
pub(crate) mod reply;
mod reply_pipe;
pub(crate) mod request;
